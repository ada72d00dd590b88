//! What really happened on the CPUs for a moment: scheduling recorded by `instep record`, analysed by
//! `instep-trace`.
//!
//! Recording costs the work some time, so it comes after counting. With sched_ext a thread that waits
//! belongs to the CPU it was last woken or put on, whichever queue a scheduler keeps it in.

use super::{Tools, read};
use instep_trace::analysis::discover::FoundVm;
use instep_trace::analysis::{AnalysisSettings, analyze};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the recorder may take beyond the time traced.
const SPARE: Duration = Duration::from_secs(30);
/// Name of the VM in the analysis.
const NAME: &str = "work";

/// Records for `time`; the stacking and the co-run of the VM with these vCPUs (number and thread), if
/// it was seen.
///
/// # Errors
/// In words why there is no recording.
pub(super) fn trace(
    vcpus: &[(u32, u32)],
    time: Duration,
    tools: &Tools<'_>,
) -> Result<Option<(f64, f64)>, String> {
    let file = tools.dir.join("trace.instep");
    record(&file, time, &tools.instep)?;
    let seen = read_trace(&file, vcpus);
    // Space in memory, in the lab; the next recording has the same name.
    let _ = std::fs::remove_file(&file);
    seen
}

fn record(file: &Path, time: Duration, instep: &Path) -> Result<(), String> {
    let log = file.with_extension("log");
    let out = File::create(&log).map_err(|error| format!("cannot make a log: {error}"))?;
    let errors = out.try_clone().map_err(|error| format!("cannot write a log: {error}"))?;
    let mut command = Command::new(instep);
    let millis = format!("{}ms", time.as_millis());
    command.args(["record", "--source", "tracefs", "--duration", &millis, "--output"]).arg(file);
    command.stdin(Stdio::null()).stdout(out).stderr(errors);
    let mut child =
        command.spawn().map_err(|error| format!("{} cannot be run: {error}", instep.display()))?;
    let end = Instant::now() + time + SPARE;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                let text = read(&log);
                let last = text.lines().rev().find(|line| !line.trim().is_empty());
                return Err(format!("instep record ended ({status}): {}", last.unwrap_or("")));
            }
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("instep record did not end in time".to_owned());
            }
        }
    }
}

fn read_trace(file: &Path, vcpus: &[(u32, u32)]) -> Result<Option<(f64, f64)>, String> {
    let source = File::open(file).map_err(|error| format!("there is no recording: {error}"))?;
    let name = file.display().to_string();
    let mut stream =
        instep_trace::open(source, &name, Default::default()).map_err(|error| error.to_string())?;
    let vm = FoundVm { name: NAME.to_owned(), pid: None, vcpus: vcpus.to_vec() };
    let report = analyze(
        stream.as_mut(),
        &AnalysisSettings { vms: vec![vm], ..AnalysisSettings::default() },
    );
    let vm = report.vms.iter().find(|vm| vm.name == NAME);
    Ok(vm.and_then(|vm| vm.stacking.zip(vm.co_run)))
}
