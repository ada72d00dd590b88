//! `instep analyze`: a recorded trace to a report. Opens files, knows the options and what the
//! user told beforehand; the formats and the meaning are `instep-trace`'s.

mod facts;
mod html;
mod judged;
mod strip;
mod text;
mod topology_file;

use crate::args::AnalyzeArgs;
use crate::page::Timeline;
use crate::{Outcome, print, print_json, tell};
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use instep_core::topology::Topology;
use instep_core::units::Nanos;
use instep_trace::analysis::discover::FoundVm;
use instep_trace::analysis::report::Report;
use instep_trace::analysis::{Place, Settings, Sink, analyze_into};
use instep_trace::event::Event;
use instep_trace::perfetto::PerfettoWriter;
use instep_trace::stream::{EventStream, Header, Tally};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read};
use std::path::Path;

/// Analyses every file that the options name.
pub(crate) fn command(args: &AnalyzeArgs) -> anyhow::Result<Outcome> {
    anyhow::ensure!(
        args.files.len() == 1
            || (args.html.is_none() && args.perfetto.is_none() && args.strip.is_none()),
        "--html, --perfetto and --strip draw one trace; name one FILE"
    );
    let settings = settings(args)?;
    if let Some(rules) = &args.check {
        return judged::command(args, &settings, rules);
    }
    let mut reports = Vec::new();
    for path in &args.files {
        let report = one(path, &settings, args)?;
        if !args.json {
            report.warnings.iter().for_each(|warning| tell(&format!("warning: {warning}")));
            print(&text::draw(&name(path), &report, crate::text::width()))?;
        }
        reports.push(report);
    }
    if args.json {
        match reports.as_slice() {
            [one] => print_json(one)?,
            several => print_json(&several)?,
        }
    }
    let found = reports.iter().any(|report| !report.findings.is_empty());
    Ok(if found { Outcome::Finding } else { Outcome::Fine })
}

fn settings(args: &AnalyzeArgs) -> anyhow::Result<Settings> {
    let mut vms = Vec::new();
    for vm in &args.vms {
        vms.push(named_vm(vm)?);
    }
    if let Some(dir) = &args.facts {
        let known = facts::read(dir)?;
        vms.extend(known.into_iter().filter(|vm| !vms_claim(&vms, vm)).collect::<Vec<_>>());
    }
    let topology: Option<Topology> =
        args.topology.as_deref().map(topology_file::read).transpose()?;
    let weights: anyhow::Result<Vec<_>> = args.weights.iter().map(|text| weight(text)).collect();
    Ok(Settings {
        vms,
        topology,
        weights: weights?.into_iter().collect(),
        inferred: None,
        quantum: Nanos(args.quantum.as_nanos() as u64),
        period: Nanos(args.period.as_nanos() as u64),
        edges: true,
    })
}

/// Whether a thread of `vm` was named for another VM.
fn vms_claim(vms: &[FoundVm], vm: &FoundVm) -> bool {
    let is_claimed = |tid| vms.iter().any(|vm| vm.vcpus.iter().any(|(_, own)| *own == tid));
    vm.vcpus.iter().any(|(_, tid)| is_claimed(*tid))
}

/// `NAME=TID,TID,...`: the threads of vCPU 0, 1 and so on.
fn named_vm(text: &str) -> anyhow::Result<FoundVm> {
    let form = || format!("--vm {text}: takes NAME=TID,TID,... (threads of vCPU 0, 1, ...)");
    let (name, tids) = text.split_once('=').with_context(form)?;
    let tids: Result<Vec<u32>, _> = tids.split(',').map(|tid| tid.trim().parse()).collect();
    let tids = tids.with_context(form)?;
    anyhow::ensure!(!name.is_empty() && !tids.is_empty(), form());
    let vcpus = tids.into_iter().enumerate().map(|(index, tid)| (index as u32, tid)).collect();
    Ok(FoundVm { name: name.to_owned(), pid: None, vcpus })
}

/// `NAME=WEIGHT`.
fn weight(text: &str) -> anyhow::Result<(String, u32)> {
    let form = || format!("--weight {text}: takes NAME=WEIGHT, such as db=200 (1 to 10000)");
    let (name, weight) = text.rsplit_once('=').with_context(form)?;
    let weight = weight.parse().ok().filter(|weight| (1..=10_000).contains(weight));
    Ok((name.to_owned(), weight.with_context(form)?))
}

