//! `instep record`: this host's scheduling into a file; the work is `instep-record`'s. Opens the
//! file, waits, and says what came of it.

use crate::args::{RecordArgs, RecordSource};
use crate::text::{plural, printable};
use crate::{Outcome, print, print_json, tell};
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use instep_core::units::Bytes;
use instep_record::{Choice, Progress, RecordOptions, Summary, record};
use instep_trace::analysis::time;
use instep_trace::rec::MAGIC;
use schemars::JsonSchema;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read as _, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Records until the time is over, the file is full or a signal comes.
pub(crate) fn command(args: &RecordArgs) -> anyhow::Result<Outcome> {
    let to_stdout = args.output == Path::new("-");
    anyhow::ensure!(
        !(to_stdout && args.json),
        "-o - and --json both want standard output; name a FILE"
    );
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot wait for signals")?;
    }
    let out = open(&args.output, to_stdout)?;
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} recording: {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    let mut wait = |time: Duration| {
        // A signal ends the sleep; one that came just before waits for a tenth of a second.
        if !stop.load(Ordering::Relaxed) {
            std::thread::sleep(time);
        }
        stop.load(Ordering::Relaxed)
    };
    let mut show = |progress: &Progress| {
        bar.set_message(format!(
            "{:.0}s, {} events, {}",
            progress.elapsed.as_secs_f64(),
            progress.events,
            Bytes(progress.bytes)
        ));
        bar.tick();
    };
    let summary = record(out, &options(args), &mut wait, &mut show);
    bar.finish_and_clear();
    let summary = summary.inspect_err(|_| discard(&args.output, to_stdout))?;
    report(args, &summary, to_stdout)?;
    Ok(if summary.lost_events() > 0 { Outcome::Finding } else { Outcome::Fine })
}

fn options(args: &RecordArgs) -> RecordOptions {
    RecordOptions {
        duration: args.duration,
        max_bytes: args.max_size.0,
        vms: args.vms.clone(),
        source: match args.source {
            RecordSource::Auto => Choice::Auto,
            RecordSource::Bpf => Choice::Bpf,
            RecordSource::Tracefs => Choice::Tracefs,
        },
        buffer: args.buffer.map(|size| size.0),
        compress: !args.no_compress,
        command: std::env::args().collect::<Vec<_>>().join(" "),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// The file, which may replace an earlier recording but nothing else.
fn open(path: &Path, to_stdout: bool) -> anyhow::Result<Box<dyn Write>> {
    if to_stdout {
        anyhow::ensure!(
            !io::stdout().is_terminal(),
            "a recording is nothing for a terminal; name a file with -o FILE, or pipe it: instep \
             record -o - | instep analyze -"
        );
        return Ok(Box::new(io::stdout().lock()));
    }
    let shown = path.display();
    if let Ok(file) = fs::metadata(path)
        && file.is_file()
        && file.len() > 0
    {
        let mut start = Vec::new();
        let opened = File::open(path).with_context(|| format!("cannot read {shown}"))?;
        opened.take(8).read_to_end(&mut start).with_context(|| format!("cannot read {shown}"))?;
        anyhow::ensure!(
            start == MAGIC,
            "{shown} is there already and is no recording of Instep; remove it, or name another \
             file with -o FILE"
        );
    }
    let file = File::create(path).with_context(|| format!("cannot write {shown}"))?;
    Ok(Box::new(file))
}

/// Leaves no empty file behind when nothing was recorded.
fn discard(path: &Path, to_stdout: bool) {
    if !to_stdout && fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == 0) {
        let _ = fs::remove_file(path);
    }
}

/// What `--json` prints: schema instep.recording/1.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Recording")]
pub(crate) struct View<'a> {
    #[schemars(extend("const" = "instep.recording/1"))]
    schema: &'static str,
    file: String,
    source: &'a str,
    why_not_bpf: Option<&'a str>,
    ended: &'a str,
    duration_ns: u64,
    events: u64,
    bytes: u64,
    lost: u64,
    lost_by_place: &'a [instep_trace::rec::Lost],
    cost_ns: u64,
    /// Null where the kernel does not count it; then the next says why.
    kernel_cost_ns: Option<u64>,
    why_no_kernel_cost: Option<&'a str>,
    vms: Vec<VmView<'a>>,
    warnings: &'a [String],
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "RecordedVm")]
struct VmView<'a> {
    name: &'a str,
    pid: u32,
    vcpus: usize,
}

