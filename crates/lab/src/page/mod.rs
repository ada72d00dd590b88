//! A run's report as one HTML page that needs nothing else: no network, no script, no font.
//!
//! Every observation is drawn as the host it shows ([`host`]), the samples as a timeline
//! ([`timeline`]), and beside them what was checked, what Instep said, and what the clock is worth.
//! Of a Xen host it shows what commands printed ([`commands`]).
//! It draws from plain data, which it does not trust: every text from outside is escaped. Colours
//! (Okabe and Ito's palette, told apart by people who see few colours) never stand alone: names do.

mod commands;
mod host;
mod speeds;
mod timeline;

use crate::records;
use crate::scenario::check::Check;
use crate::scenario::report::{LabReport, StepReport};
use instep_report::html::escaped;
pub use speeds::{Phase, SpeedSample, Speeds};
use std::fmt::Write as _;

const STYLE: &str = include_str!("style.css");

/// What the page says beside what the report holds.
#[derive(Clone, Debug, Default)]
pub struct Words<'a> {
    /// The heading; the scenario's name when empty.
    pub title: &'a str,
    /// A title and a sentence for an observation, by its name.
    pub moments: &'a [(&'a str, &'a str, &'a str)],
    /// A section after the observations, from another host.
    pub act: Option<Act<'a>>,
}

/// A comparison of two schedulers, on a host of its own.
#[derive(Clone, Debug)]
pub struct Act<'a> {
    /// Its title.
    pub title: &'a str,
    /// What was done, in sentences.
    pub caption: &'a str,
    /// The speeds, or why there are none.
    pub speeds: Result<&'a Speeds, &'a str>,
    /// What was checked in it.
    pub checks: &'a [Check],
}

/// Draws a report.
pub fn draw(report: &LabReport, words: &Words<'_>) -> String {
    let title = if words.title.is_empty() { &report.scenario } else { words.title };
    let mut html =
        format!("<p>{}</p>\n{}{}", escaped(&report.about), verdict(report), legend(report),);
    let colours = Colours::of(report);
    let scale = host::Scale::of(report);
    let mut number = 0;
    let mut from = 0;
    for step in &report.steps {
        let checks = report.checks.get(from..from + step.checks).unwrap_or_default();
        from += step.checks;
        let Some((name, seen)) = observed(report, step) else { continue };
        number += 1;
        let known = words.moments.iter().find(|(moment, _, _)| *moment == name);
        let (title, caption) = known.map_or((name, ""), |(_, title, caption)| (title, caption));
        let _ = write!(
            html,
            "<section class=\"moment\">\n<h2><span class=\"number\">{number}</span> {}</h2>\n",
            escaped(title)
        );
        if !caption.is_empty() {
            let _ = writeln!(html, "<p>{}</p>", escaped(caption));
        }
        html.push_str(&host::draw(&report.host, seen, &colours, scale));
        html.push_str(&checked(checks));
        html.push_str("</section>\n");
    }
    if report.host.is_xen() {
        html.push_str(&commands::draw(report));
    }
    if let Some(act) = &words.act {
        html.push_str(&compared(act, number + 1));
    }
    html.push_str(&timeline::draw(report, &colours));
    html.push_str(&reasons(report));
    html.push_str(&worth(report));
    instep_report::html::page(title, STYLE, &html)
}

/// The comparison of two schedulers.
fn compared(act: &Act<'_>, number: usize) -> String {
    let mut html = format!(
        "<section class=\"moment\">\n<h2><span class=\"number\">{number}</span> {}</h2>\n<p>{}</p>\n",
        escaped(act.title),
        escaped(act.caption)
    );
    match act.speeds {
        // Colours that the guests of the other host do not have.
        Ok(speeds) => html.push_str(&speeds::draw(speeds, |guest| format!("g{}", (guest + 4) % 7))),
        Err(why) => {
            let _ = writeln!(html, "<p>Left out: {}.</p>", escaped(why.trim_end_matches('.')));
        }
    }
    html.push_str(&checked(act.checks));
    html.push_str("</section>\n");
    html
}

/// The name of the observation a step made, and what it saw.
fn observed<'a>(
    report: &'a LabReport,
    step: &'a StepReport,
) -> Option<(&'a str, &'a crate::scenario::evidence::LabObservation)> {
    let name = step.step.strip_prefix("observe ")?;
    Some((name, report.observations.get(name)?))
}

/// A number and a colour for each guest, in the order in which they appear.
struct Colours(Vec<String>);

impl Colours {
    fn of(report: &LabReport) -> Self {
        let mut names: Vec<String> = Vec::new();
        let guests = report.samples.iter().flat_map(|sample| &sample.guests);
        let seen = report.observations.values().flat_map(|seen| &seen.guests);
        for name in guests.map(|guest| &guest.name).chain(seen.map(|guest| &guest.name)) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        Self(names)
    }

