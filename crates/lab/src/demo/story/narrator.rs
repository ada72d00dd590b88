//! Tells the demo's story while the scenario runs: headings, commands and what they print, the
//! memory on its way, what was checked.
//!
//! The story goes to standard output, so that a transcript is complete; what only shows that work
//! goes on goes to a terminal's standard error. Memory on its way is redrawn in place on a
//! terminal and is a line for each change in a pipe.

use super::{MOMENTS, sketch};
use crate::host::machine::HostMachine;
use crate::page::{SpeedSample, Speeds};
use crate::records;
use crate::scenario::audience::Audience;
use crate::scenario::check::Check;
use crate::scenario::evidence::{GuestSeen, LabObservation};
use crate::scenario::report::LabReport;
use crate::scenario::{GuestPlan, Scenario, Step};
use crate::stop::Stop;
use indicatif::{ProgressBar, ProgressStyle};
use instep_report::text::{lines, wrapped};
use serde_json::Value;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Columns that are written in.
const WIDTH: usize = 79;
/// A guest is told of again in a pipe when its home is another, or so much of its memory is elsewhere.
const WORTH_A_LINE: u64 = 4 << 20;

/// Tells the story.
pub(super) struct Narrator<'a> {
    scenario: &'a Scenario,
    /// What is still to come, in order.
    steps: &'a [Step],
    /// Moments whose heading was told.
    headed: usize,
    stop: Stop,
    started: Instant,
    /// Shows on a terminal that work goes on; hidden elsewhere.
    progress: ProgressBar,
    up: bool,
    /// The observation that is being made, if it may take long.
    live: bool,
    /// What was told of each guest last.
    told: Vec<GuestSeen>,
    /// The last of Instep's cycles that was told.
    cycle: u64,
    /// Why the first line that could not be written was not.
    unheard: Option<io::Error>,
}

