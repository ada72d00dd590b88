//! Demand of VMs and cgroups, measured between two looks at their counters of runnable time, and their weights by it.

use super::{EntitledVm, Group, Weights, weights};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The least time over which what is wanted is measured: a thread that waits or does not just now would change much.
const REST: Duration = Duration::from_millis(500);

/// The same for the first time, when anything is better than nothing. With 200 ms a VM that came to a crowded host waited for up to
/// 228 ms, with 300 as with 500 ms for 99 (simulated, 16 arrivals).
const FIRST: Duration = Duration::from_millis(300);

/// A cgroup with its counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeenGroup {
    /// As [`Group::id`].
    pub id: u64,
    /// As [`Group::parent`].
    pub parent: u64,
    /// As [`Group::weight`].
    pub weight: f64,
    /// Time for which its threads that belong to no VM were runnable, summed over them, nanoseconds.
    pub wanted_ns: u64,
    /// As [`Group::most`].
    pub most: f64,
}

/// A VM with its counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeenVm<K> {
    /// Names it as long as its counter goes on.
    pub key: K,
    /// As [`EntitledVm::group`].
    pub group: u64,
    /// As [`EntitledVm::weight`].
    pub weight: f64,
    /// How many it has.
    pub vcpus: u32,
    /// Time for which its threads were runnable, summed over them, nanoseconds.
    pub wanted_ns: u64,
}

/// Demand as it was measured before.
#[derive(Clone, Debug)]
pub struct DemandTracker<K> {
    /// The last look.
    at: Option<Duration>,
    groups: BTreeMap<u64, Wanted>,
    vms: BTreeMap<K, Wanted>,
}

impl<K> Default for DemandTracker<K> {
    fn default() -> Self {
        Self { at: None, groups: BTreeMap::new(), vms: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> DemandTracker<K> {
    /// Whether the last look is at least 500 ms ago. `now` is a clock of the caller that never goes back.
    #[must_use]
    pub fn is_rested(&self, now: Duration) -> bool {
        self.at.is_none_or(|at| now.saturating_sub(at) >= REST)
    }

    /// Whether something is new, as all is just after loading, and can be measured now.
    #[must_use]
    pub fn measures_first(&self, now: Duration) -> bool {
        let mut all = self.groups.values().chain(self.vms.values());
        self.at.is_none_or(|at| now.saturating_sub(at) >= FIRST)
            && (self.groups.is_empty() || all.any(Wanted::is_new))
    }

    /// Weights on `cpus` CPUs by the demand until `now`, in the order given. `top` holds the VMs whose cgroup is not
    /// given: the one without a parent of the least number.
    pub fn update(
        &mut self,
        cpus: f64,
        groups: &[SeenGroup],
        vms: &[SeenVm<K>],
        now: Duration,
    ) -> Weights {
        let last = self.at.replace(now);
        self.measure(groups, vms, last, now);
        let top = groups.iter().filter(|group| group.parent == 0).map(|group| group.id).min();
        let known: BTreeSet<u64> = groups.iter().map(|group| group.id).collect();
        let group = |seen: &SeenGroup| Group {
            id: seen.id,
            parent: seen.parent,
            weight: seen.weight,
            wants: self.groups[&seen.id].threads,
            most: seen.most,
        };
        let vm = |seen: &SeenVm<K>| EntitledVm {
            group: Some(seen.group).filter(|id| known.contains(id)).or(top).unwrap_or(0),
            weight: seen.weight,
            wants: self.vms[&seen.key].threads,
            most: f64::from(seen.vcpus),
        };
        let groups: Vec<Group> = groups.iter().map(group).collect();
        let vms: Vec<EntitledVm> = vms.iter().map(vm).collect();
        weights(cpus, &groups, &vms)
    }

    fn measure(
        &mut self,
        groups: &[SeenGroup],
        vms: &[SeenVm<K>],
        last: Option<Duration>,
        now: Duration,
    ) {
        let mut joined: BTreeMap<u64, u32> = BTreeMap::new();
        for vm in vms.iter().filter(|vm| !self.vms.contains_key(&vm.key)) {
            *joined.entry(vm.group).or_default() += vm.vcpus;
        }
        let of_group = |seen: &SeenGroup| {
            let begin = || Wanted::begin(seen.wanted_ns, last, now);
            let before = self.groups.get(&seen.id);
            let wanted = match joined.get(&seen.id) {
                Some(vcpus) => {
                    before.copied().unwrap_or_else(begin).without(*vcpus, seen.wanted_ns, now)
                }
                None => before.map_or_else(begin, |before| before.again(seen.wanted_ns, now)),
            };
            (seen.id, wanted)
        };
        self.groups = groups.iter().map(of_group).collect();
        let of_vm = |seen: &SeenVm<K>| {
            let begin = || Wanted::begin(seen.wanted_ns, None, now);
            let before = self.vms.get(&seen.key);
            (seen.key, before.map_or_else(begin, |before| before.again(seen.wanted_ns, now)))
        };
        self.vms = vms.iter().map(of_vm).collect();
    }
}

/// Demand of threads, by a counter of the time for which they were runnable, summed over them.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    counter: u64,
    /// When that was read.
    at: Duration,
    /// For how many threads at a time the counter grew until then.
    threads: f64,
    known: Known,
}

/// How well it is known what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// A VM was just noticed whose time was charged here, and is until its threads stop: the first measure does not count.
    Joined,
    /// It was not measured yet.
    New,
    Measured,
}

impl Wanted {
    /// It is new: its counter began with 0 after the `last` look.
    fn begin(counter: u64, last: Option<Duration>, now: Duration) -> Self {
        let elapsed = last.map_or(0.0, |last| now.saturating_sub(last).as_nanos() as f64);
        let threads = if elapsed > 0.0 { counter as f64 / elapsed } else { 0.0 };
        Self { counter, at: now, threads, known: Known::New }
    }

