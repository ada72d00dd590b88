//! What the simulations found: times, gaps to the best plan and speeds; as a table of 80 columns and as JSON (schema
//! `instep.placement/1`). Judges nothing.

use crate::placement::jobs::Job;
use crate::placement::targets::Target;
use instep_report::table::{Side, Spacing, aligned};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The rules in the order of columns, the judged one first.
pub(crate) const RULES: [&str; 6] = ["instep", "bnn", "bind", "none", "spread", "numad"];
/// The schedulers that placement is simulated above.
pub(crate) const SCHEDULERS: [&str; 2] = ["eevdf", "instep"];

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Milliseconds of deciding for 1,000 VMs at first, and when all is in force.
    pub(crate) times: Option<[f64; 2]>,
    /// By how much the plan loses more than the best, as a part of what that loses.
    pub(crate) gaps: Vec<f64>,
    /// Small hosts with too many plans to try them all.
    pub(crate) untried: usize,
    pub(crate) hosts: Vec<Host>,
    pub(crate) notes: Vec<String>,
}

/// A host on which guests were simulated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    pub(crate) name: String,
    /// CPUs, nodes, last-level caches and VMs.
    pub(crate) size: [u64; 4],
    /// Mean fair-share speed of its guests by scheduler and rule, in the order of [`SCHEDULERS`] and [`RULES`].
    pub(crate) speeds: [[f64; 6]; 2],
    /// The same with each guest counted by its weight.
    pub(crate) weighted: [[f64; 6]; 2],
    /// Mean fair-share speed by scheduler under an earlier policy, where that is known.
    pub(crate) before: Option<[f64; 2]>,
}

impl Found {
    /// Takes the result of a job.
    pub(crate) fn take(&mut self, job: &Job, result: &Value) {
        if let Some(error) = result["error"].as_str() {
            self.notes.push(format!("{} ({}) has no result: {error}", job.host, job.kind()));
            return;
        }
        match job.kind() {
            "time" => {
                let ms = |key: &str| result[key].as_f64().map(|us| us / 1000.0);
                self.times = ms("first").zip(ms("in_force")).map(|(first, then)| [first, then]);
            }
            "gap" => match (result["found"].as_f64(), result["best"].as_f64()) {
                // A thousandth of a CPU is no loss that matters.
                (Some(found), Some(best)) => self.gaps.push((found - best) / best.max(1000.0)),
                _ => self.untried += 1,
            },
            _ => self.hosts.extend(Host::read(&job.host, result)),
        }
    }

    /// Mean and largest gap.
    pub(crate) fn gap(&self) -> Option<[f64; 2]> {
        let count = self.gaps.len() as f64;
        let worst = self.gaps.iter().copied().fold(0.0, f64::max);
        (count > 0.0).then(|| [self.gaps.iter().sum::<f64>() / count, worst])
    }

    /// The mean over hosts by rule, plain and by weight.
    pub(crate) fn means(&self, scheduler: usize) -> [[f64; 6]; 2] {
        let mean = |speeds: fn(&Host) -> &[[f64; 6]; 2], rule: usize| {
            let of = self.hosts.iter().map(|host| speeds(host)[scheduler][rule]);
            of.sum::<f64>() / self.hosts.len().max(1) as f64
        };
        let rules = std::array::from_fn::<usize, 6, _>(|rule| rule);
        [
            rules.map(|rule| mean(|host| &host.speeds, rule)),
            rules.map(|rule| mean(|host| &host.weighted, rule)),
        ]
    }

    /// On how many hosts an earlier policy is known, and its mean speed there by scheduler.
    fn before(&self) -> Option<(usize, [f64; 2])> {
        let known: Vec<[f64; 2]> = self.hosts.iter().filter_map(|host| host.before).collect();
        let mean =
            |at: usize| known.iter().map(|speeds| speeds[at]).sum::<f64>() / known.len() as f64;
        (!known.is_empty()).then(|| (known.len(), [mean(0), mean(1)]))
    }

    /// Hosts, speeds by rule, and by how much `instep` is above the best of the others, in at most 80 columns.
    pub(crate) fn draw(&self) -> String {
        let mut text = String::new();
        for (at, scheduler) in SCHEDULERS.iter().enumerate() {
            text.push('\n');
            text.push_str(&self.draw_above(at, scheduler));
        }
        let tried = self.gaps.len();
        let _ = writeln!(
            text,
            "\n{tried} small hosts against every plan; {} more have too many plans.",
            self.untried
        );
        if let Some([first, then]) = self.times {
            let _ = writeln!(
                text,
                "Deciding for 1,000 VMs: {first:.1} ms at first, {then:.1} ms in force."
            );
        }
        if let Some((count, [eevdf, instep])) = self.before() {
            let _ = writeln!(
                text,
                "The policy before: {eevdf:.3} above eevdf, {instep:.3} above instep, on {count} hosts."
            );
        }
        self.notes.iter().for_each(|note| _ = writeln!(text, "{note}."));
        text
    }

