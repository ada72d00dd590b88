//! What the simulations found: times, gaps to the best plan and speeds; as a table of 80 columns and as JSON (schema
//! `instep.placement/1`). Judges nothing.

use crate::placement::jobs::Job;
use crate::placement::targets::{BELOW, Target};
use instep_report::stats::Estimate;
use instep_report::table::{Side, Spacing, aligned};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The rules in the order of columns, the judged one first.
pub(crate) const RULES: [&str; 6] = ["instep", "bnn", "bind", "none", "spread", "numad"];
/// The rules that it must not be below.
const OTHERS: [&str; 4] = ["bnn", "bind", "none", "before"];
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
    /// Mean fair-share speed of its guests by scheduler and rule, in the order of [`SCHEDULERS`] and [`RULES`]: the mean of
    /// all runs.
    pub(crate) speeds: [[f64; 6]; 2],
    /// The same with each guest counted by its weight.
    pub(crate) weighted: [[f64; 6]; 2],
    /// The same with each guest counted by the CPU time that it uses alone.
    pub(crate) worked: [[f64; 6]; 2],
    /// By scheduler: by how much `instep` is above each rule that it must not be below, as a part of that, in runs with the
    /// same seed. Empty where one of them is not known.
    pub(crate) above: [Vec<Estimate>; 2],
    /// Runs of `instep` by scheduler.
    pub(crate) runs: [usize; 2],
    /// By scheduler: the mean speed after changes that made guests faster, if any were asked for.
    pub(crate) changed: [Option<f64>; 2],
    /// Mean fair-share speed by scheduler where an earlier policy placed, where that is known.
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

    /// The mean over hosts by rule: each guest alike, by weight, and by CPU time.
    pub(crate) fn means(&self, scheduler: usize) -> [(&'static str, [f64; 6]); 3] {
        let mean = |speeds: fn(&Host) -> &[[f64; 6]; 2], rule: usize| {
            let of = self.hosts.iter().map(|host| speeds(host)[scheduler][rule]);
            of.sum::<f64>() / self.hosts.len().max(1) as f64
        };
        let rules = std::array::from_fn::<usize, 6, _>(|rule| rule);
        [
            ("mean", rules.map(|rule| mean(|host| &host.speeds, rule))),
            ("mean by cpu.weight", rules.map(|rule| mean(|host| &host.weighted, rule))),
            ("mean by CPU time", rules.map(|rule| mean(|host| &host.worked, rule))),
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
        (0..SCHEDULERS.len()).for_each(|at| text.push_str(&self.draw_chance(at)));
        text
    }

    /// What is chance in the speeds above a scheduler, and what changes reach that are kept where the simulation is faster.
    fn draw_chance(&self, scheduler: usize) -> String {
        let name = SCHEDULERS[scheduler];
        let mut text = String::new();
        let known = || self.hosts.iter().filter(|host| host.runs[scheduler] > 1);
        if known().next().is_some() {
            let count = |holds: fn(&Host, usize) -> Option<bool>, is: bool| {
                known().filter(|host| holds(host, scheduler) == Some(is)).count()
            };
            let [below, not_below] = [true, false].map(|is| count(Host::is_below, is));
            let [above, not_above] = [true, false].map(|is| count(Host::is_above, is));
            let same = known().filter(|host| host.gain_of_target(scheduler) == Some(0.0)).count();
            let hosts = known().count();
            let runs: usize = known().map(|host| host.runs[scheduler]).sum();
            let _ = writeln!(
                text,
                "Above {name}, beyond chance, instep is 1 % below one of bnn, bind, none and before on {below} hosts,\nnot \
                 on {not_below}, undecided on {}; above all of them on {above}, not on {not_above}, undecided on {}; {:.0} \
                 runs a host.\nOn {same} hosts it is as fast as the best of them to the last digit.",
                hosts - below - not_below,
                hosts - above - not_above,
                runs as f64 / hosts as f64
            );
        }
        let changed = |host: &Host| Some((host.changed[scheduler]?, host.best_other(scheduler)?));
        let changed: Vec<(f64, f64)> = self.hosts.iter().filter_map(changed).collect();
        if !changed.is_empty() {
            let mean = changed.iter().map(|pair| pair.0).sum::<f64>() / changed.len() as f64;
            let count = |holds: fn(f64) -> bool| {
                changed.iter().filter(|(speed, best)| holds(speed / best - 1.0)).count()
            };
            let _ = writeln!(
                text,
                "Changes kept where the simulation is faster: {mean:.3}; above the best of these on {} of {} hosts, 1 % \
                 below on {}.",
                count(|gain| gain > 0.0),
                changed.len(),
                count(|gain| gain < BELOW)
            );
        }
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
            let [below, above] = [Host::is_below, Host::is_above]
                .map(|holds| [0, 1].map(|scheduler| holds(host, scheduler)));
            let against = |of: &Vec<Estimate>| -> BTreeMap<&str, [f64; 3]> {
                let one = |one: &Estimate| [one.mean, one.low, one.high].map(round);
                OTHERS.into_iter().zip(of.iter().map(one)).collect()
            };
            json!({
                "name": host.name, "cpus": cpus, "nodes": nodes, "caches": caches, "vms": vms,
                "speeds": by_scheduler(&host.speeds), "by_weight": by_scheduler(&host.weighted),
                "by_cpu_time": by_scheduler(&host.worked), "changed": host.changed.map(|speed| speed.map(round)),
                "before": host.before.map(|before| before.map(round)),
                "above": host.above.each_ref().map(against), "runs": host.runs,
                "is_below": below, "is_above": above,
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
        for (name, speeds) in self.means(at) {
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
    /// By how much `instep` is above the best of [`OTHERS`], as a part of that; `None` where not all are known.
    pub(crate) fn gain_of_target(&self, scheduler: usize) -> Option<f64> {
        self.above[scheduler].iter().map(|above| above.mean).reduce(f64::min)
    }

    /// The mean speed of the best of [`OTHERS`]; `None` where not all are known.
    fn best_other(&self, scheduler: usize) -> Option<f64> {
        let of_rules = self.speeds[scheduler][1..4].iter().copied();
        Some(of_rules.fold(self.before?[scheduler], f64::max))
    }

    /// Whether `instep` is 1 % below one of [`OTHERS`]; `None` where that may be chance.
    pub(crate) fn is_below(&self, scheduler: usize) -> Option<bool> {
        let above = &self.above[scheduler];
        let is_not = !above.is_empty() && above.iter().all(|above| above.low >= BELOW);
        if above.iter().any(|above| above.high < BELOW) {
            Some(true)
        } else {
            is_not.then_some(false)
        }
    }

    /// Whether it is above all of them; `None` where that may be chance.
    pub(crate) fn is_above(&self, scheduler: usize) -> Option<bool> {
        let above = &self.above[scheduler];
        let is = !above.is_empty() && above.iter().all(|above| above.low > 0.0);
        if above.iter().any(|above| above.high <= 0.0) { Some(false) } else { is.then_some(true) }
    }

    fn read(name: &str, result: &Value) -> Option<Self> {
        let list = |value: &Value| -> Vec<f64> {
            value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        let weights = list(&result["weights"]);
        let by = [vec![1.0; weights.len()], weights, list(&result["alone"])];
        let mut host = Self { name: name.to_owned(), ..Self::default() };
        for (size, key) in host.size.iter_mut().zip(["cpus", "nodes", "caches", "vms"]) {
            *size = result[key].as_u64()?;
        }
        let mut known = [None; 2];
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
        for (at, scheduler) in SCHEDULERS.iter().enumerate() {
            for (rule, name) in RULES.iter().enumerate() {
                let runs: Vec<Vec<f64>> =
                    result["speeds"][*scheduler][*name].as_array()?.iter().map(list).collect();
                let is_whole = |speeds: &Vec<f64>| by.iter().all(|by| by.len() == speeds.len());
                if runs.is_empty() || !runs.iter().all(is_whole) {
                    return None;
                }
                let [speeds, weighted, worked] = by.each_ref().map(|by| {
                    let of_run = |speeds: &Vec<f64>| {
                        let sum: f64 = speeds.iter().zip(by).map(|(speed, by)| speed * by).sum();
                        sum / by.iter().sum::<f64>().max(1.0)
                    };
                    mean(&runs.iter().map(of_run).collect::<Vec<f64>>())
                });
                (host.speeds[at][rule], host.weighted[at][rule]) = (speeds, weighted);
                host.worked[at][rule] = worked;
                if rule == 0 {
                    host.runs[at] = runs.len();
                }
            }
            let above = |name: &&str| {
                let [mean, low, high] = ["mean", "low", "high"]
                    .map(|key| result["above"][*scheduler][*name][key].as_f64());
                let (low, high) = (low.unwrap_or(f64::NEG_INFINITY), high.unwrap_or(f64::INFINITY));
                Some(Estimate { mean: mean?, low, high })
            };
            host.above[at] = OTHERS.iter().map(above).collect::<Option<_>>().unwrap_or_default();
            let before = result["speeds"][*scheduler]["before"].as_array();
            known[at] = before
                .map(|runs| mean(&runs.iter().map(|run| mean(&list(run))).collect::<Vec<f64>>()));
            host.changed[at] = result["changed"][*scheduler].as_f64();
        }
        host.before = known[0].zip(known[1]).map(<[f64; 2]>::from);
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
            worked: speeds,
            ..Host::default()
        }
    }

    /// The result of a host of two guests where every rule has these speeds in its runs.
    fn result(speeds: &Value, above: &Value) -> Value {
        let rules: BTreeMap<&str, &Value> = RULES.iter().map(|rule| (*rule, speeds)).collect();
        let all: BTreeMap<&str, _> = SCHEDULERS.iter().map(|name| (*name, &rules)).collect();
        json!({
            "cpus": 8, "nodes": 2, "caches": 2, "vms": 2, "weights": [300, 100], "alone": [250, 750], "speeds": all,
            "above": { "eevdf": above }, "changed": { "eevdf": 0.8 },
        })
    }

    #[test]
    fn a_host_is_the_mean_of_runs_of_the_mean_of_its_guests() {
        let result = result(&json!([[0.0, 0.0], [1.0, 0.5], [2.0, 2.5]]), &Value::Null);
        let host = Host::read("a", &result).unwrap();
        assert_eq!((host.speeds[1][5], host.weighted[0][0], host.worked[0][0]), (1.0, 1.0, 1.0));
        assert_eq!((host.changed, host.runs), ([Some(0.8), None], [3, 3]));
        assert_eq!((host.gain_of_target(0), host.before), (None, None));
        assert_eq!((host.is_below(0), host.is_above(0)), (None, None));
        assert!(Host::read("a", &json!({ "cpus": 8 })).is_none());
    }

    #[test]
    fn earlier_policy_counts_by_the_mean_of_its_runs() {
        let mut result = result(&json!([[0.7, 0.7]]), &Value::Null);
        for (at, scheduler) in SCHEDULERS.iter().enumerate() {
            result["speeds"][*scheduler]["before"] =
                json!([[0.8, 0.6], [0.5, 0.5 + at as f64 / 5.0]]);
        }
        let [eevdf, instep] = Host::read("a", &result).unwrap().before.unwrap();
        assert!((eevdf - 0.6).abs() < 1e-9 && (instep - 0.65).abs() < 1e-9, "{eevdf} {instep}");
    }

    #[test]
    fn a_host_is_below_or_above_only_beyond_chance() {
        let host = |of: [[f64; 3]; 4]| {
            let all = OTHERS.iter().zip(of);
            let all: serde_json::Map<String, Value> = all
                .map(|(name, [mean, low, high])| {
                    ((*name).to_owned(), json!({ "mean": mean, "low": low, "high": high }))
                })
                .collect();
            let host =
                Host::read("a", &result(&json!([[0.7, 0.7], [0.7, 0.7]]), &all.into())).unwrap();
            assert_eq!(host.gain_of_target(1), None, "nothing is known above the other scheduler");
            (host.gain_of_target(0).unwrap(), host.is_below(0), host.is_above(0))
        };
        let clear = [0.05, 0.01, 0.09];
        assert_eq!(host([clear; 4]), (0.05, Some(false), Some(true)));
        let below = [-0.02, -0.03, -0.011];
        assert_eq!(host([clear, clear, clear, below]), (-0.02, Some(true), Some(false)));
        let open = [-0.02, -0.05, 0.01];
        assert_eq!(host([clear, open, clear, clear]), (-0.02, None, None));
        let near = [-0.005, -0.009, -0.001];
        assert_eq!(host([clear, near, clear, clear]), (-0.005, Some(false), Some(false)));
        let mut found = Found { hosts: vec![super::tests::host("a", 0.5)], ..Found::default() };
        assert_eq!(found.draw_chance(0), "", "one run says nothing");
        let estimate = |[mean, low, high]: [f64; 3]| Estimate { mean, low, high };
        found.hosts = [clear, below, open]
            .map(|of| Host {
                above: [vec![estimate(of)], Vec::new()],
                runs: [4, 0],
                ..Host::default()
            })
            .into();
        let text = found.draw_chance(0);
        assert!(
            text.contains("on 1 hosts,\nnot on 1, undecided on 1; above all of them on 1"),
            "{text}"
        );
        assert!(text.contains("not on 1, undecided on 1; 4 runs a host"), "{text}");
        assert_eq!(found.draw_chance(1), "");
    }

    #[test]
    fn changed_placements_are_compared_with_the_best_rule() {
        let mut found = Found { hosts: vec![host("a", 0.4), host("b", 0.4)], ..Found::default() };
        found.hosts.iter_mut().for_each(|host| host.before = Some([0.6, 0.4]));
        (found.hosts[0].changed, found.hosts[1].changed) = ([Some(0.7), None], [Some(0.59), None]);
        let text = found.draw_chance(0);
        let changed = "0.645; above the best of these on 1 of 2 hosts, 1 % below on 1.";
        assert!(text.contains(changed), "{text}");
        assert!(!found.draw_chance(1).contains("Changes"));
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
