//! Tracepoints that stay switched on, and record nothing, so that a recording changes no code.
//!
//! The first function of a tracepoint and the second one change the kernel's code (a static key and a
//! static call: kernel/tracepoint.c, 7.2); the third one changes a table only. Two trace instances give each
//! tracepoint two functions. They have it in soft mode, in which it is switched on for a trigger's sake and
//! returns at once; the event that would pull the trigger does not happen here.
//!
//! Without it repeated recordings of four spinning vCPUs ended the host in `svm_vcpu_run` or
//! `ttwu_do_activate`, where kvm_entry and sched_wakeup are, in six runs of six. Switching them on takes a fifth
//! of a second while CPUs are idle, when they run none of this code; with CPUs kept busy it takes ten seconds.

use crate::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

const TRACING: &str = "/sys/kernel/tracing";

/// What the collectors, perf and trace-cmd are asked for: by system, then by name.
const HELD: [(&str, &str); 11] = [
    ("sched", "sched_switch"),
    ("sched", "sched_waking"),
    ("sched", "sched_wakeup"),
    ("sched", "sched_wakeup_new"),
    ("sched", "sched_migrate_task"),
    ("sched", "sched_process_fork"),
    ("sched", "sched_process_exit"),
    ("task", "task_rename"),
    ("kvm", "kvm_entry"),
    ("kvm", "kvm_exit"),
    ("kvm", "kvm_vcpu_wakeup"),
];

/// Told when a machine goes to sleep and wakes: never here.
const NEVER: &str = "events/power/suspend_resume/trigger";

/// Holds them until the kernel ends. A kernel without some of them, or without tracing, has nothing to
/// hold there.
///
/// # Errors
/// When tracing is there and refuses.
pub(super) fn hold() -> Result<(), Error> {
    let root = Path::new(TRACING);
    if !root.join("instances").is_dir() {
        return Ok(());
    }
    ["held-1", "held-2"].iter().try_for_each(|name| {
        let instance = root.join("instances").join(name);
        held(&instance).map_err(|error| Error::io("hold tracepoints in", &instance, error))
    })
}

fn held(instance: &Path) -> io::Result<()> {
    fs::create_dir(instance)?;
    fs::write(instance.join("tracing_on"), "0")?;
    // Of each CPU; what comes without asking is a megabyte.
    fs::write(instance.join("buffer_size_kb"), "4")?;
    let is_there =
        |(system, name): &&(_, _)| instance.join("events").join(system).join(name).is_dir();
    for (system, name) in HELD.iter().filter(is_there) {
        // One write is one trigger.
        let mut trigger = File::options().append(true).open(instance.join(NEVER))?;
        trigger.write_all(format!("enable_event:{system}:{name}").as_bytes())?;
    }
    Ok(())
}