    /// The same now. What is read again too early stays as it was measured before.
    fn again(&self, counter: u64, now: Duration) -> Self {
        let elapsed = now.saturating_sub(self.at);
        match counter.checked_sub(self.counter) {
            None => Self::begin(counter, None, now),
            Some(_) if elapsed < if self.is_new() { FIRST } else { REST } => *self,
            Some(grown) => {
                let threads = grown as f64 / elapsed.as_nanos() as f64;
                let (threads, known) = match self.known {
                    Known::Joined => (self.threads, Known::New),
                    Known::New | Known::Measured => (threads, Known::Measured),
                };
                Self { counter, at: now, threads, known }
            }
        }
    }

    fn is_new(&self) -> bool {
        self.known != Known::Measured
    }

    /// Measured from now on, as a VM of so many vCPUs is counted apart that may have been counted here.
    fn without(&self, vcpus: u32, counter: u64, now: Duration) -> Self {
        let threads = (self.threads - f64::from(vcpus)).max(0.0);
        Self { counter, at: now, threads, known: Known::Joined }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn group(id: u64, parent: u64, weight: f64, wanted_ns: u64) -> SeenGroup {
        SeenGroup { id, parent, weight, wanted_ns, most: f64::INFINITY }
    }

    fn vm(key: u32, group: u64, vcpus: u32, wanted_ns: u64) -> SeenVm<u32> {
        SeenVm { key, group, weight: 100.0, vcpus, wanted_ns }
    }

    #[test]
    fn wants_are_differences_of_what_is_known() {
        let first = Wanted::begin(500, None, at(0));
        assert_eq!(first.threads, 0.0);
        let again = |counter| first.again(counter, at(1000)).threads;
        assert_eq!(again(2 * SECOND + 500), 2.0);
        assert_eq!(again(3), 0.0, "an entry that was made anew");
    }

    #[test]
    fn wants_are_measured_over_half_a_second_at_least() {
        let first =
            Wanted::begin(0, None, at(0)).again(SECOND, at(500)).again(2 * SECOND, at(1000));
        // All threads sleep just now, as a VM is noticed that came.
        let early = first.again(2 * SECOND, at(1100));
        assert_eq!(early.threads, 2.0, "100 ms are too short to measure");
        let later = early.again(2_400_000_000, at(1800));
        assert_eq!(later.threads, 0.5, "over all of the 800 ms");
    }

    #[test]
    fn a_vm_and_a_service_weigh_by_their_slices() {
        // A slice of weight 100 with a VM, and a service of weight 300 in the root.
        let groups = |want: u64| {
            [group(2, 1, 100.0, 0), group(3, 2, 100.0, 0), group(4, 1, 300.0, 4 * want)]
        };
        let mut tracker = DemandTracker::default();
        let _ = tracker.update(4.0, &groups(0), &[vm(1, 3, 4, 0)], at(0));
        assert!(!tracker.measures_first(at(200)), "too early");
        assert!(tracker.measures_first(at(300)), "at the first look nothing is known");
        let weights = tracker.update(4.0, &groups(SECOND), &[vm(1, 3, 4, 4 * SECOND)], at(1000));
        assert_eq!((weights.vms[0], weights.threads[2]), (1000, 750), "{weights:?}");
        // Its entry was begun anew: nothing is known of what it wants, but what it would have.
        let weights = tracker.update(4.0, &groups(2 * SECOND), &[vm(2, 3, 4, 0)], at(2000));
        assert_eq!((weights.vms[0], weights.threads[2]), (1000, 1000), "{weights:?}");
        assert!(tracker.measures_first(at(2300)));
    }

    #[test]
    fn a_new_vm_weighs_by_its_cgroup_from_the_first_look_on() {
        // Its four vCPUs wanted CPUs for a second while nobody knew that they are a VM's.
        let groups = |want: u64| [group(3, 0, 100.0, 4 * want), group(4, 0, 100.0, 4 * want)];
        let mut tracker = DemandTracker::default();
        let _ = tracker.update(4.0, &groups(0), &[], at(0));
        let _ = tracker.update(4.0, &groups(SECOND), &[], at(1000));
        let weights = tracker.update(4.0, &groups(2 * SECOND), &[vm(7, 3, 4, 0)], at(2000));
        assert_eq!(weights.vms, [2000], "half of four CPUs");
    }

    #[test]
    fn cgroup_that_was_not_there_at_last_look_is_measured_since_then() {
        let mut tracker = DemandTracker::<u32>::default();
        let _ = tracker.update(4.0, &[], &[], at(0));
        assert!(tracker.measures_first(at(300)), "nothing was seen yet");
        let groups = [group(2, 0, 100.0, SECOND), group(3, 0, 300.0, SECOND)];
        let weights = tracker.update(4.0, &groups, &[], at(400));
        assert_eq!(weights.threads, [600, 1000], "2.5 threads each");
        let mut then = |ms: u64| {
            assert!(tracker.measures_first(at(ms)), "{ms}");
            let wanted_ns = SECOND + (ms - 400) * 4_000_000;
            let groups = groups.map(|group| SeenGroup { wanted_ns, ..group });
            tracker.update(4.0, &groups, &[], at(ms)).threads
        };
        assert_eq!(then(800), [250, 750], "four threads each");
        assert!(!tracker.measures_first(at(9000)));
    }

    #[test]
    fn services_beside_a_new_vm_in_a_cgroup_keep_their_weight() {
        // Eight threads of services, and a VM of two vCPUs in the same cgroup, noticed 200 ms after a look.
        let groups = |want: u64| [group(3, 0, 100.0, want)];
        let mut tracker = DemandTracker::default();
        let _ = tracker.update(4.0, &groups(0), &[], at(0));
        let before = tracker.update(4.0, &groups(8 * SECOND), &[], at(1000)).threads[0];
        assert_eq!(before, 500);
        let now = tracker.update(4.0, &groups(9 * SECOND), &[vm(7, 3, 2, 0)], at(1200));
        assert_eq!(now.threads[0], 667, "as of six threads, not of one: {now:?}");
        // Threads of the VM that ran on were charged to the cgroup for 50 ms.
        let groups =
            |ms: u64| [group(3, 0, 100.0, 9 * SECOND + 100_000_000 + (ms - 1200) * 8_000_000)];
        let mut then = |ms: u64| {
            assert!(tracker.measures_first(at(ms)));
            let vm = vm(7, 3, 2, (ms - 1250) * 2_000_000);
            tracker.update(4.0, &groups(ms), &[vm], at(ms)).threads[0]
        };
        assert_eq!(then(1500), 571, "of six threads still, and the VM counts as one");
        assert_eq!(then(1800), 444, "of eight");
    }
}
