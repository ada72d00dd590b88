//! Writes /proc/PID of one process with all its threads.
//!
//! Shapes as of Linux 6.18: `stat` has 52 fields (fs/proc/array.c, `do_task_stat`), `status` is
//! that of x86-64. Times of `stat` are in ticks of 10 ms, of `schedstat` in nanoseconds.

use crate::cgroup::{self, Cgroups};
use crate::sysfs::mask_of;
use crate::tree::Tree;
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::units::{Bytes, CpuId, Id, Nanos};
use std::fmt::Write;
use std::io;

/// Nanoseconds of a tick of /proc (USER_HZ = 100).
pub(crate) const TICK: u64 = 10_000_000;

/// A process as /proc shows it.
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    pub(crate) started: Nanos,
    /// Arguments, each ended by a NUL; empty for kernel threads and zombies.
    pub(crate) cmdline: String,
    pub(crate) memory: Bytes,
    /// Open files, if they can be listed.
    pub(crate) fds: Option<Vec<(u32, String)>>,
    pub(crate) numa_maps: String,
    pub(crate) maps: String,
    /// Of its memory, that on pages of hugetlbfs.
    pub(crate) huge: Bytes,
    /// The program; kernel threads and zombies have none.
    pub(crate) exe: Option<&'static str>,
    pub(crate) mems: NodeSet,
    /// The main thread first.
    pub(crate) tasks: Vec<Task>,
    pub(crate) kind: ProcessKind,
}

/// What kind of process it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessKind {
    User,
    Kernel,
    Zombie,
}

/// A thread as /proc shows it.
pub(crate) struct Task {
    pub(crate) tid: u32,
    pub(crate) name: String,
    /// Path of its cgroup.
    pub(crate) cgroup: String,
    pub(crate) state: char,
    /// CPU time since it started.
    pub(crate) busy: Nanos,
    /// Time in a run queue since it started.
    pub(crate) steal: Nanos,
    /// Whether its CPU time is a guest's.
    pub(crate) guest: bool,
    pub(crate) cpu: CpuId,
    pub(crate) allowed: CpuSet,
}

/// What is the same for all processes of a host.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Bits of the CPU masks of `status`.
    pub(crate) cpus: u32,
    pub(crate) cgroups: Cgroups,
}

/// Writes the process below `proc`.
pub(crate) fn write(process: &Process, shape: Shape, proc: &Tree) -> io::Result<()> {
    let Some(main) = process.tasks.first() else { return Ok(()) };
    let dir = proc.child(&process.pid.to_string())?;
    let busy = Nanos(process.tasks.iter().map(|task| task.busy.0).sum());
    let guest = process.tasks.iter().filter(|task| task.guest).map(|task| task.busy.0).sum();
    dir.file("stat", stat(process, main, busy, Nanos(guest)))?;
    dir.file("numa_maps", &process.numa_maps)?;
    dir.file("maps", &process.maps)?;
    dir.file("cmdline", &process.cmdline)?;
    if let Some(exe) = process.exe {
        dir.link("exe", exe)?;
    }
    write_task(process, main, shape, &dir)?;
    if let Some(fds) = &process.fds {
        let fd_dir = dir.child("fd")?;
        for (fd, target) in fds {
            fd_dir.link(&fd.to_string(), target)?;
        }
    }
    let tasks = dir.child("task")?;
    for task in &process.tasks {
        let task_dir = tasks.child(&task.tid.to_string())?;
        let guest = if task.guest { task.busy } else { Nanos(0) };
        task_dir.file("stat", stat(process, task, task.busy, guest))?;
        write_task(process, task, shape, &task_dir)?;
    }
    Ok(())
}

/// The files that a process has for its main thread and every thread has for itself.
fn write_task(process: &Process, task: &Task, shape: Shape, dir: &Tree) -> io::Result<()> {
    dir.line("comm", &task.name)?;
    let slices = task.busy.0 / 3_000_000 + 1;
    dir.line("schedstat", format_args!("{} {} {slices}", task.busy.0, task.steal.0))?;
    dir.file("cgroup", cgroup::membership(shape.cgroups, &task.cgroup))?;
    dir.file("status", status(process, task, shape))
}

/// When a process or thread started, as `stat` says it.
pub(crate) fn start_ticks(started: Nanos) -> u64 {
    started.0 / TICK
}

