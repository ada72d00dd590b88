//! The cgroup of a VM: which one it is, its weight, quota, CPUs and memory nodes, on the unified
//! hierarchy and on version 1.
//!
//! libvirt puts the threads of a VM into cgroups below the VM's scope; the VM's cgroup is the
//! scope. What the slices above it weigh counts in [`shares`](super::shares).

use super::facts::{Manager, VcpuFacts};
use super::files::Reader;
use super::quota::{self, Quota};
use super::shares::GroupWeight;
use crate::root::Root;
use instep_core::idset::{CpuSet, IdSet, NodeSet};
use instep_core::units::{Id, Nanos, Tid};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The most that is read of a cgroup file.
const MAX_CGROUP_FILE: usize = 64 << 10;
/// How far up a missing file is looked for.
const MAX_DEPTH: usize = 16;

/// The cgroups of a process by hierarchy, each beginning with `/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Version 2 (`0::PATH`).
    pub unified: Option<String>,
    /// Version 1 controller `cpu`.
    pub cpu: Option<String>,
    /// Version 1 controller `cpuset`.
    pub cpuset: Option<String>,
    /// Version 1 controller `memory`.
    pub memory: Option<String>,
    /// Version 1 hierarchy of systemd, which has no controller.
    pub systemd: Option<String>,
}

/// Parses `/proc/PID/cgroup` (cgroups(7)) and cuts every path to the VM's own cgroup. Paths that
/// lead out of the reader's namespace (`/../`) are dropped: no file can be found by them.
pub fn membership(text: &str) -> Membership {
    hierarchies(text, vm_path)
}

/// The whole paths of a process in all hierarchies, each once, without roots.
pub fn whole_paths(text: &str) -> Vec<String> {
    let Membership { unified, cpu, cpuset, memory, systemd } = hierarchies(text, |path| path);
    let all = [unified, systemd, cpu, cpuset, memory].into_iter().flatten();
    let mut paths: Vec<String> = all.filter(|path| path != "/").collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// Whether the cgroups of a process lie outside the cgroup namespace in which they were read: their paths
/// begin with `/..` then (cgroup_namespaces(7)).
pub fn lead_outside(text: &str) -> bool {
    let mut paths = text.lines().take(64).filter_map(|line| line.splitn(3, ':').nth(2));
    paths.any(|path| path == "/.." || path.starts_with("/../"))
}

/// What that means, and what to do about it.
pub(super) const OUTSIDE: &str = "cgroups of VMs lie outside the cgroup namespace of this process, so \
    that neither their weights and CPUs are known nor who manages the VMs; VMs of ordinary users do not \
    count then, and libvirt's run as one: give Instep's container the cgroups of the host (docker run \
    --cgroupns=host; a copy of /proc is to be made outside of one)";

/// The same without the cut, or with another one.
fn hierarchies(text: &str, cut: impl Fn(&str) -> &str) -> Membership {
    let mut found = Membership::default();
    for line in text.lines().take(64) {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
            continue;
        }
        let path = Some(cut(path).to_owned());
        if number == "0" && controllers.is_empty() {
            found.unified = path;
            continue;
        }
        for controller in controllers.split(',') {
            match controller {
                "cpu" => found.cpu = path.clone(),
                "cpuset" => found.cpuset = path.clone(),
                "memory" => found.memory = path.clone(),
                "name=systemd" => found.systemd = path.clone(),
                _ => {}
            }
        }
    }
    found
}

impl Membership {
    /// The path that names the VM best: the first below the root, unified first.
    pub fn path(&self) -> Option<&str> {
        let all = [&self.unified, &self.systemd, &self.cpuset, &self.cpu, &self.memory];
        all.into_iter().flatten().map(String::as_str).find(|path| *path != "/")
    }
}

/// Cuts a path behind the component that stands for one VM: libvirt's `machine-qemu...scope` or
/// `NAME.libvirt-qemu`, Proxmox's `qemu.slice/ID.scope`.
fn vm_path(path: &str) -> &str {
    let mut end = 0;
    let mut parent = "";
    for part in path.split('/').skip(1) {
        end += 1 + part.len();
        let machine = part.starts_with("machine-") && part.ends_with(".scope");
        let proxmox = parent == "qemu.slice" && part.ends_with(".scope");
        if machine || proxmox || part.ends_with(".libvirt-qemu") {
            return &path[..end];
        }
        parent = part;
    }
    path
}

