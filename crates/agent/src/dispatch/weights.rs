//! What VMs and cgroups weigh for the kernel scheduler: once a second from the tree of cgroups as it has seen it
//! (`bpf/group.bpf.h`) and from what their threads wanted, by [`instep_core::entitled`].

use instep_core::entitled::{self, EntitledVm, Group, Weights};
use instep_host::Root;
use instep_kernel::Placed;
use instep_kernel::loaded::Loaded;
use instep_kernel::stats::{GroupSeen, VmWant, Wants};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What was read before.
#[derive(Debug, Default)]
pub(super) struct Weigher {
    /// The last look.
    at: Option<Instant>,
    /// What is wanted, by the cgroup's number, ...
    groups: BTreeMap<u64, Wanted>,
    /// ... and by the VM's, and when its entry of the table was begun.
    vms: BTreeMap<(u32, u32), Wanted>,
}

/// What threads want, by a counter of the time for which they were runnable, summed over them.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    counter: u64,
    /// When that was read.
    at: Instant,
    /// For how many threads at a time the counter grew until then.
    threads: f64,
}

impl Wanted {
    /// Of which nothing is known yet.
    fn begin(counter: u64, now: Instant) -> Self {
        Self { counter, at: now, threads: 0.0 }
    }

    /// The same now. What is read again too early stays as it was measured before: a thread that waits or does not
    /// just now would change much.
    fn again(before: Option<&Self>, counter: u64, now: Instant) -> Self {
        let begin = Self::begin(counter, now);
        let Some(before) = before else { return begin };
        let elapsed = now.saturating_duration_since(before.at);
        match counter.checked_sub(before.counter) {
            None => begin,
            Some(_) if elapsed < REST => *before,
            Some(grown) => Self { threads: grown as f64 / elapsed.as_nanos() as f64, ..begin },
        }
    }
}

/// A `cpu.weight` of 100 as the kernel keeps it (`GROUP_SHARES` of bpf/state.bpf.h).
const SHARES: f64 = 1_048_576.0;

/// Where cgroups with CPU settings are mounted, below the root directory.
const MOUNTS: [&str; 3] = ["sys/fs/cgroup", "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/cpu"];

/// The least time over which what is wanted is measured, and between two looks for a changed weight.
const REST: Duration = Duration::from_millis(500);

impl Weigher {
    /// Whether the last look is long enough ago for another one.
    pub(super) fn is_rested(&self, now: Instant) -> bool {
        self.at.is_none_or(|at| now.saturating_duration_since(at) >= REST)
    }

    /// Looks at what is wanted and writes what all weigh.
    ///
    /// # Errors
    /// The kernel does not take a weight.
    pub(super) fn update(&mut self, kernel: &mut Loaded, now: Instant) -> Result<(), String> {
        let seen = kernel.wants();
        self.at = Some(now);
        let weights = self.weights(&seen, &kernel.table().vms, now);
        let ids = seen.groups.iter().map(|group| group.id);
        let threads: Vec<(u64, u32)> = ids.zip(weights.threads.iter().copied()).collect();
        kernel
            .set_weights(&threads, &weights.vms, weights.mean)
            .map_err(|error| format!("{error:#}"))
    }

