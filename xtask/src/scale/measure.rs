//! What a row of the table measures in the reports of a run, and whether that is what must be reached.

use serde::Deserialize;
use serde_json::Value;
use std::fmt;

/// By how much a speed may be below that of a column of `at_least`: medians of few seeds vary by that.
const TOLERANCE: f64 = 0.02;

/// A line of the table, as scenarios/scale/targets.toml says it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    measure: Measure,
    of: Option<String>,
    take: Take,
    pub(crate) must: Option<f64>,
    pub(crate) aim: Option<f64>,
    #[serde(default)]
    pub(crate) at_least: Vec<String>,
    /// Only VMs that existed for at least so many seconds of the time measured, ...
    #[serde(default)]
    lived_s: f64,
    /// ... and for less than so many.
    lived_below_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Measure {
    Speed,
    ShareError,
    CpusError,
    WaitMs,
    LateMeanMs,
    LateMostMs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Take {
    Least,
    Mean,
    Most,
    Sum,
}

/// How a value compares with what is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing is asked.
    Informs,
    Missed,
    /// What must be reached is.
    Ok,
    /// The aim is reached, too.
    Aim,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Informs => "",
            Self::Missed => "missed",
            Self::Ok => "ok",
            Self::Aim => "ok, aim",
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measure = match self.measure {
            Measure::Speed => "speed",
            Measure::ShareError => "error of share",
            Measure::CpusError => "error of CPU time",
            Measure::WaitMs => "longest wait, ms",
            Measure::LateMeanMs => "late on average, ms",
            Measure::LateMostMs => "late at most, ms",
        };
        let take = match self.take {
            Take::Least => "least",
            Take::Mean => "mean",
            Take::Most => "most",
            Take::Sum => "sum",
        };
        write!(f, "{measure}: {take} of {}", self.of.as_deref().unwrap_or("all"))?;
        if self.lived_s > 0.0 {
            write!(f, ", {} s and more", self.lived_s)?;
        }
        match self.lived_below_s {
            Some(most) => write!(f, ", less than {most} s"),
            None => Ok(()),
        }
    }
}

impl Row {
    /// The row's value in each run of a job's `result`; runs in which no VM has it are left out.
    pub(crate) fn read_values(&self, result: &Value) -> Vec<f64> {
        let runs = result["reports"].as_array().into_iter().flatten();
        runs.filter_map(|report| self.read_value(report, &result["by_weight"])).collect()
    }

    fn read_value(&self, report: &Value, by_weight: &Value) -> Option<f64> {
        let vms = report["vms"].as_array()?;
        let sum = |number: &dyn Fn(usize) -> Option<f64>| (0..vms.len()).map(number).sum();
        let used = |at: usize| vms[at]["cpus"].as_f64();
        let due = |at: usize| by_weight[at].as_f64();
        let all: [Option<f64>; 2] = [sum(&used), sum(&due)];
        let lived = |at: usize| {
            let s = vms[at]["lived_ns"].as_f64().map_or(f64::INFINITY, |ns| ns / 1e9);
            s >= self.lived_s && self.lived_below_s.is_none_or(|most| s < most)
        };
        let meant: Vec<usize> = (0..vms.len())
            .filter(|at| vms[*at]["name"].as_str().is_some_and(|name| self.is_of(name)))
            .filter(|at| lived(*at))
            .collect();
        let off = |used: f64, due: f64| (used / due - 1.0).abs();
        if self.take == Take::Sum && self.measure == Measure::CpusError {
            let sum =
                |number: &dyn Fn(usize) -> Option<f64>| meant.iter().map(|at| number(*at)).sum();
            let [used, due]: [Option<f64>; 2] = [sum(&used), sum(&due)];
            return Some(off(used?, due?)).filter(|_| !meant.is_empty());
        }
        let one = |at: usize| {
            let vm = &vms[at];
            let ms = |ns: &Value| ns.as_f64().map(|ns| ns / 1e6);
            match self.measure {
                Measure::Speed => vm["fair_share_speed"].as_f64(),
                Measure::ShareError => {
                    let share = used(at)? / all[0]?;
                    Some(off(share, due(at)? / all[1]?))
                }
                Measure::CpusError => Some(off(used(at)?, due(at)?)),
                Measure::WaitMs => ms(&vm["wait"]["max_ns"]),
                Measure::LateMeanMs => ms(&vm["late_ns"][0]),
                Measure::LateMostMs => ms(&vm["late_ns"][1]),
            }
        };
        let values: Vec<f64> = meant.iter().copied().filter_map(one).collect();
        match self.take {
            Take::Least => values.into_iter().reduce(f64::min),
            Take::Most => values.into_iter().reduce(f64::max),
            Take::Mean if values.is_empty() => None,
            Take::Mean => Some(values.iter().sum::<f64>() / values.len() as f64),
            Take::Sum => Some(values.iter().sum()),
        }
    }

    /// Whether a VM is meant: by its name, or by the name without the numbers at its end.
    fn is_of(&self, name: &str) -> bool {
        let Some(of) = &self.of else { return true };
        name.strip_prefix(of.as_str()).is_some_and(|rest| {
            rest.split('-').all(|part| part.chars().all(|letter| letter.is_ascii_digit()))
        })
    }

    /// Whether more is better.
    pub(crate) fn is_speed(&self) -> bool {
        self.measure == Measure::Speed
    }