/// What a VM's cgroup path says of who manages it and of its name: `machine-qemu\x2d3\x2dweb.scope`
/// is libvirt's `web`, `qemu.slice/104.scope` Proxmox's VM 104.
pub fn told_by_path(path: &str) -> (Option<Manager>, Option<String>) {
    let (parent, base) = path.rsplit_once('/').unwrap_or(("", path));
    let after_number = |name: &str| {
        let rest = name.strip_prefix("qemu-")?;
        let (number, name) = rest.split_once('-')?;
        number.parse::<u32>().ok().map(|_| name.to_owned())
    };
    if let Some(machine) = base.strip_prefix("machine-").and_then(|b| b.strip_suffix(".scope")) {
        let name = after_number(&unescape(machine));
        return (name.is_some().then_some(Manager::Libvirt), name);
    }
    if let Some(name) = base.strip_suffix(".libvirt-qemu") {
        return (Some(Manager::Libvirt), after_number(name));
    }
    let id = base.strip_suffix(".scope").filter(|id| id.parse::<u32>().is_ok());
    match id {
        Some(id) if parent.ends_with("/qemu.slice") => {
            (Some(Manager::Proxmox), Some(id.to_owned()))
        }
        _ => (None, None),
    }
}

/// Undoes systemd's escaping of unit names (`\x2d` is `-`, systemd.unit(5)).
pub fn unescape(name: &str) -> String {
    let bytes = name.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = name.get(at + 2..at + 4).filter(|_| bytes[at..].starts_with(b"\\x"));
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Where the hierarchies are mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    unified: Option<PathBuf>,
    cpu: Option<PathBuf>,
    cpuset: Option<PathBuf>,
    memory: Option<PathBuf>,
    /// What cgroups weigh, by directory.
    weights: BTreeMap<PathBuf, Option<u32>>,
}

impl Hierarchies {
    /// Reads weights anew from now on.
    pub(super) fn forget_weights(&mut self) {
        self.weights.clear();
    }

    /// Finds them through `/proc/self/mounts`, else in the usual places.
    pub(super) fn find(root: &Root, reader: &mut Reader) -> Self {
        let mounts = ["proc/self/mounts", "proc/1/mounts", "proc/mounts"]
            .into_iter()
            .find_map(|path| reader.text(&root.join(path), 1 << 20))
            .unwrap_or_default();
        let mut found = Self::default();
        for (place, controllers) in cgroup_mounts(&mounts) {
            let path = root.join(place.trim_start_matches('/'));
            found.take(path, &controllers, reader);
        }
        for (place, controllers) in USUAL {
            found.take(root.join(place), &[(*controllers).to_owned()], reader);
        }
        found
    }

    fn take(&mut self, path: PathBuf, controllers: &[String], reader: &mut Reader) {
        for controller in controllers {
            let slot = match controller.as_str() {
                "unified" => &mut self.unified,
                "cpu" => &mut self.cpu,
                "cpuset" => &mut self.cpuset,
                "memory" => &mut self.memory,
                _ => continue,
            };
            if slot.is_none() && is_hierarchy(&path, controller, reader) {
                *slot = Some(path.clone());
            }
        }
    }
}

const USUAL: &[(&str, &str)] = &[
    ("sys/fs/cgroup", "unified"),
    ("sys/fs/cgroup/unified", "unified"),
    ("sys/fs/cgroup/cpu,cpuacct", "cpu"),
    ("sys/fs/cgroup/cpu", "cpu"),
    ("sys/fs/cgroup/cpuset", "cpuset"),
    ("sys/fs/cgroup/memory", "memory"),
];

