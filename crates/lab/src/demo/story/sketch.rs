//! A host's moment and a guest's memory in plain characters, 79 columns wide at most for the
//! demo's host.
//!
//! ```text
//! node 0                                 node 1
//! core 0             core 1              core 2             core 3
//! 0: alpha0          2: beta0            4: -               6: -
//! 1: alpha1          3: beta1            5: -               7: -
//! memory: none                           memory: alpha 86, beta 86 MiB
//! ```

use crate::host::machine::HostMachine;
use crate::page::{Phase, SpeedSample, Speeds};
use crate::scenario::evidence::{GuestSeen, LabObservation};
use instep_core::idset::NodeSet;
use instep_core::units::NodeId;
use instep_report::table::{Side, Spacing, aligned};

/// Columns of the whole.
const WIDTH: usize = 79;
/// Columns of a bar of memory.
const BAR: usize = 32;
/// Columns of a bar of speed, and the speed that fills it.
const SPEED_BAR: usize = 20;
const FASTEST: f64 = 1.25;

/// The host with the vCPUs where they ran last, and memory by node.
pub(super) fn host(host: &HostMachine, seen: &LabObservation) -> String {
    let threads = host.threads.max(1);
    let cores = host.cpus() / threads;
    let column = WIDTH / cores.max(1) as usize;
    let wide = column * (cores / host.nodes.max(1)) as usize;
    let mut lines = vec![
        (0..host.nodes).map(|node| padded(&format!("node {node}"), wide)).collect::<String>(),
        (0..cores).map(|core| padded(&format!("core {core}"), column)).collect(),
    ];
    for thread in 0..threads {
        let cell = |core: u32| padded(&cpu(core * threads + thread, seen), column);
        lines.push((0..cores).map(cell).collect());
    }
    lines.push((0..host.nodes).map(|node| padded(&memory(node, seen), wide)).collect());
    lines.iter().map(|line| format!("  {}\n", line.trim_end())).collect()
}

/// A CPU and the vCPUs that were there last.
fn cpu(cpu: u32, seen: &LabObservation) -> String {
    let mut there = String::new();
    for guest in &seen.guests {
        for vcpu in guest.vcpus().filter(|vcpu| vcpu.cpu == cpu) {
            there.push_str(&format!(" {}{}", guest.name, vcpu.vcpu.unwrap_or(0)));
        }
    }
    if there.is_empty() { format!("{cpu}: -") } else { format!("{cpu}:{there}") }
}

fn memory(node: u32, seen: &LabObservation) -> String {
    let on = |guest: &GuestSeen| guest.memory_bytes_by_node.get(node as usize).map(|b| b >> 20);
    let parts: Vec<String> = seen
        .guests
        .iter()
        .filter_map(|guest| Some((guest, on(guest).filter(|mib| *mib > 0)?)))
        .map(|(guest, mib)| format!("{} {mib}", guest.name))
        .collect();
    if parts.is_empty() { "MiB: -".to_owned() } else { format!("MiB: {}", parts.join(", ")) }
}

/// Cut or filled to so many columns, with at least one blank at the end.
fn padded(text: &str, columns: usize) -> String {
    let room = columns.saturating_sub(1);
    let mut cut: String = text.chars().take(room).collect();
    if text.chars().count() > room {
        cut.pop();
        cut.push('~');
    }
    format!("{cut:<columns$}")
}

/// A guest's memory as a bar of its nodes' numbers, and in words.
pub(super) fn bar(guest: &GuestSeen, names: usize) -> String {
    let total: u64 = guest.memory_bytes_by_node.iter().sum();
    let mut bar = String::new();
    let mut below = 0;
    for (node, bytes) in guest.memory_bytes_by_node.iter().enumerate() {
        below += bytes;
        let end = (below as f64 / total.max(1) as f64 * BAR as f64).round();
        while bar.len() < end as usize {
            bar.push(char::from_digit(node as u32 % 36, 36).unwrap_or('?'));
        }
    }
    let mib: Vec<String> =
        guest.memory_bytes_by_node.iter().map(|bytes| format!("{:>3}", bytes >> 20)).collect();
    let home: NodeSet = guest.nodes.iter().map(|node| NodeId(*node)).collect();
    format!(
        "{:<names$} [{bar:<BAR$}] {} MiB, {:>3.0} % at home {home}",
        guest.name,
        mib.join(" + "),
        guest.memory_home * 100.0
    )
}