    pub(crate) fn is_share_error(&self) -> bool {
        matches!(self.measure, Measure::ShareError | Measure::CpusError)
    }

    /// Digits behind the point that are printed.
    pub(crate) fn digits(&self) -> usize {
        if self.is_share_error() { 3 } else { 2 }
    }

    /// What must be reached: the row's own, or the best of the `columns` that it names, less a tolerance.
    pub(crate) fn find_must(&self, columns: impl Fn(&str) -> Option<f64>) -> Option<f64> {
        let best = self.at_least.iter().filter_map(|name| columns(name)).reduce(f64::max);
        self.must.or(best.map(|best| best - TOLERANCE))
    }

    /// Compares a value as it is printed, rounded; no value misses what must be reached.
    pub(crate) fn judge(&self, value: Option<f64>, must: Option<f64>) -> Verdict {
        let scale = 10_f64.powi(self.digits() as i32);
        let reaches = |limit: Option<f64>| {
            limit.zip(value).is_some_and(|(limit, value)| {
                let (limit, value) = ((limit * scale).round(), (value * scale).round());
                if self.is_speed() { value >= limit } else { value <= limit }
            })
        };
        match must {
            None => Verdict::Informs,
            Some(_) if !reaches(must) => Verdict::Missed,
            Some(_) if reaches(self.aim) => Verdict::Aim,
            Some(_) => Verdict::Ok,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(text: &str) -> Row {
        toml::from_str(text).unwrap()
    }

    fn result() -> Value {
        let vm = |name: &str, speed: f64, cpus: f64, wait: u64| {
            json!({ "name": name, "fair_share_speed": speed, "cpus": cpus, "wait": { "max_ns": wait },
                    "late_ns": null })
        };
        let vms = [vm("a-1", 0.5, 3.0, 7_000_000), vm("a-2", 1.0, 1.0, 0), vm("a-b", 0.1, 0.0, 0)];
        json!({ "reports": [{ "vms": vms }], "by_weight": [2.0, 1.0, 1.0] })
    }

    #[test]
    fn values_are_taken_of_the_vms_that_are_meant() {
        for (text, value) in [
            ("measure = \"speed\"\ntake = \"least\"", 0.1),
            ("measure = \"speed\"\ntake = \"least\"\nof = \"a\"", 0.5),
            ("measure = \"speed\"\ntake = \"mean\"\nof = \"a\"", 0.75),
            ("measure = \"wait-ms\"\ntake = \"most\"", 7.0),
            ("measure = \"share-error\"\ntake = \"most\"\nof = \"a\"", 0.5),
        ] {
            assert_eq!(row(text).read_values(&result()), [value], "{text}");
        }
        // Three CPUs were due to both, and they had four.
        let cpus = row("measure = \"cpus-error\"\ntake = \"sum\"\nof = \"a\"");
        assert!((cpus.read_values(&result())[0] - 1.0 / 3.0).abs() < 1e-9);
        assert!(
            row("measure = \"cpus-error\"\ntake = \"sum\"\nof = \"c\"")
                .read_values(&result())
                .is_empty()
        );
        let late = row("measure = \"late-mean-ms\"\ntake = \"most\"");
        assert!(late.read_values(&result()).is_empty());
    }

    #[test]
    fn rows_may_ask_for_vms_that_existed_for_long_or_briefly() {
        let vm = |name: &str, speed: f64, s: u64| json!({ "name": name, "fair_share_speed": speed, "lived_ns": s * 1_000_000_000 });
        let vms = [vm("old", 0.9, 9), vm("new", 0.7, 3), vm("newest", 0.5, 1)];
        let result = json!({ "reports": [{ "vms": vms }], "by_weight": [1.0, 1.0, 1.0] });
        for (lives, value) in
            [("", 0.5), ("lived_s = 5.0", 0.9), ("lived_s = 2.0\nlived_below_s = 5.0", 0.7)]
        {
            let row = row(&format!("measure = \"speed\"\ntake = \"least\"\n{lives}"));
            assert_eq!(row.read_values(&result), [value], "{row}");
        }
    }

    #[test]
    fn speeds_are_to_be_high_and_waits_short() {
        let speed = row("measure = \"speed\"\ntake = \"least\"\nmust = 0.9\naim = 1.0");
        let judged = [0.894, 0.895, 0.996].map(|value| speed.judge(Some(value), speed.must));
        assert_eq!(judged, [Verdict::Missed, Verdict::Ok, Verdict::Aim]);
        assert_eq!(speed.judge(None, speed.must), Verdict::Missed);
        let wait = row("measure = \"wait-ms\"\ntake = \"most\"\nmust = 100\naim = 24");
        let judged = [101.0, 100.0, 20.0].map(|value| wait.judge(Some(value), wait.must));
        assert_eq!(judged, [Verdict::Missed, Verdict::Ok, Verdict::Aim]);
    }

    #[test]
    fn a_row_may_ask_for_the_best_of_other_columns() {
        let text = "measure = \"speed\"\ntake = \"mean\"\nat_least = [\"before\", \"eevdf\"]";
        let columns = |name: &str| (name == "eevdf").then_some(0.72);
        let must = row(text).find_must(columns);
        assert_eq!(must.map(|must| (must * 100.0).round()), Some(70.0));
        assert_eq!(row(text).find_must(|_| None), None);
    }
}