/// Whether a directory can be what it is taken for: on a version 1 machine `/sys/fs/cgroup` is
/// no hierarchy but holds them.
fn is_hierarchy(path: &Path, controller: &str, reader: &mut Reader) -> bool {
    if controller == "unified" && reader.open(&path.join("cgroup.controllers")).is_ok() {
        return true;
    }
    let others = ["cpu", "cpuset", "memory", "unified", "cpu,cpuacct"];
    path.is_dir()
        && (controller != "unified" || !others.iter().any(|name| path.join(name).is_dir()))
}

/// The cgroup mounts in a mount table: mount point and controllers (`unified` for version 2).
pub fn cgroup_mounts(text: &str) -> Vec<(String, Vec<String>)> {
    let mounts = text.lines().take(65_536).filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let controllers = match kind {
            "cgroup2" => vec!["unified".to_owned()],
            "cgroup" => options.split(',').map(str::to_owned).collect(),
            _ => return None,
        };
        let stays = !place.split('/').any(|part| part == "..");
        stays.then(|| (place.to_owned(), controllers))
    });
    mounts.take(64).collect()
}

/// What a VM's cgroup allows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Weight of the VM's own cgroup, 100 where it has none.
    pub weight: u32,
    /// The nearest cgroup that has a weight, which is the VM's own or one above it, and those above that.
    pub groups: Vec<GroupWeight>,
    /// CPUs it may use.
    pub cpuset: Option<CpuSet>,
    /// Nodes it may take memory from.
    pub mems: Option<NodeSet>,
}

/// The directory of a cgroup, and how far it is below the mount point.
fn at(mount: &Option<PathBuf>, path: &Option<String>) -> Option<(PathBuf, usize)> {
    let path = path.as_deref()?.trim_matches('/');
    let depth = path.split('/').filter(|part| !part.is_empty()).count();
    Some((mount.as_ref()?.join(path), depth))
}

/// `cpu.weight` of a cgroup, or version 1's shares scaled to it.
fn weight(dir: &Path, reader: &mut Reader) -> Option<u32> {
    let weight = reader.text(&dir.join("cpu.weight"), 64).and_then(|text| parse_weight(&text));
    weight.or_else(|| parse_shares(&reader.text(&dir.join("cpu.shares"), 64)?))
}

/// The weight in `cpu.weight`.
pub fn parse_weight(text: &str) -> Option<u32> {
    text.parse().ok().map(|weight: u32| weight.clamp(1, 10_000))
}

/// The shares in version 1's `cpu.shares`, as a weight.
pub fn parse_shares(text: &str) -> Option<u32> {
    let shares: u64 = text.parse().ok()?;
    let weight = u32::try_from(shares.saturating_mul(100) / 1024).ok()?;
    Some(weight.clamp(1, 10_000))
}

impl Hierarchies {
    /// Reads the limits of the cgroups in `of`.
    pub(super) fn limits(&mut self, of: &Membership, reader: &mut Reader) -> CgroupLimits {
        let unified = at(&self.unified, &of.unified);
        let cpuset = at(&self.cpuset, &of.cpuset);
        let mut levels = |place: &Option<(PathBuf, usize)>| -> Option<Vec<GroupWeight>> {
            let (own, depth) = place.as_ref()?;
            let mut weight_of = |dir: &Path| match self.weights.get(dir) {
                Some(weight) => *weight,
                None => *self.weights.entry(dir.to_owned()).or_insert(weight(dir, reader)),
            };
            let mut dirs = own.ancestors().take((*depth).min(MAX_DEPTH)).peekable();
            // Without the controller in its own cgroup the kernel charges it to the nearest one above that has it.
            while weight_of(dirs.peek()?).is_none() {
                dirs.next();
            }
            let group = |dir: &Path| GroupWeight {
                dir: dir.to_owned(),
                weight: weight_of(dir).unwrap_or(100),
            };
            Some(dirs.map(group).collect())
        };
        let own = [unified.clone(), at(&self.cpu, &of.cpu)];
        let groups = own.iter().find_map(&mut levels).unwrap_or_default();
        let is_own = |group: &&GroupWeight| own.iter().flatten().any(|(dir, _)| *dir == group.dir);
        CgroupLimits {
            weight: groups.first().filter(is_own).map_or(100, |group| group.weight),
            groups,
            cpuset: self.cpuset(of, reader),
            mems: effective(&unified, "cpuset.mems.effective", reader)
                .or_else(|| effective(&cpuset, "cpuset.effective_mems", reader))
                .or_else(|| effective(&cpuset, "cpuset.mems", reader)),
        }
    }