    /// All of it; `commit` is what was measured.
    pub(crate) fn json(&self, targets: &[Target], commit: &str) -> String {
        let by_rule = |speeds: &[f64; 6]| -> BTreeMap<&str, f64> {
            RULES.iter().copied().zip(speeds.iter().map(|speed| round(*speed))).collect()
        };
        let by_scheduler = |speeds: &[[f64; 6]; 2]| -> BTreeMap<&str, BTreeMap<&str, f64>> {
            SCHEDULERS.iter().copied().zip(speeds.iter().map(by_rule)).collect()
        };
        let host = |host: &Host| {
            let [cpus, nodes, caches, vms] = host.size;
            json!({
                "name": host.name, "cpus": cpus, "nodes": nodes, "caches": caches, "vms": vms,
                "speeds": by_scheduler(&host.speeds), "by_weight": by_scheduler(&host.weighted),
                "before": host.before.map(|before| before.map(round)),
            })
        };
        let hosts: Vec<Value> = self.hosts.iter().map(host).collect();
        let head = json!({
            "schema": "instep.placement/1",
            "commit": commit,
            "targets": targets.iter().map(Target::json).collect::<Vec<Value>>(),
            "gaps": self.gaps.iter().map(|gap| round(*gap)).collect::<Vec<f64>>(),
            "untried": self.untried,
            "decide_ms": self.times.map(|times| times.map(round)),
            "notes": self.notes,
            "hosts": hosts,
        });
        format!("{head}\n")
    }
}

fn round(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}

impl Found {
    /// The hosts above one scheduler, with the means below.
    fn draw_above(&self, at: usize, scheduler: &str) -> String {
        let row = |name: &str, size: [String; 3], speeds: &[f64; 6]| -> Vec<String> {
            let speeds_then_gain = speeds.iter().map(|speed| format!("{speed:.3}"));
            let speeds_then_gain =
                speeds_then_gain.chain([format!("{:+.1}", gain(speeds) * 100.0)]);
            let name = name.chars().take(20).collect();
            std::iter::once(name).chain(size).chain(speeds_then_gain).collect()
        };
        let of_host = |host: &Host| {
            let [cpus, _, caches, vms] = host.size.map(|count| count.to_string());
            row(&host.name, [cpus, caches, vms], &host.speeds[at])
        };
        let mut rows: Vec<_> = self.hosts.iter().map(of_host).collect();
        let [plain, weighted] = self.means(at);
        for (name, speeds) in [("mean", plain), ("mean by cpu.weight", weighted)] {
            rows.push(row(name, [const { String::new() }; 3], &speeds));
        }
        let first = format!("above {scheduler}");
        let sizes_then_gain = ["CPU", "LLC", "VMs"].into_iter().chain(RULES).chain(["+-%"]);
        let head: Vec<_> = std::iter::once((first.as_str(), Side::Left))
            .chain(sizes_then_gain.map(|title| (title, Side::Right)))
            .collect();
        aligned(&head, &rows, Spacing { indent: 0, gap: 1 })
    }
}

/// By how much the first is above the best of the others, as a part of that.
pub(crate) fn gain(speeds: &[f64; 6]) -> f64 {
    let best = speeds[1..].iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    speeds[0] / best - 1.0
}

impl Host {
    /// By how much `instep` is above the best of `bnn`, `bind`, `none` and the earlier policy, as a part of that; `None` where
    /// the earlier policy is not known.
    pub(crate) fn gain_of_target(&self, scheduler: usize) -> Option<f64> {
        let others =
            [self.speeds[scheduler][1], self.speeds[scheduler][2], self.speeds[scheduler][3]];
        let best = others.iter().copied().fold(self.before?[scheduler], f64::max);
        Some(self.speeds[scheduler][0] / best.max(f64::MIN_POSITIVE) - 1.0)
    }

    fn read(name: &str, result: &Value) -> Option<Self> {
        let list = |value: &Value| -> Vec<f64> {
            value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        let weights = list(&result["weights"]);
        let mut host = Self { name: name.to_owned(), ..Self::default() };
        for (size, key) in host.size.iter_mut().zip(["cpus", "nodes", "caches", "vms"]) {
            *size = result[key].as_u64()?;
        }
        for (at, scheduler) in SCHEDULERS.iter().enumerate() {
            for (rule, name) in RULES.iter().enumerate() {
                let speeds = list(&result["speeds"][*scheduler][*name]);
                if speeds.is_empty() || speeds.len() != weights.len() {
                    return None;
                }
                host.speeds[at][rule] = speeds.iter().sum::<f64>() / speeds.len() as f64;
                let sum: f64 =
                    speeds.iter().zip(&weights).map(|(speed, weight)| speed * weight).sum();
                host.weighted[at][rule] = sum / weights.iter().sum::<f64>().max(1.0);
            }
        }
        Some(host)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A host where `instep` is so fast and all others have half of full speed.
    pub(crate) fn host(name: &str, own: f64) -> Host {
        let speeds = [[own, 0.5, 0.5, 0.5, 0.5, 0.5]; 2];
        Host {
            name: name.to_owned(),
            size: [128, 4, 16, 40],
            speeds,
            weighted: speeds,
            before: None,
        }
    }

    #[test]
    fn a_host_is_the_mean_of_its_guests_plain_and_by_weight() {
        let rules: BTreeMap<&str, [f64; 2]> =
            RULES.iter().map(|rule| (*rule, [1.0, 0.5])).collect();
        let speeds: BTreeMap<&str, _> = SCHEDULERS.iter().map(|name| (*name, &rules)).collect();
        let result = json!({
            "cpus": 8, "nodes": 2, "caches": 2, "vms": 2, "weights": [300, 100], "speeds": speeds
        });
        let host = Host::read("a", &result).unwrap();
        assert_eq!((host.speeds[1][5], host.weighted[0][0]), (0.75, 0.875));
        assert!(Host::read("a", &json!({ "cpus": 8 })).is_none());
    }

    #[test]
    fn the_table_has_80_columns_at_most() {
        let name = "16em64t-4s2c2t-of-a-long-name 1";
        let found =
            Found { hosts: vec![host(name, 0.55)], gaps: vec![0.0, 0.1], ..Found::default() };
        let text = found.draw();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("+10.0"), "{text}");
        assert_eq!(found.gap(), Some([0.05, 0.1]));
    }
}
