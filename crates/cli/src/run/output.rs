//! What a run prints and logs: records as JSON lines or for people, and notices.

use super::outlet::{Outlet, Target};
use super::text::{drawn, verdicts};
use crate::args::RunArgs;
use crate::text::{drawable, escaped_json, width};
use anyhow::Context as _;
use instep_agent::record::Record;
use instep_agent::run::Sink;
use std::cell::Cell;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the end of a run waits until what it printed is written.
const PATIENCE: Duration = Duration::from_secs(5);

/// Writes records to the log, and to the terminal as text or JSON lines. Nothing of it waits.
pub(super) struct Output<'a> {
    log: Option<Outlet>,
    out: Outlet,
    errors: Outlet,
    json: bool,
    once: bool,
    /// The interval now; a reload may change it.
    interval: &'a Cell<Duration>,
    /// The verdicts of the cycle before, which are not said twice.
    verdicts: String,
}

impl<'a> Output<'a> {
    /// Opens what the options name.
    pub(super) fn start(args: &RunArgs, interval: &'a Cell<Duration>) -> anyhow::Result<Self> {
        let cannot = "cannot copy the standard streams of this process";
        let errors = Target::standard(&io::stderr(), "standard error").context(cannot)?;
        let out = Target::standard(&io::stdout(), "standard output").context(cannot)?;
        let log = args.log.as_deref().map(open_log).transpose()?;
        let thread = "cannot start the thread that writes output";
        let errors = Outlet::start(errors, None).context(thread)?;
        let start = |target| Outlet::start(target, errors.reports()).context(thread);
        Ok(Self {
            log: log.map(start).transpose()?,
            out: start(out)?,
            errors,
            json: args.json,
            once: args.once,
            interval,
            verdicts: String::new(),
        })
    }

    /// Waits a moment until all is written; the number of records that were not.
    pub(super) fn finish(self) -> u64 {
        let end = Instant::now() + PATIENCE;
        let Self { log, out, mut errors, .. } = self;
        let lost = log.map_or(0, |log| log.finish(end)) + out.finish(end);
        if lost != 0 {
            errors.offer(crate::message(&format!(
                "records that could not be written: {lost} (`cycle` counts from 1, so that a gap shows)"
            )));
        }
        errors.finish(Instant::now() + PATIENCE);
        lost
    }

    fn next(&self, record: &Record<'_>) -> String {
        let changed = record.actions.iter().any(|action| action.outcome == "done");
        match (self.once, changed && !record.dry_run) {
            (true, true) => "`instep restore` puts it back.\n".to_owned(),
            (true, false) => String::new(),
            (false, _) => format!(
                "next cycle in {}\n",
                humantime::format_duration(Duration::from_secs(self.interval.get().as_secs()))
            ),
        }
    }
}

fn open_log(path: &Path) -> anyhow::Result<Target> {
    Target::log(path.to_owned()).map_err(|source| {
        anyhow::anyhow!(
            "cannot append to the log {}: {source}; name a file you may write with --log FILE",
            path.display()
        )
    })
}

impl Sink for Output<'_> {
    fn record(&mut self, record: &Record<'_>) {
        let line = serde_json::to_string(record).expect("a record is plain data");
        let mut line = escaped_json(&line);
        line.push('\n');
        if let Some(log) = &mut self.log {
            log.offer(line.clone());
        }
        if self.json {
            return self.out.offer(line);
        }
        let said = verdicts(record, width());
        let fresh = if said == self.verdicts { "" } else { &said };
        let text = drawn(record, fresh, width()) + &self.next(record);
        self.verdicts = said;
        self.out.offer(drawable(&text));
    }

    fn notice(&mut self, text: &str) {
        self.errors.offer(crate::message(text));
    }

    fn reopen(&mut self) -> bool {
        self.log.as_ref().inspect(|log| log.reopen()).is_some()
    }
}