    /// The CPUs that the cgroups in `of` may use.
    fn cpuset(&self, of: &Membership, reader: &mut Reader) -> Option<CpuSet> {
        let cpuset = at(&self.cpuset, &of.cpuset);
        effective(&at(&self.unified, &of.unified), "cpuset.cpus.effective", reader)
            .or_else(|| effective(&cpuset, "cpuset.effective_cpus", reader))
            .or_else(|| effective(&cpuset, "cpuset.cpus", reader))
    }

    /// The CPU quota of the VM of this process with these vCPUs in the cgroups `of`, and in those above and below.
    pub(super) fn quota(
        &self,
        of: &Membership,
        (pid, vcpus): (u32, &[VcpuFacts]),
        reader: &mut Reader,
    ) -> Quota {
        let levels = |(mount, path): (&Option<PathBuf>, &Option<String>)| -> Vec<PathBuf> {
            let (Some(mount), Some(path)) = (mount, path) else { return Vec::new() };
            let dir = mount.join(path.trim_matches('/'));
            let levels = dir.ancestors().take(MAX_DEPTH).take_while(|dir| *dir != mount.as_path());
            levels.map(Path::to_owned).collect()
        };
        let mut both = [(&self.unified, &of.unified), (&self.cpu, &of.cpu)].into_iter().map(levels);
        let has_cpu = |levels: &Vec<PathBuf>| {
            let mut files = levels.iter().flat_map(|dir| quota::FILES.map(|file| dir.join(file)));
            files.any(|file| file.exists())
        };
        let levels = both.find(has_cpu).unwrap_or_default();
        quota::read(&levels, (pid, &mut vcpus.iter().map(|vcpu| vcpu.index)), reader)
    }

    /// How long the cgroups of a process, by the text of its `cgroup` file, and those above were stopped by
    /// their CPU quotas, in all.
    pub(super) fn throttled(&self, text: &str, reader: &mut Reader) -> Nanos {
        let of = hierarchies(text, |path| path);
        let mut total = 0u64;
        for (mount, path) in [(&self.unified, &of.unified), (&self.cpu, &of.cpu)] {
            let (Some(mount), Some(path)) = (mount, path) else { continue };
            let dir = mount.join(path.trim_matches('/'));
            for dir in dir.ancestors().take(MAX_DEPTH).take_while(|dir| *dir != mount.as_path()) {
                let text = reader.text(&dir.join("cpu.stat"), MAX_CGROUP_FILE).unwrap_or_default();
                total = total.saturating_add(quota::throttled(&text).0);
            }
        }
        Nanos(total)
    }

    /// How far from the root down the folders of this cgroup are this user's and nobody else may write to
    /// them; `None` if the first one is not.
    pub(super) fn part_of(&self, user: u32, path: &str) -> Option<String> {
        use std::os::unix::fs::MetadataExt as _;
        let mounts = [&self.unified, &self.cpu, &self.cpuset, &self.memory];
        let mut part = String::new();
        for folder in path.split('/').skip(1) {
            let next = format!("{part}/{folder}");
            let there = mounts.into_iter().flatten();
            let mut metas =
                there.filter_map(|mount| mount.join(&next[1..]).metadata().ok()).peekable();
            let is_one = metas.peek().is_some();
            if !is_one || metas.any(|meta| meta.uid() != user || meta.mode() & 0o022 != 0) {
                break;
            }
            part = next;
        }
        (!part.is_empty()).then_some(part)
    }

    /// Where the memory controller keeps `of`'s figures, if `of` is not its root: the directory
    /// and whether it is of version 2.
    pub(super) fn memory_dir(&self, of: &Membership) -> Option<(PathBuf, bool)> {
        let below = |mount: &Option<PathBuf>, path: &Option<String>| {
            let path = path.as_deref()?.trim_matches('/');
            (!path.is_empty()).then(|| mount.as_ref().map(|mount| mount.join(path)))?
        };
        below(&self.memory, &of.memory)
            .map(|dir| (dir, false))
            .or_else(|| below(&self.unified, &of.unified).map(|dir| (dir, true)))
    }
}

