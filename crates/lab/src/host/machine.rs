//! The shape of an emulated host, as TOML describes it, and the QEMU command line that makes it.
//!
//! Pure: a [`HostMachine`] in, arguments out. CPU numbers are the kernel's: QEMU counts threads
//! first, then cores, then sockets, and so does Linux when it numbers by APIC id order here.

use super::xen;
use crate::error::Error;
use instep_core::wording::Count;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The most emulated CPUs: beyond that a laptop boots for minutes.
const MAX_CPUS: u32 = 64;

/// Which clock an emulated host lives by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// One thread of this machine for each emulated CPU: near real time.
    #[default]
    Real,
    /// One thread that counts instructions: results do not depend on this machine's load.
    Counted,
}

impl Clock {
    /// What results of this clock show.
    pub fn shows(self) -> &'static str {
        match self {
            Clock::Real => {
                "real interleavings of CPUs; placements, counts and ratios of what runs side by \
                 side; with more emulated CPUs than real ones times are diluted"
            }
            Clock::Counted => {
                "the same virtual times whatever this machine does besides: counts, invariants \
                 and shares of CPU-bound work"
            }
        }
    }

    /// What they cannot show.
    pub fn does_not_show(self) -> &'static str {
        match self {
            Clock::Real => {
                "costs of caches, core sharing and remote memory (emulated CPUs have none), and \
                 absolute times when this machine is busy"
            }
            Clock::Counted => {
                "what CPUs ask of each other and microsecond synchronisation (a CPU runs until the \
                 next timer), and costs of caches, core sharing and remote memory"
            }
        }
    }
}

/// The accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AccelKind {
    /// This machine's KVM.
    Kvm,
    /// Software: QEMU's TCG.
    Tcg,
}

/// What runs the guests of an emulated host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Hypervisor {
    /// Linux with KVM, on AMD SVM that QEMU emulates.
    #[default]
    Kvm,
    /// Xen, with Linux as dom0 and PV domains as guests.
    Xen,
}

/// The scheduler with which Xen boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum XenScheduler {
    /// The credit scheduler.
    Credit,
    /// Its successor, which Xen takes where nothing is said.
    Credit2,
}

/// The shape of an emulated host.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HostMachine {
    /// What runs its guests.
    #[serde(default)]
    pub hypervisor: Hypervisor,
    /// The scheduler of a Xen host; Xen's own choice when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<XenScheduler>,
    /// NUMA nodes; the sockets are spread over them evenly.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Sockets; as many as nodes when not given.
    pub sockets: Option<u32>,
    /// Cores of each socket.
    pub cores: u32,
    /// Hardware threads of each core.
    #[serde(default = "one")]
    pub threads: u32,
    /// Memory of the whole host in MiB, spread over the nodes evenly.
    #[serde(rename = "memory", deserialize_with = "super::size::mib")]
    pub memory_mib: u64,
    /// The distance between any two nodes (10 is local); 20 when not given.
    pub distance: Option<u8>,
    /// The distances row by row, instead of one for all.
    pub distances: Option<Vec<Vec<u8>>>,
    /// Whether the kernel's automatic NUMA balancing is on; without it memory stays where it is
    /// put, so that what Instep did can be told from what the kernel did.
    #[serde(default)]
    pub numa_balancing: bool,
    /// Which clock it lives by.
    #[serde(default)]
    pub clock: Clock,
}

fn one() -> u32 {
    1
}

impl HostMachine {
    /// Checks what the types cannot say.
    ///
    /// # Errors
    /// A message that names the wrong value.
    pub fn check(&self) -> Result<(), String> {
        let cpus = [self.sockets(), self.cores, self.threads]
            .iter()
            .try_fold(1u32, |product, count| product.checked_mul(*count))
            .unwrap_or(u32::MAX);
        if cpus == 0 || cpus > MAX_CPUS {
            return Err(format!("host: {cpus} CPUs; possible are 1 to {MAX_CPUS}"));
        }
        let cores = cpus / self.threads;
        if self.nodes == 0 || !cores.is_multiple_of(self.nodes) {
            let (cores, nodes) = (Count(cores.into(), "core"), Count(self.nodes.into(), "node"));
            return Err(format!("host: {cores} cannot be spread over {nodes}"));
        }
        if !self.sockets().is_multiple_of(self.nodes) && !self.nodes.is_multiple_of(self.sockets())
        {
            let sockets = Count(self.sockets().into(), "socket");
            return Err(format!("host: {sockets} on {}", Count(self.nodes.into(), "node")));
        }
        if self.memory_mib / u64::from(self.nodes) < 256 {
            return Err(format!("host: {} MiB of memory; a node needs 256", self.memory_mib));
        }
        if self.memory_mib > 64 << 10 {
            return Err(format!("host: {} MiB of memory; possible are 64 GiB", self.memory_mib));
        }
        if self.is_xen() {
            xen::check(self)?;
        } else if self.scheduler.is_some() {
            return Err("host: scheduler needs hypervisor = \"xen\"".to_owned());
        }
        self.check_distances()
    }