    /// The style class of a guest.
    fn class(&self, name: &str) -> String {
        let at = self.0.iter().position(|known| known == name).unwrap_or(0);
        format!("g{}", at % 7)
    }
}

fn verdict(report: &LabReport) -> String {
    let (all, failed) = (report.checks.len(), report.checks.iter().filter(|c| !c.held).count());
    match (all, failed) {
        (0, _) => String::new(),
        (_, 0) => {
            let by = if report.host.is_xen() { "xl" } else { "the host's kernel" };
            format!(
                "<p class=\"verdict held\">&#10003; All {all} checks held, by what {by} shows \
                 without Instep.</p>\n"
            )
        }
        _ => format!("<p class=\"verdict failed\">&#10007; {failed} of {all} checks FAILED.</p>\n"),
    }
}

fn legend(report: &LabReport) -> String {
    let colours = Colours::of(report);
    if colours.0.is_empty() {
        return String::new();
    }
    let mut html = String::from("<ul class=\"legend\">\n");
    for name in &colours.0 {
        let _ = writeln!(
            html,
            "<li><span class=\"chip {}\"></span>{}</li>",
            colours.class(name),
            escaped(name)
        );
    }
    html.push_str(
        "<li><span class=\"chip away\"></span>memory on a node its vCPUs may not use</li>\n</ul>\n",
    );
    html
}

/// What was checked at one moment.
fn checked(checks: &[Check]) -> String {
    if checks.is_empty() {
        return String::new();
    }
    let mut html = String::from("<ul class=\"checks\">\n");
    for check in checks {
        let (class, mark) =
            if check.held { ("held", "&#10003;") } else { ("failed", "&#10007; FAILED") };
        let _ = writeln!(
            html,
            "<li class=\"{class}\">{mark} <b>{}</b> {}: {}</li>",
            escaped(&check.about),
            escaped(&check.what.replace('_', " ")),
            escaped(&check.found)
        );
    }
    html.push_str("</ul>\n");
    html
}

/// What Instep says that it changed and why.
fn reasons(report: &LabReport) -> String {
    let mut lines = Vec::new();
    let mut last = 0;
    for output in report.steps.iter().filter_map(|step| step.stdout.as_ref()) {
        if !records::are_records(output) {
            continue;
        }
        let told = records::tell(output, last);
        last = told.last;
        lines.extend(told.lines());
    }
    if lines.is_empty() {
        return String::new();
    }
    let mut html =
        String::from("<section>\n<h2>What Instep changed, and why, in its own words</h2>\n<ul>\n");
    for line in lines {
        let _ = writeln!(html, "<li>{}</li>", escaped(&line));
    }
    html.push_str("</ul>\n</section>\n");
    html
}

/// What the results are worth.
fn worth(report: &LabReport) -> String {
    let (clock, seconds) = (&report.clock, &report.seconds);
    let kind = format!("{:?}", clock.kind).to_lowercase();
    let host = &report.host;
    let (runs, evidence) = if host.is_xen() {
        (
            "as dom0 of Xen, which runs the guests as PV domains",
            "Affinities are what xl prints, not what Instep reports.",
        )
    } else {
        (
            "whose KVM runs the guests",
            "CPUs, affinities and memory are read from the host's /proc, not from Instep. Touched \
             memory is what a guest's QEMU holds in anonymous or huge pages.",
        )
    };
    let mut html = format!(
        "<section>\n<h2>What this is worth</h2>\n<dl>\n\
         <dt>Host</dt><dd>emulated: {} nodes, {} cores, {} CPUs, {} MiB; Linux {}, {runs}</dd>\n\
         <dt>By</dt><dd>{}: {}</dd>\n\
         <dt>Clock</dt><dd>{kind}. It shows {}.</dd>\n\
         <dt>Not shown</dt><dd>{}.</dd>\n\
         <dt>Evidence</dt><dd>{evidence}</dd>\n\
         <dt>Took</dt><dd>host up after {:.0} s, guests {:.0} s later, {:.0} s in all, by this \
         machine's clock",
        host.nodes,
        host.cpus() / host.threads.max(1),
        host.cpus(),
        host.memory_mib,
        escaped(&report.kernel),
        report.accel.name(),
        escaped(&report.accel.why),
        escaped(clock.shows),
        escaped(clock.does_not_show),
        seconds.host_up,
        seconds.guests_up,
        seconds.total,
    );
    if report.attempts > 1 {
        let _ = write!(html, "; begun {} times", report.attempts);
    }
    if !report.restarted.is_empty() {
        let names = escaped(&report.restarted.join(", "));
        let _ = write!(html, "; hung or died at boot under emulation, started again: {names}");
    }
    html.push_str("</dd>\n</dl>\n</section>\n");
    html
}

#[cfg(test)]
mod tests;
