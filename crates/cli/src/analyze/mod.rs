//! `instep analyze`: a recorded trace to a report. Opens files, knows the options and what the
//! user told beforehand; the formats and the meaning are `instep-trace`'s.

mod facts;
mod html;
mod rules;
mod schedule_check;
pub(crate) use schedule_check::Checked;
mod settings;
mod text;
pub(crate) mod topology_file;

use crate::args::AnalyzeArgs;
use crate::page::Timeline;
use crate::pending::ensure_apart;
use crate::{Outcome, print, print_json, tell};
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use instep_core::units::{Bytes, Nanos};
use instep_trace::analysis::discover::FoundVm;
use instep_trace::analysis::report::AnalysisReport;
use instep_trace::analysis::{AnalysisSettings, SchedState, Sink, analyze_into};
use instep_trace::event::Event;
use instep_trace::perfetto::PerfettoWriter;
use instep_trace::stream::{Counter, Throttled};
use instep_trace::stream::{EventStream, Header, Tally};
use schemars::JsonSchema;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, BufWriter, Cursor, Read};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

/// The most that is kept of a pipe whose trace is read at many places.
const MAX_KEPT: u64 = 1 << 30;

/// Analyses every file that the options name.
pub(crate) fn command(args: &AnalyzeArgs) -> anyhow::Result<Outcome> {
    anyhow::ensure!(
        args.files.len() == 1 || (args.html.is_none() && args.perfetto.is_none()),
        "--html and --perfetto draw one trace; name one FILE"
    );
    nothing_is_lost(args)?;
    let settings = settings::of_options(args)?;
    if let Some(rules) = &args.check {
        return schedule_check::command(args, &settings, rules);
    }
    let show = |path: &Path, Named { report, .. }: &Named| {
        if args.json {
            return Ok(());
        }
        report.warnings.iter().for_each(|warning| tell(&format!("warning: {warning}")));
        print(&text::draw(&name(path), report, crate::text::width()))
    };
    let named = |path: &Path| Ok(Named { file: name(path), report: one(path, &settings, args)? });
    let (reports, whole) = each(&args.files, named, show)?;
    if args.json {
        match reports.as_slice() {
            [one] if args.files.len() == 1 => print_json(&one.report)?,
            several => print_json(&several)?,
        }
    }
    whole?;
    let found = reports.iter().any(|named| !named.report.findings.is_empty());
    Ok(if found { Outcome::Finding } else { Outcome::Fine })
}

/// No file that is read, or written, is written over.
fn nothing_is_lost(args: &AnalyzeArgs) -> anyhow::Result<()> {
    let input = |file: &PathBuf| match file.as_os_str() == "-" {
        true => PathBuf::from("/dev/stdin"),
        false => file.clone(),
    };
    let read: Vec<PathBuf> = args.files.iter().chain(&args.topology).map(input).collect();
    let read: Vec<&Path> = read.iter().map(PathBuf::as_path).collect();
    let written = [&args.html, &args.perfetto].into_iter().flatten();
    ensure_apart(&read, &written.map(PathBuf::as_path).collect::<Vec<_>>())
}

/// A report among several.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "NamedAnalysis")]
pub(crate) struct Named {
    file: String,
    #[serde(flatten)]
    report: AnalysisReport,
}

/// What comes of `one` for every file, shown at once, and whether it came of all: one of several that
/// fails does not keep the others from it; of one that is alone the error is all.
fn each<T>(
    files: &[PathBuf],
    one: impl Fn(&Path) -> anyhow::Result<T>,
    show: impl Fn(&Path, &T) -> anyhow::Result<()>,
) -> anyhow::Result<(Vec<T>, anyhow::Result<()>)> {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for path in files {
        match one(path) {
            Ok(result) => {
                show(path, &result)?;
                done.push(result);
            }
            Err(error) if files.len() > 1 => {
                tell(&crate::error_text(&error));
                failed.push(name(path));
            }
            Err(error) => return Err(error),
        }
    }
    let (count, all, names) = (failed.len(), files.len(), failed.join(", "));
    let whole = if failed.is_empty() {
        Ok(())
    } else {
        Err(anyhow::anyhow!("{count} of {all} files could not be analysed: {names}"))
    };
    Ok((done, whole))
}

/// A trace as messages name it.
fn name(path: &Path) -> String {
    if path.as_os_str() == "-" {
        return "standard input".to_owned();
    }
    path.display().to_string()
}

/// The events of a file, of a pipe or, for `-`, of standard input, which may be either.
fn open(path: &Path) -> anyhow::Result<Box<dyn EventStream>> {
    let shown = name(path);
    let unread = || format!("cannot read {shown}");
    let mut file = if path.as_os_str() == "-" {
        File::from(io::stdin().as_fd().try_clone_to_owned().with_context(unread)?)
    } else {
        File::open(path).with_context(unread)?
    };
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(instep_trace::open(file, &shown, Default::default())?);
    }
    let mut start = Vec::new();
    file.by_ref().take(instep_trace::START).read_to_end(&mut start).with_context(unread)?;
    let is_whole_only = instep_trace::is_read_at_places(&start);
    let pipe = Cursor::new(start).chain(file);
    if is_whole_only {
        let kept = kept(pipe, &shown, MAX_KEPT)?;
        return Ok(instep_trace::open(kept, &shown, Default::default())?);
    }
    Ok(instep_trace::open_stream(pipe, &shown, Default::default())?)
}