    /// Whether Xen runs its guests.
    pub fn is_xen(&self) -> bool {
        self.hypervisor == Hypervisor::Xen
    }

    fn check_distances(&self) -> Result<(), String> {
        if self.distance.is_some_and(|distance| distance <= 10) {
            return Err("host.distance: the distance to another node is more than 10".to_owned());
        }
        let Some(rows) = &self.distances else { return Ok(()) };
        let nodes = self.nodes as usize;
        if rows.len() != nodes || rows.iter().any(|row| row.len() != nodes) {
            return Err(format!("host.distances: {nodes} rows of {nodes} numbers are needed"));
        }
        for (a, row) in rows.iter().enumerate() {
            for (b, distance) in row.iter().enumerate() {
                if (a == b) != (*distance == 10) || *distance < 10 {
                    return Err(format!("host.distances: {distance} from node {a} to node {b}"));
                }
            }
        }
        Ok(())
    }

    /// Its sockets.
    pub fn sockets(&self) -> u32 {
        self.sockets.unwrap_or(self.nodes)
    }

    /// All its CPUs.
    pub fn cpus(&self) -> u32 {
        self.sockets() * self.cores * self.threads
    }

    /// The first and the last CPU of a node.
    pub fn node_cpus(&self, node: u32) -> (u32, u32) {
        let each = self.cpus() / self.nodes;
        (node * each, (node + 1) * each - 1)
    }

    /// The first thread of the core of a CPU: CPUs with the same one are siblings.
    pub fn core_of(&self, cpu: u32) -> u32 {
        cpu - cpu % self.threads
    }

    fn distance(&self, from: u32, to: u32) -> u8 {
        let given = self
            .distances
            .as_ref()
            .and_then(|rows| rows.get(from as usize).and_then(|row| row.get(to as usize)).copied());
        given.unwrap_or_else(|| self.distance.unwrap_or(20))
    }

    /// QEMU's arguments: console into a file, the lab's port and QMP on sockets.
    pub fn arguments(&self, files: &Files<'_>, accel: AccelKind) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        let mut put = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
        put("-name", "guest=instep-lab,debug-threads=on".to_owned());
        put("-machine", "pc".to_owned());
        match (accel, self.clock) {
            (AccelKind::Kvm, _) => put("-accel", "kvm".to_owned()),
            (AccelKind::Tcg, Clock::Real) => put("-accel", "tcg,thread=multi".to_owned()),
            (AccelKind::Tcg, Clock::Counted) => {
                put("-accel", "tcg,thread=single".to_owned());
                put("-icount", "shift=1,sleep=off".to_owned());
                // Nothing else may differ from run to run: what RDRAND gives, and the date.
                put("-seed", "1".to_owned());
                put("-rtc", "base=2026-01-01,clock=vm".to_owned());
            }
        }
        // The emulated AMD SVM is what KVM runs on; MONITOR makes idle CPUs spin under TCG.
        // QEMU 7.2 makes a PV kernel's return from an interrupt fail where Xen uses SMAP.
        let without = if files.xen.is_some() { ",-smap" } else { "" };
        put(
            "-cpu",
            match accel {
                AccelKind::Kvm => "host".to_owned(),
                AccelKind::Tcg => format!("EPYC,+svm,-monitor{without}"),
            },
        );
        put(
            "-smp",
            format!(
                "{},sockets={},cores={},threads={}",
                self.cpus(),
                self.sockets(),
                self.cores,
                self.threads
            ),
        );
        let each = self.memory_mib / u64::from(self.nodes);
        put("-m", format!("{}M", each * u64::from(self.nodes)));
        for node in 0..self.nodes {
            let (first, last) = self.node_cpus(node);
            put("-object", format!("memory-backend-ram,id=m{node},size={each}M"));
            put("-numa", format!("node,nodeid={node},cpus={first}-{last},memdev=m{node}"));
        }
        for from in 0..self.nodes {
            for to in (0..self.nodes).filter(|to| *to != from) {
                put("-numa", format!("dist,src={from},dst={to},val={}", self.distance(from, to)));
            }
        }
        let (kernel, initrd) = (files.kernel.display(), files.initrd.display());
        match files.xen {
            // Xen takes dom0's kernel, with its command line, and dom0's initramfs as modules.
            Some(xen) => {
                put("-kernel", xen.display().to_string());
                put("-initrd", format!("{kernel} {},{initrd}", xen::DOM0_COMMAND_LINE));
                put("-append", xen::command_line(self));
            }
            None => {
                put("-kernel", kernel.to_string());
                put("-initrd", initrd.to_string());
                put("-append", self.command_line());
            }
        }
        put("-display", "none".to_owned());
        put("-serial", format!("file:{}", files.console.display()));
        put("-chardev", format!("socket,id=lab,path={},server=on,wait=off", files.port.display()));
        put("-device", "virtio-serial-pci".to_owned());
        put("-device", "virtserialport,chardev=lab,name=instep.lab".to_owned());
        put("-qmp", format!("unix:{},server=on,wait=off", files.qmp.display()));
        for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
            args.push(flag.to_owned());
        }
        args
    }

    /// The kernel's command line. Mitigations, watchdogs, tests of ciphers at boot and memory that is zeroed when
    /// it is allocated cost much and show nothing under emulation; an emulated clock is to be trusted however
    /// late it comes.
    ///
    /// The late switch to a stable scheduler clock changes code that every CPU runs at each tick, of
    /// which the kernel died in 4 of 10 boots of 16 CPUs (`anchor.rs`; without it none of 6). `lpj`
    /// spares each CPU a second of measuring its delay loop: its value is that of a TSC of 5 GHz (250 ticks
    /// a second), so that delays, which count the TSC, are stretched at most. A host does not boot on one
    /// CPU, as its guests do: CPUs that come later have no deadline server (`sched_init_dl_servers`,
    /// kernel/sched/deadline.c, 7.2), and a real-time thread starves all others there.
    fn command_line(&self) -> String {
        let mut line = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr audit=0 apparmor=0 \
                        lpj=20000000 nowatchdog rcupdate.rcu_cpu_stall_suppress=1 \
                        tsc=reliable no_timer_check cryptomgr.notests init_on_alloc=0 \
                        initcall_blacklist=sched_clock_init_late"
            .to_owned();
        if !self.numa_balancing {
            line.push_str(" numa_balancing=disable");
        }
        line
    }
}