impl<'a> Narrator<'a> {
    pub(super) fn new(scenario: &'a Scenario, stop: Stop) -> Self {
        let progress = if io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        } else {
            ProgressBar::hidden()
        };
        Self {
            scenario,
            steps: &scenario.step,
            headed: 0,
            stop,
            started: Instant::now(),
            progress,
            up: false,
            live: false,
            told: Vec::new(),
            cycle: 0,
            unheard: None,
        }
    }

    /// Whether everything told could be written.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn heard(&mut self) -> io::Result<()> {
        self.progress.finish_and_clear();
        self.unheard.take().map_or(Ok(()), Err)
    }

    /// A line or more.
    pub(super) fn line(&mut self, text: &str) {
        let written = self.progress.suspend(|| {
            let mut out = io::stdout().lock();
            writeln!(out, "{text}").and_then(|()| out.flush())
        });
        if let Err(error) = written {
            // Nobody listens: there is no reason to go on.
            self.stop.raise();
            self.unheard.get_or_insert(error);
        }
    }

    /// Sentences, in lines.
    pub(super) fn wrapped(&mut self, text: &str, indent: &str) {
        let rest = if indent.is_empty() { "" } else { "      " };
        self.line(&lines(text, WIDTH, indent, rest).join("\n"));
    }

    pub(super) fn opening(&mut self) {
        let HostMachine { nodes, cores, threads, .. } = &self.scenario.host;
        let text = format!(
            "Instep's demo: a host of {nodes} nodes x {cores} cores x {threads} threads, emulated \
             on this machine, with real KVM guests in it. About three minutes. It needs QEMU and a \
             kernel package (fetched once, nothing is installed), and no root. It touches nothing \
             of this machine and leaves nothing behind but a page, interrupted or not."
        );
        self.wrapped(&text, "");
    }

    pub(super) fn closing(&mut self, report: &LabReport) {
        self.line("");
        let failed: Vec<&Check> = report.checks.iter().filter(|check| !check.held).collect();
        let all = report.checks.len();
        if failed.is_empty() {
            let text = format!(
                "All {all} checks held, by what the host's /proc shows without Instep. {:.0}s in \
                 all; host, guests and temporary files are gone. Emulated CPUs have no caches, \
                 shared cores or remote memory: they show where things are, not what placement is \
                 worth.",
                report.seconds.total
            );
            self.wrapped(&text, "");
        } else {
            self.line(&format!("{} of {all} checks did NOT hold:", failed.len()));
            for check in failed {
                self.wrapped(&in_words(check), "  ");
            }
        }
    }

    /// The heading of the next moment, before the first step that leads to it; looking back at the
    /// last one does not.
    fn heading(&mut self, step: &Step) {
        let next = self.steps.iter().find_map(|step| step.observe.as_deref());
        self.steps = self.steps.get(1..).unwrap_or_default();
        let back = |command: &str| command.starts_with("instep status") || shown(command).is_none();
        if step.run.as_deref().is_some_and(back) {
            return;
        }
        let Some(at) = MOMENTS.iter().position(|(moment, _, _)| Some(*moment) == next) else {
            return;
        };
        if at < self.headed {
            return;
        }
        self.headed = at + 1;
        let (_, title, caption) = MOMENTS[at];
        self.title(at + 1, title, caption);
    }

    /// The heading of an act, and what it is about.
    pub(super) fn title(&mut self, number: usize, title: &str, caption: &str) {
        let title = format!("{number}. {title}");
        self.line(&format!("\n{title}\n{}", "-".repeat(title.len())));
        self.wrapped(caption, "");
    }

    /// Each guest's speed at a look: on a terminal in place, and as a line where it is `told`.
    pub(super) fn speed(&mut self, guests: &[GuestPlan], look: Option<&SpeedSample>, told: bool) {
        let Some(look) = look else { return };
        let names: Vec<&str> = guests.iter().map(|guest| guest.name.as_str()).collect();
        let line = sketch::speeds(&names, look);
        if told {
            self.line(&line);
        }
        self.progress.set_message(line.trim_start().to_owned());
    }

    /// All speeds as a table.
    pub(super) fn speeds(&mut self, speeds: &Speeds) {
        self.line(&format!("\n{}", sketch::table(speeds).trim_end()));
        self.wrapped(&speeds.worth(), "");
    }

    /// What was checked.
    pub(super) fn checked(&mut self, checks: &[Check]) {
        let failed: Vec<&Check> = checks.iter().filter(|check| !check.held).collect();
        if failed.is_empty() && !checks.is_empty() {
            let mut words: Vec<String> =
                checks.iter().map(|check| check.what.replace('_', " ")).collect();
            words.sort();
            words.dedup();
            self.wrapped(&format!("seen in /proc, and held: {}", words.join("; ")), "  ");
        }
        for check in failed {
            self.wrapped(&format!("NOT held: {}", in_words(check)), "  ");
        }
    }

    /// What a command printed.
    fn printed(&mut self, output: &Value) {
        if !records::are_records(output) {
            if let Some(text) = output.as_str().map(str::trim_end).filter(|text| !text.is_empty()) {
                self.line(text);
            }
            return;
        }
        let told = records::tell(output, self.cycle);
        self.cycle = told.last;
        self.line("\nWhat Instep changed, and why, as its record says:");
        for line in told.lines() {
            self.wrapped(&line, "  - ");
        }
    }

    /// What was seen at a moment and what was checked.
    fn moment(&mut self, seen: &LabObservation, checks: &[Check]) {
        let sketch = sketch::host(&self.scenario.host, seen);
        self.line(&format!("\n{}", sketch.trim_end()));
        self.checked(checks);
    }

    /// The guests' memory on its way.
    fn on_the_way(&mut self, seen: &LabObservation) {
        let names = seen.guests.iter().map(|guest| guest.name.len()).max().unwrap_or(0);
        let bars: Vec<String> = seen.guests.iter().map(|guest| sketch::bar(guest, names)).collect();
        if !self.progress.is_hidden() {
            self.progress.set_message(format!("memory by node\n  {}", bars.join("\n  ")));
            return;
        }
        let seconds = self.started.elapsed().as_secs();
        for (guest, bar) in seen.guests.iter().zip(bars) {
            match self.told.iter_mut().find(|told| told.name == guest.name) {
                Some(told) if !differs(told, guest) => continue,
                Some(told) => told.clone_from(guest),
                None => self.told.push(guest.clone()),
            }
            self.line(&format!("{seconds:>4}s {bar}"));
        }
    }
}

fn differs(before: &GuestSeen, now: &GuestSeen) -> bool {
    let moved = moved(&before.memory_bytes_by_node, &now.memory_bytes_by_node);
    before.nodes != now.nodes || moved >= WORTH_A_LINE
}

/// The bytes that are on a node now and were not before.
fn moved(before: &[u64], now: &[u64]) -> u64 {
    let more = before.iter().zip(now).map(|(before, now)| now.saturating_sub(*before));
    more.sum()
}