fn stat(process: &Process, task: &Task, busy: Nanos, guest: Nanos) -> String {
    let ticks = busy.0 / TICK;
    let system = if task.guest || guest.0 > 0 { ticks / 20 } else { ticks / 3 };
    let user = ticks - system;
    let guest = (guest.0 / TICK).min(user);
    let leader = task.tid == process.pid;
    let threads = process.tasks.len();
    let started = start_ticks(process.started);
    let (flags, vsize, rss) = match process.kind {
        ProcessKind::User => (0x400140, process.memory.0 + (300 << 20), process.memory.0 / 4096),
        ProcessKind::Kernel => (0x208040, 0, 0),
        ProcessKind::Zombie => (0x40014c, 0, 0),
    };
    let exit_signal = if leader { 17 } else { -1 };
    format!(
        "{} ({}) {} {} {} {} 0 -1 {flags} 4655 0 0 0 {user} {system} 0 0 20 0 {threads} 0 \
         {started} {vsize} {rss} 18446744073709551615 94480572080128 94480578866389 \
         140724621853568 0 0 0 268444224 4100 16963 0 0 0 {exit_signal} {} 0 0 0 {guest} 0 \
         94480582405448 94480595955568 94481348935680 140724621856352 140724621856665 \
         140724621856665 140724621856732 0\n",
        task.tid, task.name, task.state, process.parent, process.pid, process.pid, task.cpu,
    )
}

fn status(process: &Process, task: &Task, shape: Shape) -> String {
    let mut text = String::with_capacity(1600);
    let state = match task.state {
        'R' => "R (running)",
        'Z' => "Z (zombie)",
        'I' => "I (idle)",
        _ => "S (sleeping)",
    };
    let Process { pid, parent, .. } = process;
    let tid = task.tid;
    let _ = write!(
        text,
        "Name:\t{}\nUmask:\t0022\nState:\t{state}\nTgid:\t{pid}\nNgid:\t0\nPid:\t{tid}\n\
         PPid:\t{parent}\nTracerPid:\t0\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nFDSize:\t64\n\
         Groups:\t \nNStgid:\t{pid}\nNSpid:\t{tid}\nNSpgid:\t{pid}\nNSsid:\t{pid}\nKthread:\t{}\n",
        task.name,
        u8::from(process.kind == ProcessKind::Kernel),
    );
    if process.kind == ProcessKind::User {
        let huge = process.huge.0 / 1024;
        let kib = process.memory.0 / 1024 - huge;
        for (name, kib) in [
            ("VmPeak:", kib + (300 << 10)),
            ("VmSize:", kib + (300 << 10)),
            ("VmLck:", 0),
            ("VmPin:", 0),
            ("VmHWM:", kib),
            ("VmRSS:", kib),
            ("RssAnon:", kib),
            ("RssFile:", 0),
            ("RssShmem:", 0),
            ("VmData:", kib),
            ("VmStk:", 132),
            ("VmExe:", 6628),
            ("VmLib:", 14508),
            ("VmPTE:", kib / 512 + 64),
            ("VmSwap:", 0),
            ("HugetlbPages:", huge),
        ] {
            let _ = writeln!(text, "{name}\t{kib:>8} kB");
        }
        text.push_str("CoreDumping:\t0\nTHP_enabled:\t1\nuntag_mask:\t0xffffffffffffffff\n");
    }
    let _ = write!(
        text,
        "Threads:\t{}\nSigQ:\t0/96365\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n\
         SigBlk:\t0000000000000000\nSigIgn:\t0000000000001004\nSigCgt:\t0000000100004243\n\
         CapInh:\t0000000000000000\nCapPrm:\t000001ffffffffff\nCapEff:\t000001ffffffffff\n\
         CapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\nNoNewPrivs:\t0\nSeccomp:\t0\n\
         Seccomp_filters:\t0\nSpeculation_Store_Bypass:\tthread vulnerable\n\
         SpeculationIndirectBranch:\talways enabled\n\
         Cpus_allowed:\t{}\nCpus_allowed_list:\t{}\nMems_allowed:\t{}\nMems_allowed_list:\t{}\n\
         voluntary_ctxt_switches:\t{}\nnonvoluntary_ctxt_switches:\t{}\n",
        process.tasks.len(),
        mask_of(task.allowed.iter().map(Id::raw), shape.cpus),
        task.allowed,
        mask_of(process.mems.iter().map(Id::raw), 1024),
        process.mems,
        task.busy.0 / 4_000_000,
        task.steal.0 / 4_000_000,
    );
    text
}
