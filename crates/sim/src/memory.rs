//! Memory: how long a miss of the last-level cache waits, and what nodes and the links between them carry.
//!
//! Three things make a miss slower. Its data may lie on another node, which takes the machine's own latency
//! instead of the local one. Its node or the link to it may be busy, so that it queues. And when a node or a
//! link is asked for more than it can carry, everybody who asks gets less. A queue is that of a server with a
//! fixed time of service and arrivals at random (M/D/1): it waits for `S * u / (2 * (1 - u))`, with the time
//! of service `S` and the utilisation `u` (Pollaczek-Khinchine formula).
//!
//! Utilisation is what would be asked for if nothing queued: so it is too high where much queues. It is known in
//! sixteenths, with hysteresis: a change of speed costs events. Each pair of nodes has a link of its own, one for
//! each direction, as four fully connected sockets have.

use crate::host::Host;
use crate::params::{MemoryTimes, ONE};

/// Utilisation is known in so many parts of what can be carried.
const STEPS: u64 = 16;
/// The most that is told apart: sixteen times what can be carried.
const MOST: u64 = 16 * STEPS;
/// Who asks for much more than the mean loses at most so many times what the mean loses.
const HEAVIEST: u64 = 4;

/// What a node or a link carries.
#[derive(Clone, Debug, Default)]
struct Channel {
    /// The most, MiB/s.
    most: u64,
    /// What is asked for, MiB/s.
    asked: u64,
    /// The sum of the squares of what each asks for.
    squares: u64,
    /// Utilisation in parts of [`STEPS`].
    level: u64,
}

impl Channel {
    fn new(most: u64) -> Self {
        Self { most: most.max(1), ..Self::default() }
    }

    /// Somebody asks for so much more, or no more. Whether the utilisation is another one.
    fn ask(&mut self, mib_s: u64, on: bool) -> bool {
        let square = mib_s * mib_s;
        if on {
            self.asked += mib_s;
            self.squares += square;
        } else {
            self.asked -= mib_s;
            self.squares -= square;
        }
        // Half a step beyond the level's own step on either side is still the same level.
        let halves = self.asked.saturating_mul(2 * STEPS) / self.most;
        if (2 * self.level).saturating_sub(1) <= halves && halves < 2 * self.level + 3 {
            return false;
        }
        let level = (halves / 2).min(MOST);
        std::mem::replace(&mut self.level, level) != level
    }

    /// Additional time, in 1024ths, of one who asks for so much of what is asked for too often.
    fn crowding(&self, mib_s: u64) -> u64 {
        let beyond = self.level.saturating_sub(STEPS) * ONE / STEPS;
        if beyond == 0 || self.squares == 0 {
            return 0;
        }
        // The mean of what is asked for, weighted by itself, is squares / asked: who asks for that is slowed by
        // what is beyond, and then all together get what can be carried.
        let weight = (mib_s * self.asked * ONE / self.squares).min(HEAVIEST * ONE);
        beyond * weight / ONE
    }
}

/// The ways from the CPUs of each node to the memory of each. See the module.
#[derive(Clone, Debug)]
pub struct Paths {
    nodes: usize,
    /// Nanoseconds of a miss without load: from the CPUs of a node, row by row, to the memory of each.
    latency: Vec<u64>,
    /// Of each node, then of each link: from the memory of a node, row by row, to the CPUs of each.
    channels: Vec<Channel>,
    /// Nanoseconds in the queue by utilisation.
    waits: [u64; STEPS as usize],
    local: u64,
}

impl Paths {
    /// The ways of this host, whose nodes carry `node_mib_s`.
    pub fn new(host: &Host, times: &MemoryTimes, node_mib_s: u64) -> Self {
        let nodes = host.nodes.len();
        let links = (0..nodes * nodes).map(|_| Channel::new(times.link_mib_s));
        let wait = |level: usize| {
            let level = level as u64;
            times.service * level / (2 * (STEPS - level))
        };
        Self {
            nodes,
            latency: latencies(host, times),
            channels: (0..nodes).map(|_| Channel::new(node_mib_s)).chain(links).collect(),
            waits: std::array::from_fn(wait),
            local: times.latency,
        }
    }

    /// Nanoseconds of a miss without load from the CPUs of a node to the memory, or the caches, of another.
    pub fn unloaded(&self, from: usize, to: usize) -> u64 {
        self.latency[from * self.nodes + to]
    }

    /// Nanoseconds of a local miss without load.
    pub fn local(&self) -> u64 {
        self.local
    }

    /// The CPUs of a node ask for so much of memory that lies so (1024ths by node), or no more. Whether the
    /// utilisation of anything changed.
    pub fn ask(&mut self, from: usize, part: &[u32], mib_s: u64, on: bool) -> bool {
        let mut changed = false;
        for (to, part) in part.iter().enumerate().filter(|(_, part)| **part > 0) {
            let flow = mib_s * u64::from(*part) / ONE;
            changed |= self.channels[to].ask(flow, on);
            if to != from {
                let link = self.link(to, from);
                changed |= self.channels[link].ask(flow, on);
            }
        }
        changed
    }

    fn link(&self, memory: usize, cpus: usize) -> usize {
        self.nodes + memory * self.nodes + cpus
    }