fn report(args: &RecordArgs, summary: &Summary, to_stdout: bool) -> anyhow::Result<()> {
    if args.json {
        return print_json(&view(args, summary));
    }
    summary.warnings.iter().for_each(|warning| tell(&format!("warning: {warning}")));
    if let Some(why) = &summary.why_not_bpf {
        tell(&format!("warning: recorded through tracefs, which costs more: BPF: {why}"));
    }
    if summary.lost_events() > 0 {
        tell(&format!(
            "warning: {} were lost and are marked where they are missing; record with a larger \
             --buffer, or only --vm NAME",
            plural(summary.lost_events() as usize, "event")
        ));
    }
    let text = summary_text(&args.output, summary);
    if to_stdout {
        text.lines().for_each(tell)
    } else {
        print(&text)?
    }
    Ok(())
}

fn summary_text(output: &Path, summary: &Summary) -> String {
    let seconds = summary.duration.as_secs_f64();
    let part = summary.cost.as_secs_f64() * 100.0 / seconds.max(1e-9);
    let mut text = format!(
        "{} of {} recorded through {} ({} a second, {} lost), {}; ended by {}\n",
        plural(summary.events as usize, "event"),
        time(nanos(summary.duration)),
        summary.source,
        (summary.events as f64 / seconds.max(1e-9)) as u64,
        summary.lost_events(),
        Bytes(summary.bytes),
        match summary.ended.as_str() {
            "size" => "its size (--max-size)",
            "stopped" => "a signal",
            _ => "its time",
        },
    );
    text.push_str(&format!("recording took {part:.2} % of one CPU"));
    if let Some(kernel) = summary.kernel_cost {
        let part = kernel.as_secs_f64() * 100.0 / seconds.max(1e-9);
        text.push_str(&format!(", and {part:.2} % in the kernel"));
    }
    if let Some(why) = &summary.why_no_kernel_cost {
        text.push_str(&format!(", without its part in the kernel, which is not counted: {why}"));
    }
    text.push('\n');
    let vms: Vec<String> =
        summary.vms.iter().map(|vm| format!("{} ({})", printable(&vm.0), vm.2)).collect();
    let vms = if vms.is_empty() { "none seen".to_owned() } else { vms.join(", ") };
    text.push_str(&format!("VMs (vCPUs): {vms}\n"));
    if output != Path::new("-") {
        text.push_str(&format!("next: instep analyze {}\n", output.display()));
    }
    text
}

fn view<'a>(args: &RecordArgs, summary: &'a Summary) -> View<'a> {
    let vm = |vm: &'a (String, u32, usize)| VmView { name: &vm.0, pid: vm.1, vcpus: vm.2 };
    View {
        schema: "instep.recording/1",
        file: args.output.display().to_string(),
        source: &summary.source,
        why_not_bpf: summary.why_not_bpf.as_deref(),
        ended: &summary.ended,
        duration_ns: nanos(summary.duration),
        events: summary.events,
        bytes: summary.bytes,
        lost: summary.lost_events(),
        lost_by_place: &summary.lost,
        cost_ns: nanos(summary.cost),
        kernel_cost_ns: summary.kernel_cost.map(nanos),
        why_no_kernel_cost: summary.why_no_kernel_cost.as_deref(),
        vms: summary.vms.iter().map(vm).collect(),
        warnings: &summary.warnings,
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_own_cost_is_reported_with_what_is_not_counted_of_it() {
        let duration = Duration::from_secs(10);
        let cost = Duration::from_millis(30);
        let summary = Summary { duration, cost, ..Summary::default() };
        let said = |summary: Summary| summary_text(Path::new("f"), &summary);
        let kernel_cost = Some(Duration::from_millis(20));
        let counted = said(Summary { kernel_cost, ..summary.clone() });
        assert!(
            counted.contains("took 0.30 % of one CPU, and 0.20 % in the kernel\n"),
            "{counted}"
        );
        let why_no_kernel_cost = Some("it is off".to_owned());
        let part = said(Summary { why_no_kernel_cost, ..summary });
        assert!(part.contains("without its part in the kernel, which is not counted: it is off"));
    }

    #[test]
    fn only_a_recording_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, b"something else").unwrap();
        let error = open(&path, false).err().unwrap().to_string();
        assert!(error.contains("is no recording of Instep"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"something else");
        fs::write(&path, MAGIC).unwrap();
        assert!(open(&path, false).is_ok());
        discard(&path, false);
        assert!(!path.exists());
    }
}
