//! The guest kernel's scheduler: which thread a vCPU runs, where a woken thread goes, what an idle
//! vCPU takes from others. Plain round robin; priorities and the guest's own load balancing beyond
//! an idle vCPU's pull are not modelled.

use super::objects::{Links, List};

/// Nanoseconds a thread runs while others wait for its vCPU. CFS's minimal granularity on 8 CPUs
/// and more: 0.75 ms times 4 (kernel/sched/fair.c, 5.15).
pub const TURN: u64 = 3_000_000;

/// What a vCPU does inside the guest.
#[derive(Clone, Debug)]
pub struct GuestVcpu {
    /// Its current thread, if any: then the vCPU has something to do.
    pub current: Option<u32>,
    /// Threads that wait for it.
    pub queue: List,
    /// How many.
    pub queued: u32,
    /// Nanoseconds left of the current thread's turn.
    pub turn: u64,
    /// When its kernel's next clock tick is due; `u64::MAX` without ticks.
    pub tick_at: u64,
}

impl Default for GuestVcpu {
    fn default() -> Self {
        Self { current: None, queue: List::default(), queued: 0, turn: TURN, tick_at: u64::MAX }
    }
}

impl GuestVcpu {
    /// A thread is ready to run here; true when the vCPU had nothing to do before.
    #[inline]
    pub fn ready(&mut self, links: &mut Links, thread: u32) -> bool {
        if self.current.is_none() {
            self.current = Some(thread);
            self.turn = TURN;
            return true;
        }
        self.queue.push(links, thread);
        self.queued += 1;
        false
    }

    /// The current thread sleeps or ended; the next, if any, becomes current.
    #[inline]
    pub fn leave(&mut self, links: &Links) {
        self.current = self.take(links);
        self.turn = TURN;
    }

    /// The current thread's turn is over: it goes to the end of the queue.
    pub fn rotate(&mut self, links: &mut Links) {
        let Some(current) = self.current else { return };
        self.queue.push(links, current);
        self.queued += 1;
        self.leave(links);
    }

    /// Takes a waiting thread.
    pub fn take(&mut self, links: &Links) -> Option<u32> {
        let thread = self.queue.pop(links)?;
        self.queued -= 1;
        Some(thread)
    }
}

/// Where a woken thread goes that last ran on `home`: there if it is idle, else to the idle vCPU
/// that follows, else home.
pub fn place(vcpus: &[GuestVcpu], home: usize) -> usize {
    let count = vcpus.len();
    (0..count)
        .map(|step| (home + step) % count)
        .find(|at| vcpus[*at].current.is_none())
        .unwrap_or(home)
}

/// The vCPU with the longest queue, for one that is idle to take from.
pub fn busiest(vcpus: &[GuestVcpu]) -> Option<usize> {
    let longest = vcpus.iter().enumerate().filter(|(_, vcpu)| vcpu.queued > 0);
    longest.max_by_key(|(at, vcpu)| (vcpu.queued, u32::MAX - *at as u32)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_woken_thread_prefers_its_own_vcpu_then_an_idle_one() {
        let mut links = Links::new(3);
        let mut vcpus = vec![GuestVcpu::default(); 3];
        assert_eq!(place(&vcpus, 1), 1);
        assert!(vcpus[1].ready(&mut links, 0));
        assert_eq!(place(&vcpus, 1), 2);
        vcpus[2].ready(&mut links, 1);
        vcpus[0].ready(&mut links, 2);
        assert_eq!(place(&vcpus, 1), 1);
    }

    #[test]
    fn turns_go_round() {
        let mut links = Links::new(3);
        let mut vcpu = GuestVcpu::default();
        for thread in 0..3 {
            vcpu.ready(&mut links, thread);
        }
        let mut order = Vec::new();
        for _ in 0..4 {
            order.push(vcpu.current);
            vcpu.rotate(&mut links);
        }
        assert_eq!(order, [Some(0), Some(1), Some(2), Some(0)]);
        assert_eq!(busiest(&[GuestVcpu::default(), vcpu]), Some(1));
    }
}
