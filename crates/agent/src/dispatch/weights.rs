//! What VMs and cgroups weigh for the kernel scheduler: once a second from the tree of cgroups as it has seen it
//! (`bpf/group.bpf.h`) and from what their threads wanted, by [`instep_core::entitled`].

use instep_core::entitled::{self, Group, Vm, Weights};
use instep_host::Root;
use instep_kernel::Placed;
use instep_kernel::loaded::Loaded;
use instep_kernel::seen::{GroupSeen, VmWant, Wants};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

/// What was read before, and what was written.
#[derive(Debug, Default)]
pub(super) struct Weigher {
    at: Option<Instant>,
    /// Runnable time summed over threads, by the cgroup's number, ...
    groups: BTreeMap<u64, u64>,
    /// ... and by the VM's, and when its entry of the table was begun.
    vms: BTreeMap<(u32, u32), u64>,
}

/// For how many threads at a time this makes, of runnable time summed over threads.
fn wants(before: Option<&u64>, now: u64, elapsed_ns: f64) -> f64 {
    let new = before.and_then(|before| now.checked_sub(*before)).filter(|_| elapsed_ns > 0.0);
    new.map_or(0.0, |new| new as f64 / elapsed_ns)
}

/// A `cpu.weight` of 100 as the kernel keeps it (`GROUP_SHARES` of bpf/state.bpf.h).
const SHARES: f64 = 1_048_576.0;

impl Weigher {
    /// Looks at what is wanted and writes what all weigh.
    ///
    /// # Errors
    /// The kernel does not take a weight.
    pub(super) fn look(&mut self, kernel: &mut Loaded, now: Instant) -> Result<(), String> {
        let seen = kernel.wants();
        let elapsed = self.at.replace(now).map_or(0.0, |before| (now - before).as_nanos() as f64);
        let weights = self.weights(&seen, &kernel.table().vms, elapsed);
        let ids = seen.groups.iter().map(|group| group.id);
        let threads: Vec<(u64, u32)> = ids.zip(weights.threads.iter().copied()).collect();
        kernel.weigh(&threads, &weights.vms, weights.mean).map_err(|error| format!("{error:#}"))
    }

    /// What all weigh, in the order of `seen.groups` and `table`.
    fn weights(&mut self, seen: &Wants, table: &[Placed], elapsed_ns: f64) -> Weights {
        let before = &self.groups;
        let group = |seen: &GroupSeen| Group {
            id: seen.id,
            parent: seen.parent,
            weight: seen.shares as f64 * 100.0 / SHARES,
            wants: wants(before.get(&seen.id), seen.want_ns, elapsed_ns),
        };
        let groups: Vec<Group> = seen.groups.iter().map(group).collect();
        let before = &self.vms;
        let vm = |(placed, seen): (&Placed, &VmWant)| Vm {
            group: placed.entry.group,
            weight: placed.entry.own_weight.map(f64::from),
            wants: wants(before.get(&(placed.vm, seen.begun)), seen.wanted_ns, elapsed_ns),
            most: placed.entry.vcpus.len() as f64,
        };
        let vms: Vec<Vm> = table.iter().zip(&seen.vms).map(vm).collect();
        self.groups = seen.groups.iter().map(|group| (group.id, group.want_ns)).collect();
        let read = |(placed, vm): (&Placed, &VmWant)| ((placed.vm, vm.begun), vm.wanted_ns);
        self.vms = table.iter().zip(&seen.vms).map(read).collect();
        entitled::weights(f64::from(seen.cpus), &groups, &vms)
    }
}

/// The number of the cgroup to which the kernel charges a process in this cgroup (a path below the mount point): the nearest one
/// that has a weight; 0 for the root, and where it is not found in the usual places.
pub(super) fn group_at(root: &Root, path: &str) -> u64 {
    let usual = ["sys/fs/cgroup", "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/cpu"];
    let path = path.trim_matches('/');
    usual.into_iter().find_map(|place| weighed(&root.join(place), path)).unwrap_or(0)
}