    /// What all weigh, in the order of `seen.groups` and `table`.
    fn weights(&mut self, seen: &Wants, table: &[Placed], now: Instant) -> Weights {
        // A VM that has a cgroup to itself has its own weight in this one's place.
        let own = |placed: &Placed| {
            let entry = &placed.entry;
            Some((entry.group, entry.own_weight.filter(|_| entry.alone)?))
        };
        let own: BTreeMap<u64, u32> = table.iter().filter_map(own).collect();
        // What lies in no known cgroup lies in the root, which has the least number.
        let top = seen.groups.iter().filter(|group| group.parent == 0).map(|group| group.id).min();
        let known: BTreeSet<u64> = seen.groups.iter().map(|group| group.id).collect();
        // What threads of a VM wanted before it was known was charged to its cgroup, where they count no more.
        let is_new =
            |(placed, vm): &(&Placed, &VmWant)| !self.vms.contains_key(&(placed.vm, vm.begun));
        let joined: BTreeSet<u64> = table
            .iter()
            .zip(&seen.vms)
            .filter(is_new)
            .map(|(placed, _)| placed.entry.group)
            .collect();
        let group_wants = |seen: &GroupSeen| {
            let before = self.groups.get(&seen.id).filter(|_| !joined.contains(&seen.id));
            (seen.id, Wanted::again(before, seen.want_ns, now))
        };
        self.groups = seen.groups.iter().map(group_wants).collect();
        let vm_wants = |(placed, seen): (&Placed, &VmWant)| {
            let key = (placed.vm, seen.begun);
            (key, Wanted::again(self.vms.get(&key), seen.wanted_ns, now))
        };
        self.vms = table.iter().zip(&seen.vms).map(vm_wants).collect();
        let group = |seen: &GroupSeen| Group {
            id: seen.id,
            parent: seen.parent,
            weight: own
                .get(&seen.id)
                .map_or(seen.shares as f64 * 100.0 / SHARES, |weight| f64::from(*weight)),
            wants: self.groups[&seen.id].threads,
            most: Group::limit(seen.most),
        };
        let groups: Vec<Group> = seen.groups.iter().map(group).collect();
        let vm = |(placed, seen): (&Placed, &VmWant)| EntitledVm {
            group: Some(placed.entry.group).filter(|id| known.contains(id)).or(top).unwrap_or(0),
            weight: placed
                .entry
                .own_weight
                .filter(|_| !placed.entry.alone)
                .map_or(100.0, f64::from),
            wants: self.vms[&(placed.vm, seen.begun)].threads,
            most: placed.entry.vcpus.len() as f64,
        };
        let vms: Vec<EntitledVm> = table.iter().zip(&seen.vms).map(vm).collect();
        entitled::weights(f64::from(seen.cpus), &groups, &vms)
    }
}

/// Names the cgroup, by its inode number, whose CPU limit found no room; `None` where it is not found.
pub(super) fn find_lost_limit(root: &Root, id: u64) -> Option<String> {
    // That of version 2 holds the others.
    MOUNTS.iter().rev().find_map(|mount| {
        let mount = root.join(mount);
        let path = find_directory(&mount, id)?;
        let path = path.strip_prefix(&mount).ok()?;
        Some(format!("there is no room for the CPU limit of the cgroup /{}", path.display()))
    })
}

/// The most directories that are looked through: any user may make some.
const MOST_DIRECTORIES: usize = 200_000;

/// The directory of this inode number below another, as a cgroup is known by its own.
fn find_directory(top: &Path, id: u64) -> Option<PathBuf> {
    let mut left = vec![top.to_owned()];
    for _ in 0..MOST_DIRECTORIES {
        let dir = left.pop()?;
        // Cgroups may come and go meanwhile.
        if std::fs::metadata(&dir).is_ok_and(|found| found.ino() == id) {
            return Some(dir);
        }
        let entries = std::fs::read_dir(&dir).into_iter().flatten().filter_map(Result::ok);
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        left.extend(below.map(|entry| entry.path()));
    }
    None
}

/// The cgroup to which the kernel charges what lies at a path below the mount point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Its inode number; 0 for the root, and where it is not found in the usual places.
    pub(super) group: u64,
    /// Whether it is the one of this path, and no process but this one is listed there.
    pub(super) alone: bool,
}

/// Where a process is charged that lies in this cgroup: the nearest one that has a weight.
pub(super) fn place(root: &Root, path: &str, pid: u32) -> Place {
    let path = path.trim_matches('/');
    MOUNTS.into_iter().find_map(|at| weighed(&root.join(at), path, pid)).unwrap_or_default()
}

fn weighed(mount: &Path, path: &str, pid: u32) -> Option<Place> {
    let own = mount.join(path);
    let mut levels = own.ancestors().take_while(|level| *level != mount);
    let has =
        |level: &&Path| ["cpu.weight", "cpu.shares"].iter().any(|file| level.join(file).exists());
    let level = levels.find(has)?;
    // That of a manager of VMs lists none itself: they lie below it.
    let listed = std::fs::read_to_string(level.join("cgroup.procs")).unwrap_or_default();
    let alone = level == own && listed.lines().all(|other| other.trim().parse() == Ok(pid));
    std::fs::metadata(level).ok().map(|found| Place { group: found.ino(), alone })
}

