//! Writes the files of /proc that are about the whole host.

use crate::cgroup::{self, Cgroups};
use crate::host::HostSpec;
use crate::process::TICK;
use crate::tree::Tree;
use instep_core::units::{CpuId, Nanos};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;

/// Whose CPU time was spent where since boot.
pub(crate) struct Spent {
    /// By CPU: of guests' vCPUs, and of everything else.
    pub(crate) by_cpu: BTreeMap<CpuId, (Nanos, Nanos)>,
}

impl Spent {
    /// Adds up time by the CPU it was last seen on. No CPU spends more than the host was up for;
    /// what is over goes to the next one with room.
    pub(crate) fn new(
        host: &HostSpec,
        now: Nanos,
        guests: &[(CpuId, Nanos)],
        other: &[(CpuId, Nanos)],
    ) -> Self {
        let mut by_cpu: BTreeMap<CpuId, (Nanos, Nanos)> =
            host.online().iter().map(|cpu| (cpu, (Nanos(0), Nanos(0)))).collect();
        for (cpu, time) in guests {
            give(&mut by_cpu, now, *cpu, *time, |spent| &mut spent.0);
        }
        for (cpu, time) in other {
            give(&mut by_cpu, now, *cpu, *time, |spent| &mut spent.1);
        }
        Self { by_cpu }
    }
}

fn give(
    by_cpu: &mut BTreeMap<CpuId, (Nanos, Nanos)>,
    now: Nanos,
    first: CpuId,
    mut time: Nanos,
    kind: impl Fn(&mut (Nanos, Nanos)) -> &mut Nanos,
) {
    let order: Vec<CpuId> =
        by_cpu.range(first..).chain(by_cpu.range(..first)).map(|(cpu, _)| *cpu).collect();
    for cpu in order {
        if time.0 == 0 {
            return;
        }
        if let Some(spent) = by_cpu.get_mut(&cpu) {
            let room = now.0.saturating_sub(spent.0.0 + spent.1.0);
            let part = room.min(time.0);
            kind(spent).0 += part;
            time.0 -= part;
        }
    }
}

/// Writes them below `proc`.
pub(crate) fn write(
    host: &HostSpec,
    now: Nanos,
    spent: &Spent,
    boot: u64,
    cgroups: Cgroups,
    proc: &Tree,
) -> io::Result<()> {
    proc.file("stat", stat(now, spent))?;
    let cpus = spent.by_cpu.len() as u64;
    let busy: u64 = spent.by_cpu.values().map(|(guests, other)| guests.0 + other.0).sum();
    let idle = (now.0 * cpus).saturating_sub(busy);
    let hundredths = |nanos: u64| {
        let ticks = nanos / TICK;
        format!("{}.{:02}", ticks / 100, ticks % 100)
    };
    proc.line("uptime", format_args!("{} {}", hundredths(now.0), hundredths(idle)))?;
    proc.line("loadavg", "0.08 0.07 0.05 3/107 9901")?;
    let kib = host.memory_per_node.0 / 1024 * u64::from(host.nodes + host.memory_only_nodes);
    let mut meminfo = String::new();
    for (name, kib) in [
        ("MemTotal:", kib),
        ("MemFree:", kib / 2),
        ("MemAvailable:", kib / 2),
        ("Buffers:", 0),
        ("Cached:", kib / 8),
        ("SwapTotal:", 0),
        ("SwapFree:", 0),
    ] {
        let _ = writeln!(meminfo, "{name:<15} {kib:>8} kB");
    }
    meminfo.push_str("HugePages_Total:       0\nHugepagesize:       2048 kB\n");
    proc.file("meminfo", meminfo)?;
    proc.line("version", "Linux version 6.18.0 (made@made) #1 SMP PREEMPT_DYNAMIC")?;
    proc.sub("sys/kernel")?.line("osrelease", "6.18.0")?;
    let id = format!("00000000-0000-4000-8000-{boot:012x}");
    proc.sub("sys/kernel/random")?.line("boot_id", id)?;
    proc.sub("sys/kernel")?.line("sched_schedstats", "0")?;
    write_mounts(cgroups, proc)
}

fn write_mounts(cgroups: Cgroups, proc: &Tree) -> io::Result<()> {
    let cgroups_mounted = cgroup::mounts(cgroups);
    let mounts = format!(
        "proc /proc proc rw,relatime 0 0\n\
         sysfs /sys sysfs rw,relatime 0 0\n\
         {cgroups_mounted}\
         debugfs /sys/kernel/debug debugfs rw,relatime 0 0\n\
         /dev/vda1 / ext4 rw,relatime 0 0\n"
    );
    let own = proc.sub("self")?;
    own.file("mounts", mounts)?;
    own.file("cgroup", cgroup::membership(cgroups, "/init.scope"))?;
    own.line("cpuset", "/")?;
    proc.link("mounts", "self/mounts")
}

fn stat(now: Nanos, spent: &Spent) -> String {
    let mut lines = String::new();
    let mut sum = [0u64; 3];
    for (cpu, (guests, other)) in &spent.by_cpu {
        let (guest, other) = (guests.0 / TICK, other.0 / TICK);
        let idle = (now.0 / TICK).saturating_sub(guest + other);
        line(&mut lines, &format!("cpu{cpu}"), [guest, other, idle]);
        for (sum, part) in sum.iter_mut().zip([guest, other, idle]) {
            *sum += part;
        }
    }
    let mut text = String::new();
    line(&mut text, "cpu ", sum);
    text.push_str(&lines);
    let seconds = 1_795_000_000u64;
    let _ = write!(
        text,
        "intr 219659 0 0 0 0 0 0 0 0 0 0 1 1 15\nctxt 472872\nbtime {seconds}\nprocesses 9891\n\
         procs_running 3\nprocs_blocked 0\nsoftirq 164748 0 16541 4 8566 76671 0 105 30269 0 32592\n"
    );
    text
}

/// user nice system idle iowait irq softirq steal guest guest_nice; user contains guest.
fn line(text: &mut String, name: &str, [guest, other, idle]: [u64; 3]) {
    let system = other / 3;
    let user = guest + other - system;
    let _ = writeln!(text, "{name} {user} 0 {system} {idle} 0 0 0 0 {guest} 0");
}
