//! A profile for people: the features and what they mean, parallelism over time, potential, curve,
//! advice.

use super::numbers::time;
use super::placing;
use super::report::{BRIEF, Bound, Place, Point, ProfileReport};
use crate::text::{indented, plural, printable, wrapped};
use instep_core::profile::HARDLY_ACTIVE;
use instep_core::profile::advice::CoScheduling;
use instep_report::table::{Side, Spacing, aligned};
use std::fmt::Write as _;

const SPACING: Spacing = Spacing { indent: 2, gap: 1 };

/// Eighths of a line's height.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the report for a terminal of `width` columns.
pub(super) fn draw(report: &ProfileReport, width: usize) -> String {
    let mut text = indented(&wrapped(&printable(&report.what), width), 0);
    let numbers = &report.profile;
    let how = match report.source {
        "switches" => "every context switch traced",
        _ => "asked of /proc at intervals, to a tick",
    };
    let head = format!(
        "{} for {} on {}; {how}",
        plural(numbers.threads as usize, "thread"),
        time(numbers.elapsed_ns),
        plural(report.cpus as usize, "CPU"),
    );
    text.push_str(&indented(&wrapped(&head, width), 0));
    text.push('\n');
    features(&mut text, report, width);
    text.push_str(&over_time(report, width));
    text.push_str(&bounds(report));
    text.push_str(&curve(report));
    text.push_str(&places(report));
    text.push_str("\nAdvice for a VM\n");
    for line in advice(report) {
        for (index, line) in wrapped(&line, width - 4).iter().enumerate() {
            text.push_str(if index == 0 { "  * " } else { "    " });
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The advice in words, with its numbers.
pub(super) fn advice(report: &ProfileReport) -> Vec<String> {
    let numbers = &report.profile;
    let Some((advice, exact)) = report.advice.as_ref().zip(report.advised.as_ref()) else {
        return report.no_advice.iter().map(|why| format!("none: {why}")).collect();
    };
    let mut lines = Vec::new();
    lines.push(if advice.vcpus < numbers.threads {
        format!(
            "{} would keep {} of its speed on {} (by Amdahl's law, from {:.2} active threads)",
            plural(advice.vcpus as usize, "vCPU"),
            percent(advice.keeps),
            numbers.threads,
            numbers.parallelism
        )
    } else {
        format!(
            "{}: {:.2} of {} active; fewer vCPUs would be slower",
            plural(advice.vcpus as usize, "vCPU"),
            numbers.parallelism,
            plural(numbers.threads as usize, "thread")
        )
    });
    let at = |period: u64| {
        let same = |b: &&super::report::Bound| b.period_ns == period && b.share == report.share;
        report.potential.iter().find(same).map_or(0.0, |bound| bound.potential)
    };
    lines.push(if advice.period_ns > report.period_ns {
        format!(
            "an allocation period of {}: the potential rises from {} to {} (throughput work only; \
             it costs latency)",
            time(advice.period_ns),
            percent(at(report.period_ns)),
            percent(at(advice.period_ns))
        )
    } else {
        format!(
            "an allocation period of {} is enough: longer ones raise the potential of {} by less \
             than 2 points",
            time(report.period_ns),
            percent(at(report.period_ns))
        )
    });
    if advice.match_work {
        lines.push(
            "give the VM's time to its vCPUs by their demand, as `instep run --dispatch auto` does: \
             sequential parts then use the VM's whole share on one CPU"
                .to_owned(),
        );
    }
    lines.extend(report.placing.as_ref().map(placing::Advice::line));
    lines.push(co_scheduling(report, exact.together));
    lines
}

/// The type, or that there is none.
pub(super) fn kind(report: &ProfileReport) -> String {
    let none = || {
        let why = if report.exact.elapsed < BRIEF {
            "too brief"
        } else if report.exact.busy < HARDLY_ACTIVE {
            "hardly active"
        } else {
            "other threads had the CPUs"
        };
        format!("none: {why}")
    };
    report.exact.kind.map_or_else(none, |kind| kind.to_string())
}

fn co_scheduling(report: &ProfileReport, together: CoScheduling) -> String {
    let numbers = &report.profile;
    let waiting = percent(numbers.busy_waiting.unwrap_or(0.0));
    let blocks = format!("{:.0} blocks a second", numbers.blocks_per_s);
    match together {
        CoScheduling::Pays => format!(
            "co-scheduling would pay: {waiting} of the CPU time is busy waiting even here, and on \
             a shared host a spinning thread waits for siblings that are not let run; use \
             `instep run --dispatch auto`"
        ),
        CoScheduling::Harms => format!(
            "no co-scheduling: with {blocks} its time would be wasted while siblings are held \
             together; it wants them apart, and woken promptly"
        ),
        CoScheduling::MayPay => format!(
            "co-scheduling may pay: it has spin loops ({waiting} of the CPU time even alone, where all \
             its threads run at once), and among neighbours it waits in them for those that are not \
             let run; try it: `instep run --dispatch auto`, or --scenario FILE and `instep sim FILE`"
        ),
        CoScheduling::Indifferent => format!(
            "co-scheduling would change little: {blocks}, and {waiting} of the CPU time is seen \
             to be busy waiting"
        ),
        CoScheduling::IfItSpins => format!(
            "co-scheduling costs it nothing ({blocks}) and pays if it waits busily, which was not \
             measured here; `instep run --dispatch auto` does so with VMs that never block"
        ),
        CoScheduling::Alone => "one thread needs no co-scheduling".to_owned(),
    }
}

fn features(text: &mut String, report: &ProfileReport, width: usize) {
    let numbers = &report.profile;
    let typed = report.exact.kind.is_some();
    // A program without a type is neither high nor low.
    let rated = |high: bool, before: &str, after: &str| match (typed, high) {
        (false, _) => String::new(),
        (true, true) => format!("{before}high{after}"),
        (true, false) => format!("{before}low{after}"),
    };
    let slice = format!("a slice is {}", time(numbers.slice_ns));
    let often = report.exact.synchronises_often();
    let between = numbers.between_blocks_ns.map_or_else(
        || "never blocks".to_owned(),
        |between| format!("one each {} of a thread's CPU time", time(between)),
    );
    let wide = numbers.efficiency >= 0.75;
    let waiting = match numbers.busy_waiting {
        Some(part) => {
            format!("{} of the CPU time at least (code with a spin hint)", percent(part))
        }
        None => format!("unknown: {}", numbers.why_no_busy_waiting.unwrap_or("it was not seen")),
    };
    let rows = [
        (
            "parallelism",
            format!(
                "{:.2} of {} active, {}{}",
                numbers.parallelism,
                plural(numbers.threads as usize, "thread"),
                percent(numbers.efficiency),
                rated(wide, " (", ")")
            ),
        ),
        (
            "synchronisation",
            format!(
                "{:.0} blocks/s, {between} ({}{slice})",
                numbers.blocks_per_s,
                rated(often, "", "; ")
            ),
        ),
        ("type", kind(report)),
        ("busy waiting", waiting),
        (
            "efficiency here",
            format!("{}, a speedup of {:.2}", percent(numbers.efficiency), numbers.speedup),
        ),
    ];
    for (name, value) in rows {
        for (index, line) in wrapped(&value, width.saturating_sub(19)).iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            writeln!(text, "  {name:<16} {line}").expect("writing to a string does not fail");
        }
    }
}

/// One line of bars: how many threads were active.
fn over_time(report: &ProfileReport, width: usize) -> String {
    let columns = report.series.len().min(width - 4).max(1);
    let threads = f64::from(report.profile.threads);
    let mut bars = String::new();
    for column in 0..columns {
        let begin = column * report.series.len() / columns;
        let end = ((column + 1) * report.series.len() / columns).max(begin + 1);
        let part = report.series.get(begin..end).unwrap_or_default();
        let length: u64 = part.iter().map(|(_, length, _)| length).sum();
        let active: f64 = part.iter().map(|(_, length, active)| *length as f64 * active).sum();
        let level = active / (length.max(1) as f64) / threads * 8.0;
        bars.push(BARS[(level.round() as usize).min(8)]);
    }
    let span = time(report.profile.elapsed_ns);
    format!("\nActive threads over {span}, full height {threads}\n  {bars}\n")
}

fn bounds(report: &ProfileReport) -> String {
    if report.potential.is_empty() {
        return String::new();
    }
    let mut periods: Vec<u64> = report.potential.iter().map(|bound| bound.period_ns).collect();
    periods.sort_unstable();
    periods.dedup();
    let periods = periods.iter().map(|period| format!("{:>8}", time(*period)));
    let titles: Vec<String> = std::iter::once("share".to_owned()).chain(periods).collect();
    let head: Vec<_> = titles.iter().map(|title| (title.as_str(), Side::Right)).collect();
    let row = |bounds: &[Bound]| {
        let bounds_of_periods = bounds.iter().map(|bound| percent(bound.potential));
        std::iter::once(percent(bounds[0].share)).chain(bounds_of_periods).collect()
    };
    let rows: Vec<_> = report.potential.chunk_by(|a, b| a.share == b.share).map(row).collect();
    "\nPotential on a VM, by its share and the allocation period\n".to_owned()
        + &aligned(&head, &rows, SPACING)
}

fn curve(report: &ProfileReport) -> String {
    if report.curve.is_empty() {
        return String::new();
    }
    let row = |point: &Point| {
        vec![
            point.threads.to_string(),
            time(point.elapsed_ns),
            point.speedup.map_or("-".to_owned(), |speedup| format!("{speedup:.2}")),
            format!("{:.2}", point.parallelism),
            percent(point.efficiency),
            time(point.excess_ns),
        ]
    };
    let head = ["threads", "     time", " speedup", "  active", " efficiency", " excess CPU time"];
    let rows: Vec<_> = report.curve.iter().map(row).collect();
    "\nSpeedup\n".to_owned() + &aligned(&head.map(|title| (title, Side::Right)), &rows, SPACING)
}

fn places(report: &ProfileReport) -> String {
    let Some(first) = report.places.first() else { return String::new() };
    let row = |place: &Place| {
        vec![
            place.cpus.to_string(),
            time(place.elapsed_ns),
            time(place.run_ns),
            format!("{:.2}", place.parallelism),
            format!("{:.2}", place.elapsed_ns as f64 / first.elapsed_ns.max(1) as f64),
        ]
    };
    let head = [
        ("CPUs         ", Side::Left),
        ("     time", Side::Right),
        (" CPU time", Side::Right),
        ("  active", Side::Right),
        (" time / first", Side::Right),
    ];
    let rows: Vec<_> = report.places.iter().map(row).collect();
    "\nPlaces\n".to_owned() + &aligned(&head, &rows, SPACING)
}

fn percent(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands that stand in a text in backquotes, with words for what stands for something else.
    fn commands(text: &str) -> Vec<Vec<String>> {
        let quoted = text.split('`').skip(1).step_by(2).filter(|part| part.starts_with("instep "));
        let word = |word: &str| match word {
            "CPUS" => "0".to_owned(),
            other => other.to_owned(),
        };
        quoted.map(|part| part.split_whitespace().map(word).collect()).collect()
    }

    #[test]
    fn every_command_that_the_advice_names_is_one() {
        use crate::args::Cli;
        use crate::laboratory::COMMANDS;
        use clap::Parser as _;
        let mut report = super::super::html::tests::full();
        let mut said = Vec::new();
        use CoScheduling::{Alone, Harms, IfItSpins, Indifferent, MayPay, Pays};
        for together in [Pays, Harms, MayPay, Indifferent, IfItSpins, Alone] {
            said.push(co_scheduling(&report, together));
        }
        for match_work in [false, true] {
            report.advice.as_mut().expect("it is advised").match_work = match_work;
            said.extend(advice(&report));
        }
        said.extend(placing::tests::every_line());
        let named: Vec<Vec<String>> = said.iter().flat_map(|line| commands(line)).collect();
        let of = |command: &str| named.iter().filter(|words| words[1] == command).count();
        assert!(of("run") >= 5 && of("profile") >= 2 && of("sim") >= 1, "{named:#?}");
        let is_own = |words: &Vec<String>| !COMMANDS.contains(&words[1].as_str());
        for words in named.into_iter().filter(is_own) {
            let parsed = Cli::try_parse_from(&words);
            assert!(parsed.is_ok(), "{words:?}: {}", parsed.unwrap_err());
        }
    }
}
