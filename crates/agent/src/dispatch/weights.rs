//! What VMs and cgroups weigh for the kernel scheduler: once a second from the tree of cgroups as it has seen it
//! (`bpf/group.bpf.h`) and from what their threads wanted, by [`instep_core::entitled`].

use super::limits::MOUNTS;
use instep_core::entitled::{self, Group, SeenGroup, SeenVm, Weights};
use instep_host::Root;
use instep_kernel::Placed;
use instep_kernel::loaded::Loaded;
use instep_kernel::stats::{GroupSeen, VmWant, Wants};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Weighs VMs and cgroups of a loaded scheduler.
#[derive(Debug)]
pub(super) struct WeightFeeder {
    /// From when times are counted.
    begun: Instant,
    /// VMs by their number and when their entry of the table was begun.
    seen: entitled::DemandTracker<(u32, u32)>,
}

/// A `cpu.weight` of 100 as the kernel keeps it (`GROUP_SHARES` of bpf/state.bpf.h).
const SHARES: f64 = 1_048_576.0;

impl WeightFeeder {
    pub(super) fn new() -> Self {
        Self { begun: Instant::now(), seen: entitled::DemandTracker::default() }
    }

    /// Whether the last look is long enough ago for another one.
    pub(super) fn is_rested(&self) -> bool {
        self.seen.is_rested(self.begun.elapsed())
    }

    /// Whether another look tells more of something that is new.
    pub(super) fn measures_first(&self) -> bool {
        self.seen.measures_first(self.begun.elapsed())
    }

    /// Looks at what is wanted and writes what all weigh.
    ///
    /// # Errors
    /// The kernel does not take a weight.
    pub(super) fn update(&mut self, kernel: &mut Loaded) -> Result<(), String> {
        let seen = kernel.wants();
        let weights = self.weights(&seen, &kernel.table().vms, self.begun.elapsed());
        let ids = seen.groups.iter().map(|group| group.id);
        let threads: Vec<(u64, u32)> = ids.zip(weights.threads.iter().copied()).collect();
        kernel
            .set_weights(&threads, &weights.vms, weights.mean)
            .map_err(|error| format!("{error:#}"))
    }

    /// What all weigh, in the order of `seen.groups` and `table`.
    fn weights(&mut self, seen: &Wants, table: &[Placed], now: Duration) -> Weights {
        // A VM that has a cgroup to itself has its own weight in this one's place.
        let own = |placed: &Placed| {
            let entry = &placed.entry;
            Some((entry.group, entry.own_weight.filter(|_| entry.alone)?))
        };
        let own: BTreeMap<u64, u32> = table.iter().filter_map(own).collect();
        let group = |seen: &GroupSeen| SeenGroup {
            id: seen.id,
            parent: seen.parent,
            weight: own
                .get(&seen.id)
                .map_or(seen.shares as f64 * 100.0 / SHARES, |weight| f64::from(*weight)),
            wanted_ns: seen.want_ns,
            most: Group::limit(seen.most),
        };
        let vm = |(placed, seen): (&Placed, &VmWant)| SeenVm {
            key: (placed.vm, seen.begun),
            group: placed.entry.group,
            weight: placed
                .entry
                .own_weight
                .filter(|_| !placed.entry.alone)
                .map_or(100.0, f64::from),
            vcpus: placed.entry.vcpus.len() as u32,
            wanted_ns: seen.wanted_ns,
        };
        let groups: Vec<SeenGroup> = seen.groups.iter().map(group).collect();
        let vms: Vec<_> = table.iter().zip(&seen.vms).map(vm).collect();
        self.seen.update(f64::from(seen.cpus), &groups, &vms, now)
    }
}

/// The cgroup to which the kernel charges what lies at a path below the mount point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Its inode number; 0 for the root, and where it is not found in the usual places.
    pub(super) group: u64,
    /// Whether it is the one of this path, and no process but this one is listed there.
    pub(super) alone: bool,
    /// Its path below the mount point, without a slash at either end.
    pub(super) path: String,
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
    let path = level.strip_prefix(mount).ok()?.display().to_string();
    std::fs::metadata(level).ok().map(|found| Place { group: found.ino(), alone, path })
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
            let mut feeder = WeightFeeder::new();
            let _ = feeder.weights(&seen(0), &[vm.clone()], Duration::ZERO);
            feeder.weights(&seen(1_000_000_000), &[vm], Duration::from_secs(1)).vms[0]
        };
        assert_eq!(weights(true, 3), 3000, "300 beside 100");
        assert_eq!(weights(false, 3), 2000, "alone in a cgroup of weight 100");
        assert_eq!(weights(false, 77), 3000, "in the root, beside that of weight 100");
    }

    #[test]
    fn the_group_of_a_path_is_the_nearest_with_a_weight() {
        let dir = instep_madehost::scratch_dir().unwrap();
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
        let path = "machine.slice/a.scope".to_owned();
        let alone = |alone| Place { group: scope, alone, path: path.clone() };
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