/// Tells what the cpusets of single threads allow: libvirt gives each vCPU one of its own.
#[derive(Debug)]
pub(crate) struct Cpusets {
    root: Root,
    mounted: Hierarchies,
    reader: Reader,
}

impl Cpusets {
    /// Those of the host under `root`.
    pub(crate) fn new(root: &Root) -> Self {
        let mut reader = Reader::new(root);
        Self { root: root.clone(), mounted: Hierarchies::find(root, &mut reader), reader }
    }

    /// The CPUs that a thread's cpuset allows; empty where that cannot be read.
    pub(crate) fn of(&mut self, pid: u32, tid: Tid) -> CpuSet {
        let path = self.root.join(format!("proc/{pid}/task/{tid}/cgroup"));
        let Some(text) = self.reader.text(&path, MAX_CGROUP_FILE) else { return CpuSet::new() };
        let of = hierarchies(&text, |path| path);
        self.mounted.cpuset(&of, &mut self.reader).unwrap_or_default()
    }
}

/// The list in `file` of the cgroup, or of the nearest one above it that has the file and is not
/// empty: a controller that is not enabled for a cgroup has no files in it and inherits.
fn effective<T: Id>(
    place: &Option<(PathBuf, usize)>,
    file: &str,
    reader: &mut Reader,
) -> Option<IdSet<T>> {
    let (dir, depth) = place.as_ref()?;
    dir.ancestors().take(depth.saturating_add(1).min(MAX_DEPTH)).find_map(|dir| {
        let text = reader.text(&dir.join(file), MAX_CGROUP_FILE)?;
        IdSet::parse_list(&text).ok().filter(|set| !set.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vms_cgroup_is_the_scope_and_not_the_threads() {
        let of = |line: &str| membership(line).path().map(str::to_owned);
        assert_eq!(
            of("0::/machine.slice/machine-qemu\\x2d3\\x2dweb.scope/libvirt/emulator\n").as_deref(),
            Some("/machine.slice/machine-qemu\\x2d3\\x2dweb.scope")
        );
        assert_eq!(of("0::/qemu.slice/104.scope").as_deref(), Some("/qemu.slice/104.scope"));
        assert_eq!(
            of("3:cpuset:/machine/qemu-1-a.libvirt-qemu/emulator\n0::/").as_deref(),
            Some("/machine/qemu-1-a.libvirt-qemu")
        );
        assert_eq!(of("0::/user.slice/x.scope").as_deref(), Some("/user.slice/x.scope"));
        assert_eq!(of("0::/../outside"), None);
        assert_eq!(of("0::/"), None);
    }

    #[test]
    fn version_1_lists_controllers_apart() {
        let read = membership("4:memory:/m\n3:cpuset:/s\n1:cpu,cpuacct:/c\n0::/\n");
        assert_eq!(read.memory.as_deref(), Some("/m"));
        assert_eq!(read.cpuset.as_deref(), Some("/s"));
        assert_eq!(read.cpu.as_deref(), Some("/c"));
        assert_eq!(read.unified.as_deref(), Some("/"));
    }

    #[test]
    fn the_scope_names_libvirts_and_proxmox_vms() {
        assert_eq!(
            told_by_path("/machine.slice/machine-qemu\\x2d12\\x2dmy\\x2dvm.scope"),
            (Some(Manager::Libvirt), Some("my-vm".into()))
        );
        assert_eq!(
            told_by_path("/qemu.slice/104.scope"),
            (Some(Manager::Proxmox), Some("104".into()))
        );
        assert_eq!(told_by_path("/machine.slice/machine-lxc\\x2d1.scope"), (None, None));
        assert_eq!(told_by_path("/user.slice/104.scope"), (None, None));
    }

    #[test]
    fn unescaping_leaves_what_is_no_escape() {
        assert_eq!(unescape("a\\x2db"), "a-b");
        assert_eq!(unescape("a\\xzz\\x"), "a\\xzz\\x");
        assert_eq!(unescape("\\xc3\\xa9"), "é");
    }

    #[test]
    fn limits_are_inherited_from_the_nearest_cgroup_that_has_them() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let base = dir.path().join("sys/fs/cgroup");
        std::fs::create_dir_all(base.join("a.slice/vm.scope")).unwrap();
        for (file, text) in [
            ("cgroup.controllers", "cpuset cpu memory"),
            ("cpuset.cpus.effective", "0-7\n"),
            ("a.slice/cpuset.cpus.effective", "0-3\n"),
            ("a.slice/vm.scope/cpu.weight", "250\n"),
            ("cpuset.mems.effective", "0-1\n"),
        ] {
            std::fs::write(base.join(file), text).unwrap();
        }
        let mut reader = Reader::default();
        let mut found = Hierarchies::find(&Root::at(dir.path()), &mut reader);
        let of = membership("0::/a.slice/vm.scope\n");
        let limits = found.limits(&of, &mut reader);
        let told = limits
            .groups
            .iter()
            .map(|group| (group.dir.strip_prefix(&base).unwrap(), group.weight));
        let named = [("a.slice/vm.scope", 250), ("a.slice", 100)];
        assert!(told.eq(named.map(|(name, weight)| (Path::new(name), weight))));
        assert_eq!(limits.cpuset.unwrap().to_string(), "0-3");
        assert_eq!(limits.mems.unwrap().to_string(), "0-1");
        let gone = found.limits(&membership("0::/gone\n"), &mut reader);
        assert_eq!(gone.groups, []);
    }

    #[test]
    fn a_thread_may_have_a_cpuset_of_its_own() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let scope = "machine.slice/machine-qemu\\x2d1\\x2da.scope";
        let vcpu = format!("{scope}/libvirt/vcpu0");
        for (file, text) in [
            ("sys/fs/cgroup/cgroup.controllers", "cpuset"),
            (&format!("sys/fs/cgroup/{scope}/cpuset.cpus.effective"), "0-7"),
            (&format!("sys/fs/cgroup/{vcpu}/cpuset.cpus.effective"), "2"),
            ("proc/7/task/8/cgroup", &format!("0::/{vcpu}\n")),
            ("proc/7/task/9/cgroup", &format!("0::/{scope}/libvirt/emulator\n")),
            ("proc/7/task/10/cgroup", "0::/../outside\n"),
        ] {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let mut cpusets = Cpusets::new(&Root::at(dir.path()));
        let told = [8, 9, 10, 11].map(|tid| cpusets.of(7, Tid(tid)).to_string());
        assert_eq!(told, ["2", "0-7", "", ""]);
    }

    #[test]
    fn a_version_1_machine_has_its_shares_scaled() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let base = dir.path().join("sys/fs/cgroup");
        std::fs::create_dir_all(base.join("cpu/vm")).unwrap();
        std::fs::create_dir_all(base.join("cpuset/vm")).unwrap();
        std::fs::write(base.join("cpu/vm/cpu.shares"), "2048\n").unwrap();
        std::fs::write(base.join("cpuset/vm/cpuset.cpus"), "1-2\n").unwrap();
        let mut reader = Reader::default();
        let mut found = Hierarchies::find(&Root::at(dir.path()), &mut reader);
        let of = membership("2:cpuset:/vm\n1:cpu:/vm\n0::/\n");
        let limits = found.limits(&of, &mut reader);
        assert_eq!(limits.groups[0].weight, 200);
        assert_eq!(limits.cpuset.unwrap().to_string(), "1-2");
    }

    #[test]
    fn mounts_of_both_versions_are_distinguished() {
        let text = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
            cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
            cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\ncgroup2 /a/../b cgroup2 rw 0 0\nx\n";
        let read = cgroup_mounts(text);
        assert_eq!(read.len(), 2);
        assert_eq!(read[1], ("/sys/fs/cgroup/unified".into(), vec!["unified".into()]));
    }
}
