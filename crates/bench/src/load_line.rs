//! The rate of work out of what a load printed: instep-load's JSON lines, or a line for each time
//! that another program ended.
//!
//! instep-load tells its work so far and the time since all its threads began; the difference of two
//! lines is the rate between them, whatever came before and however late a line was written.

use serde::Deserialize;
use std::time::Duration;

/// The word before the host's uptime in the lines that [`crate::here`] makes another program's shell
/// loop print.
pub const DONE: &str = "instep-bench-done";

/// The word before time, work and unit in what a guest makes of instep-load's lines: each byte that a
/// guest prints is an exit, which under emulation costs more than the work of the same time.
pub const AT: &str = "instep-bench-at";

/// What lines came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// Work per second.
    pub rate: f64,
    /// What the work is counted in.
    pub unit: String,
    /// The time between the lines, in seconds.
    pub seconds: f64,
    /// How late it woke: median and 99th percentile, in nanoseconds.
    pub late_ns: Option<(u64, u64)>,
}

/// A line of instep-load, as far as it matters here.
#[derive(Debug, Deserialize)]
struct Line {
    schema: String,
    total: bool,
    t_ns: u64,
    work_unit: String,
    work: u64,
    late_ns: Option<Late>,
    options: Options,
}

#[derive(Debug, Deserialize)]
struct Late {
    p50: u64,
    p99: u64,
}

#[derive(Debug, Deserialize)]
struct Options {
    unit_ns: f64,
}

fn lines(text: &str) -> impl Iterator<Item = Line> {
    let parsed = text.lines().filter_map(|line| serde_json::from_str::<Line>(line.trim()).ok());
    parsed.filter(|line| line.schema == "instep.load/1")
}

/// Nanoseconds that a unit of work took, from the first line.
pub fn unit_ns(text: &str) -> Option<f64> {
    let unit = lines(text).next()?.options.unit_ns;
    (unit.is_finite() && unit > 0.0).then_some(unit)
}

/// The rate between the last line before `from` and the last up to `until` (both since the load
/// began). Where the work is too slow to have a line before, its own beginning is taken.
///
/// # Errors
/// There are not two lines.
pub fn between(text: &str, from: Duration, until: Duration) -> Result<Counted, String> {
    let all: Vec<Line> = lines(text).filter(|line| !line.total).collect();
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let (from, until) = (ns(from), ns(until));
    let last = all.iter().rev().find(|line| line.t_ns <= until && line.t_ns > from);
    let Some(last) = last else {
        return Err(format!("{} lines of instep-load, none while it was counted", all.len()));
    };
    let first = all.iter().rev().find(|line| line.t_ns <= from);
    let (began, had) = first.map_or((0, 0), |line| (line.t_ns, line.work));
    let span = last.t_ns.saturating_sub(began);
    if span == 0 || last.work < had {
        return Err("lines of instep-load go backwards".to_owned());
    }
    let seconds = span as f64 / 1e9;
    Ok(Counted {
        rate: (last.work - had) as f64 / seconds,
        unit: last.work_unit.clone(),
        seconds,
        late_ns: last.late_ns.as_ref().map(|late| (late.p50, late.p99)),
    })
}

/// The rate of a guest's lines ([`AT`]) that came after a pause, between these times after the first
/// of them; a guest's clock goes on while it is frozen. How late it woke is the median over its lines.
///
/// # Errors
/// There are not two lines.
pub fn after_pause(text: &str, from: Duration, until: Duration) -> Result<Counted, String> {
    let all: Vec<At<'_>> = text.lines().filter_map(at).collect();
    let few = || format!("{} lines of instep-load in the guest", all.len());
    let begin = all.first().ok_or_else(few)?.ns;
    let ns =
        |time: Duration| begin.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let (from, until) = (ns(from), ns(until));
    let first = all.iter().rev().find(|line| line.ns <= from).ok_or_else(few)?;
    let last = all.iter().rev().find(|line| line.ns <= until).ok_or_else(few)?;
    if last.ns <= first.ns || last.work < first.work {
        return Err(few());
    }
    let seconds = (last.ns - first.ns) as f64 / 1e9;
    let rate = (last.work - first.work) as f64 / seconds;
    let counted = all.iter().filter(|line| line.ns > first.ns && line.ns <= last.ns);
    let late: Vec<(u64, u64)> = counted.filter_map(|line| line.late).collect();
    let late_ns =
        median(late.iter().map(|late| late.0)).zip(median(late.iter().map(|late| late.1)));
    Ok(Counted { rate, unit: last.unit.to_owned(), seconds, late_ns })
}

fn median(of: impl Iterator<Item = u64>) -> Option<u64> {
    let all: Vec<f64> = of.map(|value| value as f64).collect();
    instep_report::stats::median(&all).map(|median| median as u64)
}

/// A guest's line.
struct At<'a> {
    ns: u64,
    work: u64,
    unit: &'a str,
    /// Median and 99th percentile since the line before, of a ping.
    late: Option<(u64, u64)>,
}