fn in_words(check: &Check) -> String {
    format!("{}: {} ({})", check.about.trim(), check.what.replace('_', " "), check.found)
}

/// A command as it is shown, in a line: what is only bookkeeping is left out.
fn shown(command: &str) -> Option<String> {
    let mut first = command.trim().lines().next()?;
    if first.starts_with("instep") {
        first = first.split(" >").next()?;
    }
    (!first.starts_with("cat ")).then(|| format!("\n# {first}"))
}

/// Lines, none longer than the others: a kernel's last words are as long as they are.
fn narrow(text: &str) -> String {
    text.lines().flat_map(|line| wrapped(line, WIDTH)).collect::<Vec<_>>().join("\n")
}

impl Audience for Narrator<'_> {
    fn say(&mut self, said: &str) {
        if said.lines().count() > 1 {
            self.line(&format!("\n{}", narrow(said)));
        } else if !self.progress.is_hidden() {
            self.progress.set_message(said.lines().next().unwrap_or_default().to_owned());
        } else if !self.up {
            // In a pipe, what comes before the story is progress, too.
            let _ = writeln!(io::stderr(), "{said}");
        }
    }

    fn up(&mut self, report: &LabReport) {
        if self.up {
            self.line("\nOnce more from the beginning:");
        }
        self.up = true;
        (self.steps, self.headed, self.cycle) = (&self.scenario.step, 0, 0);
        self.told.clear();
        let seconds = &report.seconds;
        self.line(&format!(
            "\nLinux {} was up after {:.0}s, its KVM guests {:.0}s later.",
            report.kernel, seconds.host_up, seconds.guests_up
        ));
    }

    fn begins(&mut self, step: &Step) {
        self.heading(step);
        if step.observe.is_some() {
            self.live = step.within.is_some();
            if self.live {
                self.line("");
            }
        } else if let Some(command) = step.run.as_deref().and_then(shown) {
            self.line(&command);
        } else if let Some(names) = &step.start {
            self.line(&format!("\n{} are started.", names.join(" and ")));
            self.progress.set_message(format!("{} boot", names.join(" and ")));
        }
    }

    fn looked(&mut self, seen: &LabObservation, _held: bool) {
        if self.live {
            self.on_the_way(seen);
        }
    }

    fn done(&mut self, step: &Step, report: &LabReport) {
        let Some(done) = report.steps.last() else { return };
        if let Some(output) = &done.stdout {
            self.printed(output);
        }
        let from = report.checks.len().saturating_sub(done.checks);
        let checks = report.checks.get(from..).unwrap_or_default();
        if let Some(seen) = step.observe.as_ref().and_then(|name| report.observations.get(name)) {
            if self.live && !self.progress.is_hidden() {
                let names = seen.guests.iter().map(|guest| guest.name.len()).max().unwrap_or(0);
                for guest in &seen.guests {
                    self.line(&format!("  {}", sketch::bar(guest, names)));
                }
            }
            self.live = false;
            self.moment(seen, checks);
        } else {
            for check in checks.iter().filter(|check| !check.held) {
                self.wrapped(&format!("NOT held: {}", in_words(check)), "  ");
            }
            if step.start.is_some() {
                self.line(&format!("They are up, after {:.0}s.", done.seconds));
            }
        }
    }
}

impl Drop for Narrator<'_> {
    fn drop(&mut self) {
        self.progress.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookkeeping_is_not_shown_and_commands_are() {
        assert_eq!(shown("cat /tmp/x"), None);
        assert_eq!(shown("\ninstep run >x &\necho $!"), Some("\n# instep run".into()));
        assert_eq!(shown("printf x >y"), Some("\n# printf x >y".into()));
    }

    #[test]
    fn words_of_a_kernel_that_panicked_are_no_wider_than_the_story() {
        let said = format!(
            "its kernel panicked; {}\n[ 1.1] {}\nagain",
            "it said ".repeat(20),
            "f".repeat(90)
        );
        let narrow = narrow(&said);
        assert!(narrow.lines().all(|line| line.len() <= WIDTH), "{narrow}");
        assert!(narrow.ends_with("\nagain"));
    }

    #[test]
    fn moved_counts_what_came_to_a_node_once() {
        assert_eq!(moved(&[10, 90], &[40, 60]), 30);
        assert_eq!(moved(&[10], &[10, 5]), 0);
    }
}