/// The files of a host's QEMU; no path may hold a comma.
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    /// Xen, where it boots before the kernel.
    pub xen: Option<&'a Path>,
    /// The kernel image.
    pub kernel: &'a Path,
    /// The initramfs.
    pub initrd: &'a Path,
    /// Where the console goes.
    pub console: &'a Path,
    /// The socket of the lab's port.
    pub port: &'a Path,
    /// The socket by which QEMU itself is asked.
    pub qmp: &'a Path,
}

impl Files<'_> {
    /// Refuses paths that QEMU or the kernel's sockets cannot take.
    ///
    /// # Errors
    /// When the socket's path has a comma or more than 107 bytes.
    pub fn check(&self) -> Result<(), Error> {
        let files = [self.console, self.port];
        if let Some(path) = files.iter().find(|path| path.to_string_lossy().contains(',')) {
            let what = format!("QEMU cannot take the comma in {}", path.display());
            return Err(Error::missing(what, "set TMPDIR to a path without one"));
        }
        if self.port.as_os_str().len() > 107 {
            let what = format!("{} is too long for a socket", self.port.display());
            return Err(Error::missing(what, "set TMPDIR to a shorter path"));
        }
        let split = |path: &&Path| path.to_string_lossy().contains([',', ' ']);
        if let Some(path) = [self.kernel, self.initrd].iter().find(|path| split(path))
            && self.xen.is_some()
        {
            let what = format!("QEMU cannot give {} to Xen: it splits such names", path.display());
            let next = "set XDG_CACHE_HOME and TMPDIR to paths without a comma and a space";
            return Err(Error::missing(what, next));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(text: &str) -> Result<HostMachine, String> {
        let machine: HostMachine = toml::from_str(text).map_err(|error| error.to_string())?;
        machine.check().map(|()| machine)
    }

    fn files() -> Files<'static> {
        Files {
            xen: None,
            kernel: Path::new("/k"),
            initrd: Path::new("/i"),
            console: Path::new("/t/console"),
            port: Path::new("/t/port"),
            qmp: Path::new("/t/qmp"),
        }
    }

    #[test]
    fn two_nodes_of_two_cores_become_sockets_nodes_and_distances() {
        let m = machine("nodes = 2\ncores = 2\nthreads = 2\nmemory = '2GiB'").unwrap();
        let line = m.arguments(&files(), AccelKind::Tcg).join(" ");
        for part in [
            "-smp 8,sockets=2,cores=2,threads=2",
            "-m 2048M",
            "-object memory-backend-ram,id=m1,size=1024M",
            "-numa node,nodeid=1,cpus=4-7,memdev=m1",
            "-numa dist,src=0,dst=1,val=20",
            "-accel tcg,thread=multi",
            "numa_balancing=disable",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert_eq!((m.node_cpus(1), m.core_of(7), m.core_of(4)), ((4, 7), 6, 4));
        let line = m.arguments(&files(), AccelKind::Kvm).join(" ");
        assert!(line.contains("-accel kvm -cpu host -smp 8,") && !line.contains("tcg"), "{line}");
    }

    #[test]
    fn counted_time_runs_on_one_thread() {
        let m = machine("cores = 2\nmemory = '512MiB'\nclock = 'counted'").unwrap();
        let line = m.arguments(&files(), AccelKind::Tcg).join(" ");
        assert!(line.contains("-accel tcg,thread=single -icount shift=1,sleep=off"), "{line}");
        assert!(!line.contains("dist,"), "{line}");
    }

    #[test]
    fn xen_boots_dom0_s_kernel_and_initramfs_as_modules() {
        let m = machine("hypervisor = 'xen'\nnodes = 2\ncores = 4\nmemory = '4GiB'").unwrap();
        let files = Files { xen: Some(Path::new("/x")), ..files() };
        let args = m.arguments(&files, AccelKind::Tcg);
        let value = |flag: &str| &args[args.iter().position(|arg| arg == flag).unwrap() + 1];
        assert_eq!(value("-kernel"), "/x");
        let modules = value("-initrd");
        assert!(modules.starts_with("/k console=hvc0") && modules.ends_with(",/i"), "{modules}");
        assert!(value("-cpu").ends_with(",-smap") && value("-append").contains("dom0_mem="));
        assert!(!value("-append").contains("sched="), "Xen's own choice");
        let with = machine("hypervisor = 'xen'\nscheduler = 'credit'\ncores = 4\nmemory = '4GiB'");
        assert!(
            with.unwrap()
                .arguments(&files, AccelKind::Tcg)
                .iter()
                .any(|arg| arg.ends_with(" sched=credit"))
        );
        assert!(files.check().is_ok());
        let split = Files { kernel: Path::new("/my cache/k"), ..files };
        assert!(split.check().unwrap_err().to_string().contains("/my cache/k"));
        let kvm = Files { xen: None, ..split };
        assert!(kvm.check().is_ok());
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (text, word) in [
            ("cores = 0\nmemory = '1GiB'", "0 CPUs"),
            ("cores = 100000\nthreads = 100000\nmemory = '1GiB'", "CPUs"),
            (
                "nodes = 2\nsockets = 1\ncores = 1\nthreads = 2\nmemory = '1GiB'",
                "1 core cannot be spread over 2 nodes",
            ),
            ("nodes = 3\nsockets = 2\ncores = 3\nmemory = '1GiB'", "2 sockets on 3 nodes"),
            ("nodes = 2\ncores = 2\nmemory = '256MiB'", "256 MiB"),
            ("cores = 2\nmemory = '1TiB'", "64 GiB"),
            ("nodes = 2\ncores = 1\nmemory = '1GiB'\ndistance = 10", "more than 10"),
            ("nodes = 2\ncores = 1\nmemory = '1GiB'\ndistances = [[10, 20]]", "2 rows"),
            ("nodes = 2\ncores = 1\nmemory = '1GiB'\ndistances = [[10, 20], [10, 10]]", "node 1"),
            ("cores = 2\nmemory = '1GiB'\ncolour = 'red'", "colour"),
            ("cores = 2\nmemory = 'much'", "memory"),
            ("hypervisor = 'bhyve'\ncores = 2\nmemory = '4GiB'", "`kvm` or `xen`"),
            ("scheduler = 'credit'\ncores = 2\nmemory = '4GiB'", "needs hypervisor"),
            ("hypervisor = 'xen'\nscheduler = 'rt'\ncores = 2\nmemory = '4GiB'", "`credit2`"),
            ("hypervisor = 'xen'\ncores = 2\nthreads = 2\nmemory = '4GiB'", "threads"),
            ("hypervisor = 'xen'\ncores = 1\nmemory = '4GiB'", "sockets with one core"),
            ("hypervisor = 'xen'\ncores = 2\nmemory = '4GiB'\nclock = 'counted'", "clock"),
            ("hypervisor = 'xen'\ncores = 2\nmemory = '4GiB'\nnuma_balancing = true", "dom0"),
            ("hypervisor = 'xen'\ncores = 2\nmemory = '1GiB'", "1536 MiB"),
        ] {
            let error = machine(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn distances_row_by_row_are_used() {
        let m = machine("nodes = 2\ncores = 1\nmemory = '1GiB'\ndistances = [[10, 21], [31, 10]]")
            .unwrap();
        let line = m.arguments(&files(), AccelKind::Tcg).join(" ");
        assert!(line.contains("src=0,dst=1,val=21") && line.contains("src=1,dst=0,val=31"));
    }
}
