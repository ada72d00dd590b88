//! `instep profile`: runs an application or watches one, or a VM, and says how it would scale on VMs.
//! What the numbers mean is `core::profile`'s; how they are taken is the host crate's.

mod html;
mod imitated;
mod launch;
mod numbers;
mod placing;
mod report;
mod text;
mod watch;

use crate::args::ProfileArgs;
use crate::pending::ensure_apart;
use crate::{Outcome, print, print_json, tell};
use anyhow::Context;
use instep_core::idset::CpuSet;
use instep_core::profile::advice::Advice;
use instep_core::profile::placing::Run;
use instep_core::profile::{Profile, Watched};
use instep_core::topology::Topology;
use instep_core::units::{Milli, Nanos};
use instep_host::Root;
use instep_host::discover::{ScanOptions, Scanner};
pub(crate) use report::ProfileReport;
use report::{Place, Point};
use std::path::{Path, PathBuf};
use watch::{Seen, Watcher};

/// Where a template takes the number of threads.
const THREADS: &str = "{threads}";
/// How long a process or a VM is watched unless said otherwise.
const WATCHED: std::time::Duration = std::time::Duration::from_secs(10);

/// Watches, judges, prints.
pub(crate) fn command(args: &ProfileArgs) -> anyhow::Result<Outcome> {
    anyhow::ensure!(
        !args.command.is_empty() || args.pid.is_some() || args.vm.is_some(),
        "name what to profile: a command (instep profile -- CMD), a process (--pid PID) or a VM \
         (--vm NAME)"
    );
    let written = args.scenario.iter().chain(&args.html).map(PathBuf::as_path);
    ensure_apart(&[], &written.collect::<Vec<_>>())?;
    let simulator = args.scenario.as_ref().map(|_| imitated::simulator()).transpose()?;
    let period = Nanos(u64::try_from(args.period.as_nanos()).unwrap_or(u64::MAX));
    let interval = args
        .period
        .clamp(std::time::Duration::from_millis(4), std::time::Duration::from_millis(100));
    let mut watcher = Watcher::new(interval)?;
    (watcher.limit, watcher.workers, watcher.trace) = (args.duration, args.workers, !args.no_trace);
    let topology = instep_host::topology::read(&Root::live())?;
    let mut report = if let Some(name) = &args.vm {
        watcher.limit = args.duration.or(Some(WATCHED));
        of_vm(&watcher, name, args.share, period)?
    } else if let Some(pid) = args.pid {
        watcher.limit = args.duration.or(Some(WATCHED));
        let seen = watcher.process(pid)?;
        report::new(format!("process {pid}"), &seen, args.share, period)
    } else {
        of_command(&mut watcher, args, period, &topology)?
    };
    if report.placing.is_none() {
        report.place(&[], &topology);
    }
    let wanted = args.scenario.as_ref().zip(simulator).filter(|_| report.no_advice.is_none());
    if let Some((file, simulator)) = wanted {
        let text = imitated::of(&mut report, &simulator)?;
        write(file, &text)?;
        tell(&format!("wrote {}; try: instep sim {0}", file.display()));
    }
    if let Some(file) = &args.html {
        write(file, &html::page(&report)?)?;
        tell(&format!("wrote {}", file.display()));
    }
    if args.json {
        print_json(&report)?;
    } else {
        print(&text::draw(&report, crate::text::width()))?;
        report.warnings.iter().for_each(|warning| tell(&format!("warning: {warning}")));
    }
    if let Some((file, why)) = args.scenario.as_ref().zip(report.no_advice.as_ref()) {
        anyhow::bail!("{} is not written, as there is no advice: {why}", file.display());
    }
    Ok(if report.failed { Outcome::Finding } else { Outcome::Fine })
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Runs the command: once, once for each number of threads, or once on each set of CPUs.
fn of_command(
    watcher: &mut Watcher,
    args: &ProfileArgs,
    period: Nanos,
    topology: &Topology,
) -> anyhow::Result<ProfileReport> {
    let words = &args.command;
    let name = words.join(" ");
    let template = words.iter().any(|word| word.contains(THREADS));
    anyhow::ensure!(
        template != args.threads.is_empty(),
        if template {
            "the command has {threads} in it, and --threads does not say how many; try --threads \
             1,2,4"
        } else {
            "--threads is there, and the command does not say where the number goes; write \
             {threads} in its place"
        }
    );
    if args.threads.is_empty() && args.on.is_empty() {
        let seen = watcher.command(words, None)?;
        return Ok(report::new(name, &seen, args.share, period));
    }
    if args.on.is_empty() {
        return curve(watcher, args, &name, period);
    }
    places(watcher, args, &name, period, topology)
}

/// Runs the command on each set of CPUs; the profile is that of the last.
fn places(
    watcher: &mut Watcher,
    args: &ProfileArgs,
    name: &str,
    period: Nanos,
    topology: &Topology,
) -> anyhow::Result<ProfileReport> {
    let (mut places, mut runs) = (Vec::<Place>::new(), Vec::new());
    let mut last = None;
    for list in &args.on {
        let cpus = CpuSet::parse_list(list).with_context(|| format!("--on {list}"))?;
        let seen = watcher.command(&args.command, Some(&cpus))?;
        let profile = Profile::of(&seen.watched, args.share, period);
        let run = Run::new(&seen.watched, &cpus, topology);
        places.push(Place::new(list, &profile, &run));
        if seen.ended.is_none_or(|ended| ended.success()) {
            runs.push(run);
        }
        last = Some(seen);
        if watcher.stopped() {
            break;
        }
    }
    let seen = last.context("--on names no CPUs")?;
    let mut report = report::new(name.to_owned(), &seen, args.share, period);
    report.places = places;
    report.place(&runs, topology);
    Ok(report)
}

/// Runs the command with each number of threads; the profile is that of the most.
fn curve(
    watcher: &mut Watcher,
    args: &ProfileArgs,
    name: &str,
    period: Nanos,
) -> anyhow::Result<ProfileReport> {
    let mut counts = args.threads.clone();
    counts.sort_unstable();
    counts.dedup();
    let mut points: Vec<Point> = Vec::new();
    let mut most: Option<Seen> = None;
    for count in counts {
        let number = count.to_string();
        let words: Vec<String> =
            args.command.iter().map(|word| word.replace(THREADS, &number)).collect();
        watcher.workers = Some(args.workers.unwrap_or(count));
        let seen = watcher.command(&words, None)?;
        points.push(Point::new(count, &Profile::of(&seen.watched, args.share, period)));
        let failed = seen.ended.is_some_and(|ended| !ended.success());
        most = Some(seen);
        if watcher.stopped() || failed {
            break;
        }
    }
    let seen = most.context("--threads names no number")?;
    let mut report = report::new(name.to_owned(), &seen, args.share, period);
    report.set_curve(points);
    Ok(report)
}

/// Finds the VM and watches its vCPUs.
fn of_vm(
    watcher: &Watcher,
    name: &str,
    share: Milli,
    period: Nanos,
) -> anyhow::Result<ProfileReport> {
    let mut options = ScanOptions::once();
    options.memory.enabled = false;
    let scan = Scanner::new(Root::live(), options).scan()?;
    if let Some(vm) = scan.opaque.iter().find(|vm| vm.name == name) {
        anyhow::bail!("the vCPUs of {name} are not known: {}; see `instep status`", vm.why);
    }
    let vm = scan.vms.iter().find(|vm| vm.name == name);
    let vm = vm.with_context(|| format!("no VM is called `{name}`; see `instep status`"))?;
    let tids: Vec<_> = vm.vcpus.iter().map(|vcpu| vcpu.tid).collect();
    let seen = watcher.vm(vm.pid, &tids)?;
    let mut report = report::new(format!("VM {name} (pid {})", vm.pid), &seen, share, period);
    report.vcpu_tids = tids.iter().map(|tid| tid.0).collect();
    Ok(report)
}

/// What a watching amounts to.
fn judged(watched: &Watched, share: Milli, period: Nanos) -> (Profile, Option<Advice>) {
    let profile = Profile::of(watched, share, period);
    let advice = Advice::of(watched, &profile, share, period);
    (profile, advice)
}