/// What comes through a pipe, in a temporary file that has no name, at most so many bytes.
fn kept(pipe: impl Read, shown: &str, most: u64) -> anyhow::Result<File> {
    let unkept =
        || format!("{shown}: cannot be kept in a temporary file (TMPDIR names the directory)");
    let mut file = tempfile::tempfile().with_context(unkept)?;
    let size = io::copy(&mut pipe.take(most + 1), &mut file).with_context(unkept)?;
    anyhow::ensure!(
        size <= most,
        "{shown}: a trace of this format is read at many places, and from a pipe up to {} only; \
         write it to a file and name that: instep analyze FILE",
        Bytes(most)
    );
    Ok(file)
}

/// Analyses one trace and writes the drawings that are wished for.
fn one(
    path: &Path,
    settings: &AnalysisSettings,
    args: &AnalyzeArgs,
) -> anyhow::Result<AnalysisReport> {
    let mut stream = open(path)?;
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {msg}: {pos} events, {per_sec}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.set_message(name(path));
    let mut watched = Watched { stream: stream.as_mut(), bar: &bar };
    let mut sinks = Sinks::default();
    if let Some(to) = &args.perfetto {
        let file = File::create(to).with_context(|| format!("cannot write {}", to.display()))?;
        sinks.perfetto = Some(PerfettoWriter::new(BufWriter::new(file)));
    }
    sinks.timeline = args.html.is_some().then(Timeline::default);
    let mut settings = settings.clone();
    if settings.topology.is_none()
        && let Some((topology, why)) =
            topology_file::inferred(watched.header(), &instep_host::Root::live())
    {
        (settings.topology, settings.inferred) = (Some(topology), Some(why));
    }
    let report = analyze_into(&mut watched, &settings, &mut sinks);
    bar.finish_and_clear();
    settings::ensure_begun(path, stream.tally())?;
    settings::ensure_known(&report, args, &settings)?;
    if let (Some(to), Some(writer)) = (&args.perfetto, sinks.perfetto) {
        writer.finish().with_context(|| format!("cannot write {}", to.display()))?;
        tell(&format!("wrote {}; open it on ui.perfetto.dev", to.display()));
    }
    if let (Some(to), Some(timeline)) = (&args.html, sinks.timeline) {
        let title = name(Path::new(path.file_name().unwrap_or(path.as_os_str())));
        let page = html::page(&timeline, &title, &report)?;
        fs::write(to, page).with_context(|| format!("cannot write {}", to.display()))?;
        tell(&format!("wrote {}; open it in a browser", to.display()));
    }
    Ok(report)
}

/// The drawings that are wished for.
#[derive(Default)]
struct Sinks {
    perfetto: Option<PerfettoWriter<BufWriter<File>>>,
    timeline: Option<Timeline>,
}

impl Sinks {
    fn each(&mut self) -> impl Iterator<Item = &mut dyn Sink> {
        let perfetto = self.perfetto.as_mut().map(|sink| sink as &mut dyn Sink);
        let timeline = self.timeline.as_mut().map(|sink| sink as &mut dyn Sink);
        [perfetto, timeline].into_iter().flatten()
    }
}

impl Sink for Sinks {
    fn begin(&mut self, vms: &[FoundVm], begin: Nanos) {
        self.each().for_each(|sink| sink.begin(vms, begin));
    }

    fn span(&mut self, vm: usize, vcpu: usize, place: SchedState, since: Nanos, until: Nanos) {
        self.each().for_each(|sink| sink.span(vm, vcpu, place, since, until));
    }
}

/// A stream whose progress is shown (on a terminal only, as indicatif does).
struct Watched<'a> {
    stream: &'a mut dyn EventStream,
    bar: &'a ProgressBar,
}

impl EventStream for Watched<'_> {
    fn header(&self) -> &Header {
        self.stream.header()
    }

    fn next_batch(&mut self, batch: &mut Vec<Event>) -> bool {
        let more = self.stream.next_batch(batch);
        self.bar.set_position(self.stream.tally().records);
        more
    }

    fn tally(&self) -> &Tally {
        self.stream.tally()
    }

    fn counters(&self) -> &[Counter] {
        self.stream.counters()
    }

    fn throttled(&self) -> &[Throttled] {
        self.stream.throttled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pipe_gives_is_kept_up_to_a_bound() {
        let kept = |most| kept(&[7u8; 100][..], "standard input", most);
        assert_eq!(kept(100).unwrap().metadata().unwrap().len(), 100);
        let said = kept(99).unwrap_err().to_string();
        assert!(said.contains("standard input: ") && said.contains("up to 99B only"), "{said}");
    }
}