    /// Nanoseconds of a miss from the CPUs of a node to memory that lies so (1024ths by node), without load.
    pub fn mean(&self, from: usize, part: &[u32]) -> u64 {
        mean(part, |to| self.unloaded(from, to))
    }

    /// The same, queues included.
    pub fn loaded(&self, from: usize, part: &[u32]) -> u64 {
        let wait =
            |channel: usize| self.waits[self.channels[channel].level.min(STEPS - 1) as usize];
        mean(part, |to| {
            let link = if to == from { 0 } else { wait(self.link(to, from)) };
            self.unloaded(from, to) + wait(to) + link
        })
    }

    /// Additional time, in 1024ths, of one who asks for so much, where more is asked for than can be carried.
    pub fn crowding(&self, from: usize, part: &[u32], mib_s: u64) -> u64 {
        let one = |to: usize, part: u64| {
            let flow = mib_s * part / ONE;
            let node = self.channels[to].crowding(flow);
            let link =
                if to == from { 0 } else { self.channels[self.link(to, from)].crowding(flow) };
            node.max(link) * part / ONE
        };
        let parts = part.iter().enumerate().filter(|(_, part)| **part > 0);
        parts.map(|(to, part)| one(to, u64::from(*part))).sum()
    }
}

/// The mean over memory that lies so, 1024ths by node.
fn mean(part: &[u32], of: impl Fn(usize) -> u64) -> u64 {
    let parts = part.iter().enumerate().filter(|(_, part)| **part > 0);
    parts.map(|(to, part)| u64::from(*part) * of(to)).sum::<u64>() / ONE
}

/// Nanoseconds from the CPUs of each node to the memory of each, row by row: the machine's own for the nearest
/// other node and in proportion for those farther away, or where it has none by the firmware's distances.
fn latencies(host: &Host, times: &MemoryTimes) -> Vec<u64> {
    let nodes = host.nodes.len();
    let beyond = |from: usize, to: usize| {
        u64::from(host.distance[from].get(to).copied().unwrap_or(10).saturating_sub(10))
    };
    let pairs = || (0..nodes * nodes).map(|pair| beyond(pair / nodes.max(1), pair % nodes.max(1)));
    let nearest = pairs().filter(|beyond| *beyond > 0).min().unwrap_or(10);
    let far = |beyond: u64| match times.remote.checked_sub(times.latency) {
        Some(more) if times.remote > 0 => more * beyond / nearest,
        _ => times.latency * beyond / 10,
    };
    pairs().map(|beyond| times.latency + far(beyond)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const TIMES: MemoryTimes = MemoryTimes {
        latency: 100,
        remote: 150,
        service: 40,
        in_flight_tenths: 100,
        link_mib_s: 800,
        warmth: false,
    };

    fn paths(times: &MemoryTimes) -> Paths {
        Paths::new(&testing::host(2, 2, 1), times, 1600)
    }

    #[test]
    fn a_machine_has_latencies_of_its_own_or_those_of_its_distances() {
        let own = paths(&TIMES);
        assert_eq!((own.unloaded(0, 0), own.unloaded(0, 1), own.unloaded(1, 0)), (100, 150, 150));
        // The distance is 20.
        assert_eq!(paths(&MemoryTimes { remote: 0, ..TIMES }).unloaded(0, 1), 200);
    }

    #[test]
    fn miss_queues_at_its_node_and_on_the_link_as_in_an_m_d_1_queue() {
        let mut paths = paths(&TIMES);
        assert!(paths.ask(1, &[0, 1024], 800, true), "node 1 is half busy");
        // S * u / (2 * (1 - u)) = 40 * 0.5 / 1 = 20.
        assert_eq!((paths.loaded(1, &[0, 1024]), paths.loaded(1, &[1024, 0])), (120, 150));
        assert!(paths.ask(1, &[1024, 0], 600, true), "node 0 at 6/16, the link from it at 12/16");
        assert_eq!(paths.loaded(0, &[1024, 0]), 100 + 40 * 6 / (2 * 10));
        assert_eq!(paths.loaded(1, &[1024, 0]), 150 + 12 + 40 * 12 / (2 * 4));
        assert!(paths.ask(1, &[1024, 0], 600, false) && paths.ask(1, &[0, 1024], 800, false));
        assert_eq!(paths.loaded(1, &[512, 512]), 125);
    }

    #[test]
    fn small_changes_of_utilisation_change_no_speed() {
        let mut paths = paths(&TIMES);
        assert!(!paths.ask(0, &[1024, 0], 140, true), "1.4 sixteenths is still level 0");
        assert!(paths.ask(0, &[1024, 0], 140, true), "2.8 sixteenths");
        assert!(!paths.ask(0, &[1024, 0], 120, false), "1.6 sixteenths is still level 2");
    }

    #[test]
    fn bandwidth_in_use_never_exceeds_the_capacity() {
        let mut paths = paths(&TIMES);
        for _ in 0..4 {
            paths.ask(0, &[1024, 0], 800, true);
        }
        // Twice of what can be carried is asked for: each takes twice as long.
        assert_eq!(paths.crowding(0, &[1024, 0], 800), ONE);
        // Who asks for a quarter of that is slowed by a quarter as much.
        assert_eq!(paths.crowding(0, &[1024, 0], 200), ONE / 4);
        assert_eq!(paths.crowding(1, &[0, 1024], 800), 0);
    }
}
