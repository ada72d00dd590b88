//! What must be reached and what is aimed at, beside what was found.

use crate::placement::found::{Found, SCHEDULERS, gain};
use instep_report::table::{Side, Spacing, aligned};
use serde_json::{Value, json};

/// How far below the best of the other rules a host may be.
pub(crate) const BELOW: f64 = -0.01;

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// What must be reached is not, or there is no value.
    Missed,
    /// It is.
    Ok,
    /// The aim is reached, too.
    Aim,
}

impl Verdict {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Verdict::Missed => "missed",
            Verdict::Ok => "ok",
            Verdict::Aim => "aim",
        }
    }
}

/// A target.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) must: f64,
    pub(crate) aim: f64,
    pub(crate) value: Option<f64>,
}

impl Target {
    /// Whether more is better.
    fn is_least(&self) -> bool {
        self.aim > self.must
    }

    /// Where the value is.
    pub(crate) fn verdict(&self) -> Verdict {
        let reaches = |limit: f64| {
            self.value
                .is_some_and(|value| if self.is_least() { value >= limit } else { value <= limit })
        };
        match (reaches(self.must), reaches(self.aim)) {
            (false, _) => Verdict::Missed,
            (true, false) => Verdict::Ok,
            (true, true) => Verdict::Aim,
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "what": self.what, "unit": self.unit, "must": self.must, "aim": self.aim,
            "value": self.value.map(|value| (value * 1e3).round() / 1e3),
            "verdict": self.verdict().as_str(),
        })
    }

    /// The value as it is printed.
    pub(crate) fn show(&self) -> String {
        self.value.map_or_else(String::new, |value| format!("{value:.2}"))
    }
}

/// All targets.
pub(crate) fn judge(found: &Found) -> Vec<Target> {
    let new = |what: &str, unit, must, aim, value| Target {
        what: what.to_owned(),
        unit,
        must,
        aim,
        value,
    };
    let gap = found.gap().map(|gap| gap.map(|part| part * 100.0));
    let mut targets = vec![
        new("gap to the best plan, mean", "%", 1.0, 0.1, gap.map(|gap| gap[0])),
        new("gap to the best plan, worst", "%", 10.0, 3.0, gap.map(|gap| gap[1])),
        new("deciding for 1,000 VMs", "ms", 15.0, 5.0, found.times.map(|times| times[0])),
    ];
    for (at, scheduler) in SCHEDULERS.iter().enumerate() {
        let hosts = found.hosts.iter();
        let of_target: Vec<f64> =
            hosts.clone().filter_map(|host| host.gain_of_target(at)).collect();
        let of_all: Vec<f64> = hosts.map(|host| gain(&host.speeds[at])).collect();
        for (best, gains) in [("bnn/bind/none/before", of_target), ("the best of all", of_all)] {
            let part = |wanted: fn(f64) -> bool| {
                let count = gains.iter().filter(|gain| wanted(**gain)).count();
                (!gains.is_empty()).then(|| count as f64 * 100.0 / gains.len() as f64)
            };
            let what = format!("1 % below {best}, above {scheduler}");
            targets.push(new(&what, "%", 0.0, 0.0, part(|gain| gain < BELOW)));
            let what = format!("faster than {best}, above {scheduler}");
            targets.push(new(&what, "%", 70.0, 90.0, part(|gain| gain > 0.0)));
        }
    }
    targets
}

/// The targets as a table of at most 80 columns.
pub(crate) fn draw(targets: &[Target]) -> String {
    let row = |target: &Target| {
        vec![
            target.what.to_string(),
            target.must.to_string(),
            target.aim.to_string(),
            format!("{} {}", target.show(), target.unit),
            target.verdict().as_str().to_owned(),
        ]
    };
    let head = [
        ("", Side::Left),
        ("must", Side::Right),
        ("aim", Side::Right),
        ("found", Side::Right),
        ("", Side::Left),
    ];
    let rows: Vec<_> = targets.iter().map(row).collect();
    aligned(&head, &rows, Spacing { indent: 0, gap: 2 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::found::tests::host;
    use instep_report::stats::Estimate;

    #[test]
    fn targets_are_met_where_the_policy_is_near_the_best_or_above() {
        let mut hosts = vec![host("a", 0.6), host("b", 0.6), host("c", 0.6), host("d", 0.496)];
        let exact = |mean: f64| vec![Estimate { mean, low: mean, high: mean }];
        hosts[0].above = [exact(-0.14), exact(0.2)];
        let found =
            Found { hosts, gaps: vec![0.0, 0.05], times: Some([16.0, 9.0]), ..Found::default() };
        let targets = judge(&found);
        let verdicts: Vec<&str> = targets.iter().map(|target| target.verdict().as_str()).collect();
        assert_eq!(
            verdicts,
            ["missed", "ok", "missed", "missed", "missed", "aim", "ok", "aim", "aim", "aim", "ok"]
        );
        let text = draw(&targets);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(judge(&Found::default()).iter().all(|target| target.verdict() == Verdict::Missed));
    }

    #[test]
    fn a_host_one_per_cent_below_is_counted() {
        let found = Found { hosts: vec![host("a", 0.49)], ..Found::default() };
        assert_eq!(judge(&found)[5].value, Some(100.0));
    }
}