/// The same for a process that is taken for a VM.
pub(super) fn place_of_process(root: &Root, pid: u32) -> Place {
    let text = std::fs::read_to_string(root.join(format!("proc/{pid}/cgroup"))).unwrap_or_default();
    let of_cpu = |line: &&str| {
        let controllers = line.split(':').nth(1).unwrap_or_default();
        controllers.split(',').any(|name| name == "cpu")
    };
    let line =
        text.lines().find(of_cpu).or_else(|| text.lines().find(|line| line.starts_with("0::")));
    line.and_then(|line| line.splitn(3, ':').nth(2))
        .map_or(Place::default(), |path| place(root, path, pid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::Tid;
    use instep_kernel::VmEntry;
    use instep_kernel::table::ThreadId;

    /// Moments a second apart.
    fn seconds() -> [Instant; 3] {
        let begin = Instant::now();
        [0, 1, 2].map(|seconds| begin + Duration::from_secs(seconds))
    }

    fn group(id: u64, parent: u64, shares: u64, want_ns: u64) -> GroupSeen {
        GroupSeen { id, parent, shares, most: 0, want_ns }
    }

    fn placed(vm: u32, vcpus: u32, group: u64) -> Placed {
        let thread = |tid| ThreadId { tid: Tid(tid), start_ticks: 7 };
        let vcpus = (0..vcpus).map(thread).collect();
        let entry = VmEntry { group, ..VmEntry::new(&format!("vm{vm}"), vcpus) };
        Placed { vm, first_slot: 0, entry }
    }

    #[test]
    fn wants_are_differences_of_what_is_known() {
        let [begin, then, _] = seconds();
        let first = Wanted::again(None, 500, begin);
        assert_eq!(first.threads, 0.0);
        let again = |counter| Wanted::again(Some(&first), counter, then).threads;
        assert_eq!(again(2_000_000_500), 2.0);
        assert_eq!(again(3), 0.0, "an entry that was made anew");
    }

    #[test]
    fn wants_are_measured_over_half_a_second_at_least() {
        let [begin, then, _] = seconds();
        let after = |ms| then + Duration::from_millis(ms);
        let first = Wanted::again(Some(&Wanted::begin(0, begin)), 2_000_000_000, then);
        // All threads sleep just now, as a VM is noticed that came.
        let early = Wanted::again(Some(&first), 2_000_000_000, after(100));
        assert_eq!(early.threads, 2.0, "nothing can be told of 100 ms");
        let later = Wanted::again(Some(&early), 2_400_000_000, after(800));
        assert_eq!(later.threads, 0.5, "over all of the 800 ms");
    }

    #[test]
    fn a_vm_and_a_service_weigh_by_their_slices() {
        // A slice of weight 100 with a VM, and a service of weight 300 in the root.
        let shares = 1 << 20;
        let seen = |want: u64| Wants {
            cpus: 4,
            groups: vec![
                group(2, 1, shares, 0),
                group(3, 2, shares, 0),
                group(4, 1, 3 * shares, 4 * want),
            ],
            vms: vec![VmWant { begun: 1, wanted_ns: 4 * want }],
        };
        let mut weigher = Weigher::default();
        let table = [placed(1, 4, 3)];
        let [begin, second, third] = seconds();
        let _ = weigher.weights(&seen(0), &table, begin);
        let weights = weigher.weights(&seen(1_000_000_000), &table, second);
        assert_eq!((weights.vms[0], weights.threads[2]), (1000, 750), "{weights:?}");
        // Its entry was begun anew: nothing is known of what it wants, but what it would have.
        let mut anew = seen(2_000_000_000);
        anew.vms[0] = VmWant { begun: 2, wanted_ns: 0 };
        let weights = weigher.weights(&anew, &table, third);
        assert_eq!((weights.vms[0], weights.threads[2]), (1000, 1000), "{weights:?}");
    }

    #[test]
    fn a_new_vm_weighs_by_its_cgroup_from_the_first_look_on() {
        // Its four vCPUs wanted CPUs for a second while nobody knew that they are a VM's.
        let shares = 1 << 20;
        let seen = |want: u64, vms: Vec<VmWant>| Wants {
            cpus: 4,
            groups: vec![group(3, 0, shares, 4 * want), group(4, 0, shares, 4 * want)],
            vms,
        };
        let mut weigher = Weigher::default();
        let [begin, second, _] = seconds();
        let _ = weigher.weights(&seen(0, Vec::new()), &[], begin);
        let new = vec![VmWant { begun: 7, wanted_ns: 0 }];
        let weights = weigher.weights(&seen(1_000_000_000, new), &[placed(1, 4, 3)], second);
        assert_eq!(weights.vms, [2000], "half of four CPUs");
    }

    #[test]
    fn own_weights_count_in_the_cgroup_s_place_or_within_it() {
        let shares = 1 << 20;
        let weights = |alone: bool, at: u64| {
            let seen = |want: u64| Wants {
                cpus: 4,
                groups: vec![
                    group(1, 0, shares, 0),
                    group(3, 1, shares, 0),
                    group(4, 1, shares, 4 * want),
                ],
                vms: vec![VmWant { begun: 1, wanted_ns: 4 * want }],
            };
            let mut vm = placed(1, 4, at);
            (vm.entry.own_weight, vm.entry.alone) = (Some(300), alone);
            let mut weigher = Weigher::default();
            let [begin, second, _] = seconds();
            let _ = weigher.weights(&seen(0), &[vm.clone()], begin);
            weigher.weights(&seen(1_000_000_000), &[vm], second).vms[0]
        };
        assert_eq!(weights(true, 3), 3000, "300 beside 100");
        assert_eq!(weights(false, 3), 2000, "alone in a cgroup of weight 100");
        assert_eq!(weights(false, 77), 3000, "in the root, beside that of weight 100");
    }

    #[test]
    fn a_limit_that_finds_no_room_is_told_by_its_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("sys/fs/cgroup/cpu/machine.slice/a.scope");
        std::fs::create_dir_all(&at).unwrap();
        let id = std::fs::metadata(&at).unwrap().ino();
        let told = find_lost_limit(&Root::at(dir.path()), id).unwrap();
        assert!(told.ends_with("the cgroup /machine.slice/a.scope"), "{told}");
        assert_eq!(find_lost_limit(&Root::at(dir.path()), 0), None);
    }

    #[test]
    fn the_group_of_a_path_is_the_nearest_with_a_weight() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let at = |path: &str| dir.path().join("sys/fs/cgroup").join(path);
        std::fs::create_dir_all(at("machine.slice/a.scope/libvirt/vcpu0")).unwrap();
        std::fs::create_dir_all(at("user.slice/session")).unwrap();
        std::fs::create_dir_all(dir.path().join("proc/7")).unwrap();
        for path in ["machine.slice", "machine.slice/a.scope"] {
            std::fs::write(at(path).join("cpu.weight"), "100\n").unwrap();
            std::fs::write(at(path).join("cgroup.procs"), "").unwrap();
        }
        let number = |path: &str| std::fs::metadata(at(path)).unwrap().ino();
        let scope = number("machine.slice/a.scope");
        let alone = |alone| Place { group: scope, alone };
        assert_eq!(place(&root, "/machine.slice/a.scope", 7), alone(true));
        assert_eq!(place(&root, "/machine.slice/a.scope/libvirt/vcpu0", 7), alone(false));
        assert_eq!(place(&root, "/user.slice/session", 7), Place::default());
        assert_eq!(place(&root, "/", 7), Place::default());
        std::fs::write(at("machine.slice/a.scope/cgroup.procs"), "7\n").unwrap();
        assert_eq!(place(&root, "/machine.slice/a.scope", 7), alone(true));
        std::fs::write(at("machine.slice/a.scope/cgroup.procs"), "7\n9\n").unwrap();
        assert_eq!(place(&root, "/machine.slice/a.scope", 7), alone(false));
        let cgroup = dir.path().join("proc/7/cgroup");
        std::fs::write(&cgroup, "3:cpu,cpuacct:/machine.slice\n0::/user.slice\n").unwrap();
        assert_eq!(place_of_process(&root, 7).group, number("machine.slice"));
        std::fs::write(&cgroup, "0::/machine.slice/a.scope\n").unwrap();
        assert_eq!(
            (place_of_process(&root, 7), place_of_process(&root, 8)),
            (alone(false), Place::default())
        );
    }
}