fn weighed(mount: &Path, path: &str) -> Option<u64> {
    let own = mount.join(path);
    let mut levels = own.ancestors().take_while(|level| *level != mount);
    let has =
        |level: &&Path| ["cpu.weight", "cpu.shares"].iter().any(|file| level.join(file).exists());
    std::fs::metadata(levels.find(has)?).ok().map(|found| found.ino())
}

/// The cgroup of a process that is taken for a VM, as [`group_at`] has it.
pub(super) fn group_of_process(root: &Root, pid: u32) -> u64 {
    let text = std::fs::read_to_string(root.join(format!("proc/{pid}/cgroup"))).unwrap_or_default();
    let of_cpu = |line: &&str| {
        let controllers = line.split(':').nth(1).unwrap_or_default();
        controllers.split(',').any(|name| name == "cpu")
    };
    let line =
        text.lines().find(of_cpu).or_else(|| text.lines().find(|line| line.starts_with("0::")));
    line.and_then(|line| line.splitn(3, ':').nth(2)).map_or(0, |path| group_at(root, path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::Tid;
    use instep_kernel::VmEntry;
    use instep_kernel::table::ThreadId;

    const SECOND: f64 = 1e9;

    fn group(id: u64, parent: u64, shares: u64, want_ns: u64) -> GroupSeen {
        GroupSeen { id, parent, shares, want_ns }
    }

    fn placed(vm: u32, vcpus: u32, group: u64) -> Placed {
        let thread = |tid| ThreadId { tid: Tid(tid), start_ticks: 7 };
        let vcpus = (0..vcpus).map(thread).collect();
        let entry = VmEntry { group, ..VmEntry::new(&format!("vm{vm}"), vcpus) };
        Placed { vm, first_slot: 0, entry }
    }

    #[test]
    fn wants_are_differences_of_what_is_known() {
        assert_eq!(wants(None, 500, SECOND), 0.0);
        assert_eq!(wants(Some(&500), 2_000_000_500, SECOND), 2.0);
        assert_eq!(wants(Some(&500), 3, SECOND), 0.0, "an entry that was made anew");
        assert_eq!(wants(Some(&500), 600, 0.0), 0.0);
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
        let _ = weigher.weights(&seen(0), &table, 0.0);
        let weights = weigher.weights(&seen(1_000_000_000), &table, SECOND);
        assert_eq!((weights.vms[0], weights.threads[2]), (1000, 750), "{weights:?}");
        // Its entry was begun anew: nothing is known of what it wants, but what it would have.
        let mut anew = seen(2_000_000_000);
        anew.vms[0] = VmWant { begun: 2, wanted_ns: 0 };
        let weights = weigher.weights(&anew, &table, SECOND);
        assert_eq!((weights.vms[0], weights.threads[2]), (1000, 1000), "{weights:?}");
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
        }
        let number = |path: &str| std::fs::metadata(at(path)).unwrap().ino();
        let scope = number("machine.slice/a.scope");
        assert_eq!(group_at(&root, "/machine.slice/a.scope"), scope);
        assert_eq!(group_at(&root, "/machine.slice/a.scope/libvirt/vcpu0"), scope);
        assert_eq!((group_at(&root, "/user.slice/session"), group_at(&root, "/")), (0, 0));
        std::fs::write(
            dir.path().join("proc/7/cgroup"),
            "3:cpu,cpuacct:/machine.slice\n0::/user.slice\n",
        )
        .unwrap();
        assert_eq!(group_of_process(&root, 7), number("machine.slice"));
        std::fs::write(dir.path().join("proc/7/cgroup"), "0::/machine.slice/a.scope\n").unwrap();
        assert_eq!((group_of_process(&root, 7), group_of_process(&root, 8)), (scope, 0));
    }
}