/// A trace as messages name it.
fn name(path: &Path) -> String {
    if path.as_os_str() == "-" {
        return "standard input".to_owned();
    }
    path.display().to_string()
}

/// A thread that was named with --vm and that the trace does not know is a slip of the pen.
fn ensure_seen(report: &Report, args: &AnalyzeArgs) -> anyhow::Result<()> {
    for text in &args.vms {
        let vm = named_vm(text)?;
        let is_unseen = |tid: &u32| report.unseen.contains(tid);
        let unseen: Vec<String> =
            vm.vcpus.iter().map(|(_, tid)| *tid).filter(is_unseen).map(|t| t.to_string()).collect();
        anyhow::ensure!(
            unseen.is_empty(),
            "--vm {text}: the trace does not know thread {}; `instep analyze` without --vm lists \
             the vCPU threads that it finds",
            unseen.join(", ")
        );
    }
    Ok(())
}

/// The events of a file, of a pipe or, for `-`, of standard input.
fn open(path: &Path) -> anyhow::Result<Box<dyn EventStream>> {
    let shown = name(path);
    if path.as_os_str() == "-" {
        return Ok(instep_trace::open_stream(io::stdin().lock(), &shown, Default::default())?);
    }
    let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(instep_trace::open(file, &shown, Default::default())?);
    }
    let pipe: Box<dyn Read> = Box::new(file);
    Ok(instep_trace::open_stream(pipe, &shown, Default::default())?)
}

/// Analyses one trace and writes the drawings that are wished for.
fn one(path: &Path, settings: &Settings, args: &AnalyzeArgs) -> anyhow::Result<Report> {
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
    let nanos =
        |time: std::time::Duration| Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let (from, length) = (nanos(args.strip_from.unwrap_or_default()), nanos(args.strip_length));
    sinks.strip = args.strip.is_some().then(|| strip::Strip::new(from, length));
    let mut settings = settings.clone();
    if settings.topology.is_none()
        && let Some((topology, why)) =
            topology_file::inferred(watched.header(), &instep_host::Root::live())
    {
        (settings.topology, settings.inferred) = (Some(topology), Some(why));
    }
    let report = analyze_into(&mut watched, &settings, &mut sinks);
    bar.finish_and_clear();
    ensure_seen(&report, args)?;
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
    if let (Some(to), Some(strip)) = (&args.strip, sinks.strip) {
        fs::write(to, strip.svg()).with_context(|| format!("cannot write {}", to.display()))?;
        tell(&format!("wrote {}", to.display()));
    }
    Ok(report)
}

/// The drawings that are wished for.
#[derive(Default)]
struct Sinks {
    perfetto: Option<PerfettoWriter<BufWriter<File>>>,
    timeline: Option<Timeline>,
    strip: Option<strip::Strip>,
}

impl Sinks {
    fn each(&mut self) -> impl Iterator<Item = &mut dyn Sink> {
        let perfetto = self.perfetto.as_mut().map(|sink| sink as &mut dyn Sink);
        let timeline = self.timeline.as_mut().map(|sink| sink as &mut dyn Sink);
        let strip = self.strip.as_mut().map(|sink| sink as &mut dyn Sink);
        [perfetto, timeline, strip].into_iter().flatten()
    }
}

impl Sink for Sinks {
    fn begin(&mut self, vms: &[FoundVm], begin: Nanos) {
        self.each().for_each(|sink| sink.begin(vms, begin));
    }

    fn span(&mut self, vm: usize, vcpu: usize, place: Place, since: Nanos, until: Nanos) {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_named_by_its_threads() {
        let vm = named_vm("db=158,161").unwrap();
        assert_eq!((vm.name.as_str(), vm.vcpus), ("db", vec![(0, 158), (1, 161)]));
        for wrong in ["db", "db=", "=1", "db=x"] {
            assert!(named_vm(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_weight_is_named_by_its_vm() {
        assert_eq!(weight("db=200").unwrap(), ("db".to_owned(), 200));
        for wrong in ["db", "db=", "db=0", "db=10001", "db=-1"] {
            assert!(weight(wrong).is_err(), "{wrong}");
        }
    }
}