/// Each guest's speed at a look, as a bar that reaches its end at [`FASTEST`].
pub(super) fn speeds(names: &[&str], look: &SpeedSample) -> String {
    let mut line = format!("{:>4.0}s", look.seconds);
    for (name, speed) in names.iter().zip(&look.speeds) {
        let filled = (speed / FASTEST).clamp(0.0, 1.0) * SPEED_BAR as f64;
        let bar = "#".repeat(filled.round() as usize);
        line.push_str(&format!("  {name} [{bar:<SPEED_BAR$}] {speed:.2}"));
    }
    line
}

/// Each guest's speed under each scheduler, and how many times as fast it was under the last.
pub(super) fn table(speeds: &Speeds) -> String {
    let phases = speeds.phases.iter().map(|phase| phase.scheduler.as_str());
    let titles = ["fair-share speed"].into_iter().chain(phases).chain(["times as fast"]);
    let sides = [Side::Left].into_iter().chain(std::iter::repeat(Side::Right));
    let row = |(guest, name): (usize, &String)| {
        let mean = |phase: &Phase| phase.mean.get(guest).copied().unwrap_or(0.0);
        let means = speeds.phases.iter().map(|phase| format!("{:.2}", mean(phase)));
        let factor = speeds.factor(guest).map_or("-".to_owned(), |factor| format!("{factor:.1}"));
        std::iter::once(name.clone()).chain(means).chain([factor]).collect()
    };
    let rows: Vec<_> = speeds.guests.iter().enumerate().map(row).collect();
    aligned(&titles.zip(sides).collect::<Vec<_>>(), &rows, Spacing { indent: 2, gap: 2 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::evidence::ThreadSeen;

    fn machine() -> HostMachine {
        toml::from_str("nodes = 2\ncores = 2\nthreads = 2\nmemory = '1GiB'").unwrap()
    }

    fn guest(name: &str, cpus: &[u32], mib: [u64; 2]) -> GuestSeen {
        let thread = |(vcpu, cpu): (u32, &u32)| ThreadSeen {
            vcpu: Some(vcpu),
            cpu: *cpu,
            ..ThreadSeen::default()
        };
        GuestSeen {
            name: name.to_owned(),
            memory_bytes_by_node: mib.map(|mib| mib << 20).to_vec(),
            memory_home: 0.25,
            threads: (0..).zip(cpus).map(thread).collect(),
            ..GuestSeen::default()
        }
    }

    #[test]
    fn a_host_is_drawn_in_less_than_80_columns() {
        let guests = vec![guest("alpha", &[0, 1], [0, 86]), guest("beta", &[1, 1], [0, 80])];
        let drawn = host(&machine(), &LabObservation { guests, online: Vec::new() });
        assert!(drawn.lines().all(|line| line.chars().count() < 80), "{drawn}");
        for part in
            ["0: alpha0 ", "1: alpha1 beta0 b~ ", "2: - ", "MiB: -", "MiB: alpha 86, beta 80"]
        {
            assert!(drawn.contains(part), "{part}:\n{drawn}");
        }
    }

    #[test]
    fn a_bar_has_each_node_s_number_by_its_part() {
        let line = bar(&GuestSeen { nodes: vec![0], ..guest("beta", &[], [20, 60]) }, 5);
        assert_eq!(line, "beta  [00000000111111111111111111111111]  20 +  60 MiB,  25 % at home 0");
        assert!(bar(&guest("x", &[], [0, 0]), 5).contains(&" ".repeat(32)));
    }

    #[test]
    fn speeds_are_bars_and_a_table_in_less_than_80_columns() {
        let look = SpeedSample { seconds: 7.4, speeds: vec![0.3, 2.0] };
        let line = speeds(&["spins", "computes"], &look);
        assert_eq!(
            line,
            "   7s  spins [#####               ] 0.30  computes [####################] 2.00"
        );
        let phase = |name: &str, speed| Phase {
            scheduler: name.to_owned(),
            mean: vec![speed, 0.0],
            looks: Vec::new(),
        };
        let phases = vec![phase("default scheduler", 0.3), phase("Instep", 0.9)];
        let guests = vec!["spins".to_owned(), "computes".to_owned()];
        let text = table(&Speeds { loads: guests.clone(), guests, phases, diluted: 0.0 });
        assert_eq!(
            text,
            "  fair-share speed  default scheduler  Instep  times as fast\n\
             \x20 spins                          0.30    0.90            3.0\n\
             \x20 computes                       0.00    0.00              -\n"
        );
        assert!(line.len() < 80 && text.lines().all(|line| line.len() < 80));
    }
}
