//! What the simulations found: times, gaps to the best plan and speeds; as a table of 80 columns and as JSON (schema
//! `instep.placement/1`). Judges nothing.

use crate::placement::jobs::Job;
use crate::placement::targets::{BELOW, Target};
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
    /// Mean fair-share speed of its guests by scheduler and rule, in the order of [`SCHEDULERS`] and [`RULES`]: the median of
    /// several runs.
    pub(crate) speeds: [[f64; 6]; 2],
    /// The same with each guest counted by its weight.
    pub(crate) weighted: [[f64; 6]; 2],
    /// The same with each guest counted by the CPU time that it uses alone.
    pub(crate) worked: [[f64; 6]; 2],
    /// The same of each guest alike, in each run. Runs of the same number have the same seed.
    pub(crate) runs: [[Vec<f64>; 6]; 2],
    /// By scheduler: the same where an earlier policy placed, where that is known.
    pub(crate) before_runs: [Vec<f64>; 2],
    /// By scheduler: the best of the placements that were drawn at random, if there are any.
    pub(crate) drawn: [Option<f64>; 2],
    /// Mean fair-share speed by scheduler where an earlier policy placed, the median of runs, where that is known.
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

    /// What is chance in the speeds above a scheduler, and how fast the best placements are that were drawn at random.
    fn draw_chance(&self, scheduler: usize) -> String {
        let name = SCHEDULERS[scheduler];
        let mut text = String::new();
        let spread = |runs: &Vec<f64>| {
            let [least, most] = [f64::min, f64::max]
                .map(|pick| runs.iter().copied().reduce(pick).unwrap_or_default());
            (runs.len() > 1).then(|| (most - least) / most.max(f64::MIN_POSITIVE) * 100.0)
        };
        let all = self.hosts.iter().flat_map(|host| &host.runs[scheduler]);
        let mut spreads: Vec<f64> = all.filter_map(spread).collect();
        spreads.sort_by(f64::total_cmp);
        if let [.., most] = spreads[..] {
            let [half, tenth] = [spreads.len() / 2, spreads.len() * 9 / 10].map(|at| spreads[at]);
            let hosts = || self.hosts.iter();
            let below = hosts().filter(|host| host.is_below_in_each_run(scheduler)).count();
            let above = hosts().filter(|host| host.is_above_in_each_run(scheduler)).count();
            let _ = writeln!(
                text,
                "Above {name} runs of one placement rule are {half:.1} % apart, one in ten {tenth:.1} %, at most \
                 {most:.1} %.\nOf bnn, bind, none and before with the same seeds, instep is 1 % below one in each run on \
                 {below} hosts,\nand above all in each run on {above} hosts."
            );
        }
        let hosts = self.hosts.iter();
        let chance: Vec<f64> = hosts.filter_map(|host| host.gain_on_itself(scheduler)).collect();
        if !chance.is_empty() {
            let part = |wanted: fn(&f64) -> bool| {
                let count = chance.iter().filter(|gain| wanted(gain)).count();
                count as f64 * 100.0 / chance.len() as f64
            };
            let (below, above) = (part(|gain| *gain < BELOW), part(|gain| *gain > 0.0));
            let _ = writeln!(
                text,
                "Against four like it, by chance alone, instep is 1 % below on {below:.0} % of hosts, and above on \
                 {above:.0} %."
            );
        }
        let drawn: Vec<(f64, f64)> = self
            .hosts
            .iter()
            .filter_map(|host| Some((host.drawn[scheduler]?, host.speeds[scheduler][0])))
            .collect();
        if !drawn.is_empty() {
            let mean = drawn.iter().map(|pair| pair.0).sum::<f64>() / drawn.len() as f64;
            let above = drawn.iter().filter(|(drawn, own)| own / drawn - 1.0 < -0.01).count();
            let _ = writeln!(
                text,
                "The best placements drawn at random: {mean:.3}; on {above} hosts instep is 1 % below."
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
            let [below, above] = [Host::is_below_in_each_run, Host::is_above_in_each_run]
                .map(|holds| [0, 1].map(|scheduler| holds(host, scheduler)));
            json!({
                "name": host.name, "cpus": cpus, "nodes": nodes, "caches": caches, "vms": vms,
                "speeds": by_scheduler(&host.speeds), "by_weight": by_scheduler(&host.weighted),
                "by_cpu_time": by_scheduler(&host.worked), "drawn": host.drawn.map(|best| best.map(round)),
                "before": host.before.map(|before| before.map(round)),
                "below_in_each_run": below, "above_in_each_run": above,
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

/// The middle one, the mean of both of an even number.
fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    Some(if sorted.len() % 2 == 1 { upper } else { (sorted[half - 1] + upper) / 2.0 })
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
    /// By how much `instep` is above the best of `bnn`, `bind`, `none` and the earlier policy, as a part of that; `None` where
    /// the earlier policy is not known.
    pub(crate) fn gain_of_target(&self, scheduler: usize) -> Option<f64> {
        let speeds = &self.speeds[scheduler];
        let best = speeds[1..4].iter().copied().fold(self.before?[scheduler], f64::max);
        Some(speeds[0] / best.max(f64::MIN_POSITIVE) - 1.0)
    }

    /// By how much the median of the first three runs of `instep` is above the best of four other medians of three of its own
    /// runs, as a part of that: what chance does where all rules are alike. `None` with fewer than 15 runs.
    fn gain_on_itself(&self, scheduler: usize) -> Option<f64> {
        let medians: Option<Vec<f64>> =
            self.runs[scheduler][0].chunks_exact(3).take(5).map(median).collect();
        let [own, others @ ..] = &medians?[..] else { return None };
        let best = others.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        (others.len() == 4).then(|| own / best - 1.0)
    }

    /// The runs of `instep` above a scheduler, and of each rule that it must not be below.
    fn paired_runs(&self, scheduler: usize) -> (&[f64], impl Iterator<Item = &Vec<f64>>) {
        let runs = &self.runs[scheduler];
        let before = [&self.before_runs[scheduler]].into_iter().filter(|runs| !runs.is_empty());
        (&runs[0], runs[1..4].iter().chain(before))
    }

    /// Whether every run of `instep` is 1 % below the run of one other rule with the same seed: with five or more runs
    /// that is hardly chance. Rules that have fewer runs do not count.
    fn is_below_in_each_run(&self, scheduler: usize) -> bool {
        let (own, mut others) = self.paired_runs(scheduler);
        let is_below =
            |other: &[f64]| own.iter().zip(other).all(|(own, other)| own / other - 1.0 < BELOW);
        others.any(|other| other.len() >= own.len() && is_below(other))
    }

    /// Whether every run of `instep` is above the runs of all those rules with the same seed.
    fn is_above_in_each_run(&self, scheduler: usize) -> bool {
        let (own, mut others) = self.paired_runs(scheduler);
        others.all(|other| own.iter().zip(other).all(|(own, other)| own > other))
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
        for (at, scheduler) in SCHEDULERS.iter().enumerate() {
            for (rule, name) in RULES.iter().enumerate() {
                let runs: Vec<Vec<f64>> =
                    result["speeds"][*scheduler][*name].as_array()?.iter().map(list).collect();
                if runs.iter().any(|speeds| by.iter().any(|by| by.len() != speeds.len())) {
                    return None;
                }
                let [runs, weighted, worked] = by.each_ref().map(|by| -> Vec<f64> {
                    let mean = |speeds: &Vec<f64>| {
                        let sum: f64 = speeds.iter().zip(by).map(|(speed, by)| speed * by).sum();
                        sum / by.iter().sum::<f64>().max(1.0)
                    };
                    runs.iter().map(mean).collect()
                });
                host.speeds[at][rule] = median(&runs)?;
                host.weighted[at][rule] = median(&weighted)?;
                host.worked[at][rule] = median(&worked)?;
                host.runs[at][rule] = runs;
            }
            let mean = |speeds: Vec<f64>| speeds.iter().sum::<f64>() / speeds.len().max(1) as f64;
            let before = result["speeds"][*scheduler]["before"].as_array();
            host.before_runs[at] =
                before.into_iter().flatten().map(|run| mean(list(run))).collect();
            known[at] = median(&host.before_runs[at]);
            host.drawn[at] = list(&result["drawn"][*scheduler]).into_iter().reduce(f64::max);
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

    #[test]
    fn a_host_is_the_median_of_runs_of_the_mean_of_its_guests() {
        let rules: BTreeMap<&str, [[f64; 2]; 3]> =
            RULES.iter().map(|rule| (*rule, [[0.0, 0.0], [1.0, 0.5], [2.0, 2.0]])).collect();
        let speeds: BTreeMap<&str, _> = SCHEDULERS.iter().map(|name| (*name, &rules)).collect();
        let result = json!({
            "cpus": 8, "nodes": 2, "caches": 2, "vms": 2, "weights": [300, 100],
            "alone": [250, 750], "speeds": speeds, "drawn": { "eevdf": [0.5, 0.8] },
        });
        let host = Host::read("a", &result).unwrap();
        assert_eq!(
            (host.speeds[1][5], host.weighted[0][0], host.worked[0][0]),
            (0.75, 0.875, 0.625)
        );
        assert_eq!((host.drawn, &host.runs[0][1][..]), ([Some(0.8), None], &[0.0, 0.75, 2.0][..]));
        assert!(!host.is_below_in_each_run(0) && !host.is_above_in_each_run(0));
        assert!(Host::read("a", &json!({ "cpus": 8 })).is_none());
    }

    #[test]
    fn earlier_policy_counts_by_the_median_of_its_runs() {
        let speeds = |of: f64| json!([[of, of], [of, of - 0.3], [of, of]]);
        let rules: serde_json::Map<String, Value> =
            RULES.iter().map(|rule| ((*rule).to_owned(), speeds(0.7))).collect();
        let mut all = json!({ "eevdf": rules.clone(), "instep": rules });
        let result = |speeds: &Value| {
            json!({ "cpus": 8, "nodes": 2, "caches": 2, "vms": 2, "weights": [100, 100],
                    "alone": [250, 750], "speeds": speeds })
        };
        assert_eq!(Host::read("a", &result(&all)).unwrap().gain_of_target(0), None);
        all["eevdf"]["before"] = speeds(0.8);
        all["instep"]["before"] = speeds(0.5);
        let host = Host::read("a", &result(&all)).unwrap();
        assert_eq!(host.before, Some([0.8, 0.5]));
        let gains = [0, 1].map(|at| host.gain_of_target(at).unwrap());
        assert!((gains[0] + 0.125).abs() < 1e-9 && gains[1].abs() < 1e-9, "{gains:?}");
    }

    #[test]
    fn chance_is_told_from_runs_and_drawn_placements() {
        let mut found = Found { hosts: vec![host("a", 0.5), host("b", 0.5)], ..Found::default() };
        assert_eq!(found.draw_chance(0), "", "one run says nothing");
        for host in &mut found.hosts {
            host.runs[0] = std::array::from_fn(|_| vec![0.5, 0.5, 0.4]);
        }
        let text = found.draw_chance(0);
        assert!(text.contains("20.0 % apart, one in ten 20.0 %, at most 20.0 %"), "{text}");
        assert!(text.contains("instep is 1 % below one in each run on 0 hosts"), "{text}");
        assert!(!text.contains("drawn") && !text.contains("by chance alone"), "{text}");
        // The third run is not below the one with the same seed.
        found.hosts[0].before_runs[0] = vec![0.6, 0.6, 0.4];
        assert!(
            found
                .draw_chance(0)
                .contains("in each run on 0 hosts,\nand above all in each run on 0 hosts")
        );
        found.hosts[0].before_runs[0] = vec![0.6, 0.6, 0.41];
        assert!(
            found
                .draw_chance(0)
                .contains("in each run on 1 hosts,\nand above all in each run on 0 hosts")
        );
        found.hosts[1].runs[0][0] = vec![0.51, 0.51, 0.41];
        assert!(
            found
                .draw_chance(0)
                .contains("in each run on 1 hosts,\nand above all in each run on 1 hosts")
        );
        // The own median is 0.5: of one host one of four others is 0.6, of the other all are 0.4.
        let own = |others: f64| [vec![0.5; 3], vec![0.4; 9], vec![others; 3]].concat();
        (found.hosts[0].runs[0][0], found.hosts[1].runs[0][0]) = (own(0.6), own(0.4));
        let text = found.draw_chance(0);
        assert!(text.contains("1 % below on 50 % of hosts, and above on 50 %"), "{text}");
        (found.hosts[0].drawn, found.hosts[1].drawn) = ([Some(0.7), None], [Some(0.5), None]);
        let text = found.draw_chance(0);
        let drawn = "The best placements drawn at random: 0.600; on 1 hosts instep is 1 % below.";
        assert!(text.contains(drawn), "{text}");
        assert!(!found.draw_chance(1).contains("drawn"));
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
