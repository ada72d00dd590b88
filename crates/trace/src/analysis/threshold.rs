//! Bottlenecks (systems.md, 2): a vCPU that sleeps longer than the ideal scheduling interval
//! `|C| / |P| * T` while siblings could run and do not means that these hold the VM up.
//!
//! Looked at every millisecond of the trace's time, as the published scheduler does periodically, and
//! each look stands for a millisecond. Between two events nothing changes but how long sleeps last, so
//! the looks that fall between them are counted when the second comes, with the state of the first.

use super::world::{SchedState, World};
use instep_core::units::Nanos;

/// How often is looked.
const EVERY: Nanos = Nanos(1_000_000);
/// Times of passes that are kept per VM.
const KEPT: usize = 1000;

/// Of all VMs.
#[derive(Debug)]
pub(super) struct Threshold {
    /// The ideal scheduling interval.
    pub(super) interval: Nanos,
    next: Nanos,
    vms: Vec<HeldUp>,
}

/// When one VM was held up.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldUp {
    is_held: bool,
    /// How often the threshold was passed.
    pub(super) passes: u64,
    /// When, the first of them: the look that saw it, up to a millisecond after the fact.
    pub(super) times: Vec<Nanos>,
    /// For how long together: a millisecond for each look.
    pub(super) held: Nanos,
}

impl Threshold {
    /// `quantum` is `T`, `vcpus` `|C|`, `cpus` `|P|`.
    pub(super) fn new(vms: usize, quantum: Nanos, vcpus: usize, cpus: usize, begin: Nanos) -> Self {
        let vms = vec![HeldUp::default(); vms];
        let interval = Nanos(quantum.0.saturating_mul(vcpus as u64) / cpus.max(1) as u64);
        Threshold { interval, next: Nanos(begin.0.saturating_add(EVERY.0)), vms }
    }

    /// Called before the event at `time` changes anything.
    #[inline]
    pub(super) fn upto(&mut self, world: &World, time: Nanos) {
        if time >= self.next {
            self.sample(world, time);
        }
    }

    /// The looks from the next one up to `time`.
    fn sample(&mut self, world: &World, time: Nanos) {
        let (next, interval) = (self.next, self.interval);
        let looks = time.since(next).0 / EVERY.0 + 1;
        for (vm, state) in self.vms.iter_mut().enumerate() {
            let vcpus = || world.members[vm].iter().map(|vcpu| &world.vcpus[*vcpu]);
            let asleep = vcpus().filter(|vcpu| vcpu.place == SchedState::Blocked);
            let longest = asleep.map(|vcpu| vcpu.since).min();
            let longest = longest.filter(|_| vcpus().any(|vcpu| vcpu.place.is_waiting()));
            // Looks before the sleep is longer than the interval.
            let before = longest.map(|since| Nanos(since.0.saturating_add(interval.0)));
            let before = before.map(|passed| match passed.0.checked_sub(next.0) {
                Some(until) => until / EVERY.0 + 1,
                None => 0,
            });
            state.saw(before.unwrap_or(looks).min(looks), looks, next);
        }
        self.next = Nanos(next.0.saturating_add(looks.saturating_mul(EVERY.0)));
    }

    pub(super) fn of(&self, vm: usize) -> &HeldUp {
        &self.vms[vm]
    }
}

impl HeldUp {
    /// Of so many looks from `next` on all but the first few saw it held up.
    fn saw(&mut self, before: u64, looks: u64, next: Nanos) {
        let was_held = self.is_held && before == 0;
        self.is_held = before < looks;
        if self.is_held && !was_held {
            self.passes += 1;
            if self.times.len() < KEPT {
                self.times.push(Nanos(next.0.saturating_add(before.saturating_mul(EVERY.0))));
            }
        }
        let held = (looks - before).saturating_mul(EVERY.0);
        self.held.0 = self.held.0.saturating_add(held);
    }
}