fn at(line: &str) -> Option<At<'_>> {
    let mut words = line.trim().strip_prefix(AT)?.split_whitespace();
    let (ns, work) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let unit = words.next()?;
    let mut late = words.map_while(|word| word.parse().ok());
    // Nobody woke: no percentile is 0 else.
    let late = late.next().zip(late.next()).filter(|(_, p99)| *p99 > 0);
    Some(At { ns, work, unit, late })
}

/// How often another program ended per second, from lines of [`DONE`] and the host's uptime in
/// seconds, those from `from` to `until` (uptimes, too).
///
/// # Errors
/// It did not end twice.
pub fn repeated(text: &str, unit: &str, from: f64, until: f64) -> Result<Counted, String> {
    let ends: Vec<f64> = text
        .lines()
        .filter_map(|line| line.strip_prefix(DONE)?.trim().parse().ok())
        .filter(|at: &f64| at.is_finite() && *at >= from && *at <= until)
        .collect();
    let (Some(first), Some(last)) = (ends.first(), ends.last()) else {
        return Err("it never ended while it was counted; make it shorter".to_owned());
    };
    let seconds = last - first;
    if ends.len() < 2 || seconds <= 0.0 {
        return Err(format!("it ended {} times while it was counted; make it shorter", ends.len()));
    }
    let rate = (ends.len() - 1) as f64 / seconds;
    Ok(Counted { rate, unit: unit.to_owned(), seconds, late_ns: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(ms: u64, work: u64) -> String {
        format!(
            "{{\"schema\":\"instep.load/1\",\"mode\":\"barrier\",\"total\":false,\"t_ns\":{},\
             \"work_unit\":\"phases\",\"work\":{work},\"options\":{{\"unit_ns\":94.5}}}}\n",
            ms * 1_000_000
        )
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_rate_is_of_the_time_counted_only() {
        let text = [line(500, 5000), line(1000, 5100), line(2000, 5300), line(3000, 9000)].concat();
        let counted = between(&text, SECOND, 2 * SECOND).unwrap();
        assert_eq!((counted.rate, counted.unit.as_str(), counted.seconds), (200.0, "phases", 1.0));
        assert_eq!(unit_ns(&text), Some(94.5));
    }

    #[test]
    fn late_lines_make_a_longer_time_and_not_another_rate() {
        let text = [line(700, 70), line(1900, 190)].concat();
        assert!((between(&text, SECOND, 2 * SECOND).unwrap().rate - 100.0).abs() < 1e-9);
        let text = line(1500, 150);
        assert!((between(&text, SECOND, 2 * SECOND).unwrap().rate - 100.0).abs() < 1e-9);
    }

    #[test]
    fn no_line_in_time_or_lines_that_go_backwards_are_no_rate() {
        assert!(between("", SECOND, 2 * SECOND).is_err());
        assert!(between("{\"schema\":1}\nx\n", SECOND, 2 * SECOND).is_err());
        assert!(between(&line(500, 1), SECOND, 2 * SECOND).is_err());
        let text = [line(900, 50), line(1500, 20)].concat();
        assert!(between(&text, SECOND, 2 * SECOND).is_err());
    }

    #[test]
    fn after_a_pause_time_begins_with_the_first_line() {
        let line = |ms: u64, work: u64| format!("{AT} {} {work} phases\r\n", ms * 1_000_000);
        let text =
            [line(90_000, 10), line(91_000, 100), line(92_000, 300), line(93_000, 0)].concat();
        let counted = after_pause(&text, SECOND, 2 * SECOND).unwrap();
        assert_eq!((counted.rate, counted.unit.as_str()), (200.0, "phases"));
        assert_eq!(counted.late_ns, None);
        assert!(after_pause(&text, SECOND, 3 * SECOND).is_err(), "work goes backwards");
        for text in [String::new(), line(1, 1), format!("{AT} 1\n{AT} x y z\n")] {
            assert!(after_pause(&text, SECOND, 2 * SECOND).is_err(), "{text}");
        }
    }

    #[test]
    fn a_guest_that_pings_tells_how_late_in_each_line() {
        let line = |ms: u64, late: u64| {
            format!("{AT} {} {ms} wakeups {late} {}\n", ms * 1_000_000, late * 9)
        };
        let text = [
            line(500, 99),
            line(1500, 5),
            line(2000, 3),
            line(2250, 0),
            line(2500, 4),
            line(3000, 88),
        ]
        .concat();
        let counted = after_pause(&text, SECOND / 2, 2 * SECOND).unwrap();
        assert_eq!(counted.late_ns, Some((4, 36)));
    }

    #[test]
    fn a_program_that_is_run_again_is_counted_by_its_ends() {
        let text = format!("{DONE} 10.0\nnoise\n{DONE} 11.0\n{DONE} 11.5\n{DONE} 12.0\n{DONE} x\n");
        let counted = repeated(&text, "runs", 10.5, 13.0).unwrap();
        assert_eq!((counted.rate, counted.unit.as_str()), (2.0, "runs"));
        assert!(repeated(&text, "runs", 11.8, 13.0).unwrap_err().contains("ended 1 times"));
        assert!(repeated("", "runs", 0.0, 9.0).is_err());
    }
}
