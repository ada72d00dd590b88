//! A report for people, in lines of up to 80 columns: what every VM got, and why.

use super::{SimulatedVm, SimulationReport};
use instep_report::stats::estimate;
use instep_report::table::{Side, Spacing, aligned};
use std::fmt::Write as _;

/// Columns of a VM's name.
const NAME: usize = 14;
const SPACING: Spacing = Spacing { indent: 0, gap: 2 };

impl SimulationReport {
    /// The tables.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let seconds = self.duration_ns as f64 / 1e9;
        let busy: f64 = self.host.utilisation.iter().sum();
        let _ = writeln!(
            out,
            "{} on {} CPUs ({}), {seconds} s simulated, seed {}, {} events",
            self.scheduler, self.host.cpus, self.machine, self.seed, self.events
        );
        let _ = writeln!(
            out,
            "{busy:.2} CPUs busy, competing modules {:.2}, {:.0} switches/s{}\n",
            self.host.competing_modules,
            self.host.switches_per_s,
            self.host
                .boosts_per_s
                .map_or(String::new(), |boosts| format!(", {boosts:.1} boosts/s"))
        );
        let longest = self.vms.iter().map(|vm| vm.name.chars().count()).max().unwrap_or(2);
        let width = longest.clamp(2, NAME);
        out.push_str(&self.got());
        out.push('\n');
        out.push_str(&self.why(width));
        out.push_str(
            "\nspeed: throughput / (fair share x throughput alone); least: the same by the Lag\n\
             model; usable: part of its share that it could use (potential). See\n\
             docs/models/results.md\n",
        );
        out
    }

    fn got(&self) -> String {
        let row = |vm: &SimulatedVm| {
            let least = vm
                .fair_share_speed
                .zip(vm.lag.as_ref())
                .map(|(speed, lag)| speed * self.duration_ns as f64 / lag.latest_ns.max(1) as f64);
            vec![
                short(&vm.name, NAME),
                format!("{:.1}", vm.throughput),
                short(vm.unit, 12),
                or_dash(vm.fair_share_speed, 3),
                or_dash(least, 3),
                or_dash(vm.potential, 2),
                or_dash(vm.fair_share, 3),
                format!("{:.2}", vm.cpus),
                vm.kind.map_or("-".to_owned(), |kind| kind.to_string()),
            ]
        };
        let head = [
            ("VM", Side::Left),
            ("throughput", Side::Right),
            ("a second", Side::Left),
            ("speed", Side::Right),
            ("least", Side::Right),
            ("usable", Side::Right),
            ("share", Side::Right),
            ("CPUs", Side::Right),
            ("type", Side::Right),
        ];
        aligned(&head, &self.vms.iter().map(row).collect::<Vec<_>>(), SPACING)
    }

    fn why(&self, width: usize) -> String {
        let row = |vm: &SimulatedVm| {
            vec![
                short(&vm.name, width),
                format!("{:.3}", vm.stacking),
                format!("{:.3}", vm.co_run),
                time(vm.max_skew_ns),
                format!("{:.2}", vm.steal),
                time(vm.wait.p99_ns),
                format!("{:.2}", vm.local_access),
                short(&instead(vm), 80 - 46 - width),
            ]
        };
        let head = [
            ("VM", Side::Left),
            (" stack", Side::Right),
            ("co-run", Side::Right),
            ("    skew", Side::Right),
            (" steal", Side::Right),
            ("wait 99%", Side::Right),
            ("local", Side::Right),
            ("ran instead", Side::Left),
        ];
        let rows: Vec<_> = self.vms.iter().map(row).collect();
        aligned(&head, &rows, Spacing { indent: 0, gap: 1 })
    }
}

/// Several seeds of one scenario: of every VM the means with 95 % confidence.
pub fn summary(runs: &[SimulationReport]) -> String {
    let mut out = String::new();
    let Some(first) = runs.first() else { return out };
    let seconds = first.duration_ns as f64 / 1e9;
    let _ = writeln!(
        out,
        "{} on {} CPUs ({}), {seconds} s simulated, {} seeds from {}",
        first.scheduler,
        first.host.cpus,
        first.machine,
        runs.len(),
        first.seed
    );
    out.push('\n');
    let mut rows = Vec::new();
    for (at, vm) in first.vms.iter().enumerate() {
        let values = |of: &dyn Fn(&SimulatedVm) -> Option<f64>| -> Vec<f64> {
            runs.iter().filter_map(|run| of(run.vms.get(at)?)).collect()
        };
        let shown = |values: Vec<f64>, places: usize| {
            estimate(&values).map_or("-".to_owned(), |found| {
                format!("{:.places$} +-{:.places$}", found.mean, found.high - found.mean)
            })
        };
        let mean = |values: Vec<f64>| or_dash(estimate(&values).map(|found| found.mean), 3);
        rows.push(vec![
            short(&vm.name, NAME),
            shown(values(&|vm| Some(vm.throughput)), 1),
            short(vm.unit, 12),
            shown(values(&|vm| vm.fair_share_speed), 3),
            mean(values(&|vm| Some(vm.stacking))),
            mean(values(&|vm| Some(vm.co_run))),
        ]);
    }
    let head = [
        ("VM", Side::Left),
        ("throughput", Side::Right),
        ("a second", Side::Left),
        ("speed", Side::Right),
        ("stack", Side::Right),
        ("co-run", Side::Right),
    ];
    out.push_str(&aligned(&head, &rows, SPACING));
    out.push_str("\nspeed: throughput / (fair share x throughput alone); +-: 95 % confidence\n");
    out
}

/// Who had the CPU for most of the time that it waited.
fn instead(vm: &SimulatedVm) -> String {
    let all: u64 = vm.culprits.iter().map(|one| one.ns).sum();
    let most = vm.culprits.iter().max_by_key(|one| one.ns).filter(|one| one.ns > 0);
    most.map_or("-".to_owned(), |most| {
        format!("{:.0}% {}", most.ns as f64 * 100.0 / all as f64, most.name)
    })
}

fn or_dash(value: Option<f64>, places: usize) -> String {
    value.map_or("-".to_owned(), |value| match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        _ => format!("{value:.places$}"),
    })
}

/// A time in up to seven columns.
fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => (ns as f64, "ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let places = usize::from(value < 99.95 && unit != "ns");
    format!("{value:.places$}{unit}")
}

/// The text, or its beginning and a mark.
fn short(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['~']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        let shown = [0, 999, 1_500, 250_000, 99_960_000, 4_000_000_000, 400_000_000_000].map(time);
        assert_eq!(shown, ["0ns", "999ns", "1.5us", "250us", "100ms", "4.0s", "400s"]);
    }

    #[test]
    fn long_names_are_cut_with_a_mark() {
        assert_eq!((short("abcdef", 4), short("abcd", 4)), ("abc~".to_owned(), "abcd".to_owned()));
    }
}
