//! Tracepoints that stay switched on, and record nothing, so that a recording changes no code.
//!
//! The first function of a tracepoint and the second one change the kernel's code (a static key and a
//! static call: kernel/tracepoint.c, 7.2); more of them change a table only. Two trace instances give each
//! tracepoint two functions. They have it in soft mode, in which it is switched on for a trigger's sake and
//! returns at once; the event that would pull the trigger does not happen here.
//!
//! Without it repeated recordings of four spinning vCPUs ended the host in `svm_vcpu_run` or
//! `ttwu_do_activate`, where kvm_entry and sched_wakeup are, in six runs of six (QEMU 7.2). Switching them on
//! takes some tenths of a second while CPUs have nothing to do and seldom run this code; kept busy at user
//! level, where they run none of it, it takes ten seconds.
//!
//! What else is traced still changes code: other subsystems, and the timer and interrupt events by which the
//! collector sees interrupts where the kernel does not tell them.

use crate::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

pub(super) const TRACING: &str = "/sys/kernel/tracing";

/// Whole systems of events: `trace-cmd record -e sched` and `perf sched record` want all of this one.
const SYSTEMS: [&str; 1] = ["sched"];
/// Others that the collectors are asked for: by system, then by name.
const EVENTS: [(&str, &str); 4] = [
    ("task", "task_rename"),
    ("kvm", "kvm_entry"),
    ("kvm", "kvm_exit"),
    ("kvm", "kvm_vcpu_wakeup"),
];

/// CycleChanges when a machine goes to sleep and wakes: never here.
const NEVER: &str = "events/power/suspend_resume/trigger";

/// Holds them until the kernel ends. A kernel without some of them, or without tracing, has nothing to
/// hold there.
///
/// # Errors
/// When tracing is there and refuses.
pub(super) fn hold(root: &Path) -> Result<(), Error> {
    if !root.join("instances").is_dir() {
        return Ok(());
    }
    let held = held(root).map_err(|error| Error::io("list events of", root, error))?;
    ["held-1", "held-2"].iter().try_for_each(|name| {
        let instance = root.join("instances").join(name);
        hold_in(&instance, &held)
            .map_err(|error| Error::io("hold tracepoints in", &instance, error))
    })
}

/// What is to be held and is there, as `system:name`, in order.
fn held(root: &Path) -> io::Result<Vec<String>> {
    let mut all = Vec::new();
    for system in SYSTEMS {
        for entry in fs::read_dir(root.join("events").join(system))? {
            let entry = entry?;
            if entry.path().is_dir() {
                all.push(format!("{system}:{}", entry.file_name().to_string_lossy()));
            }
        }
    }
    let is_there = |(system, name): &&(_, _)| root.join("events").join(system).join(name).is_dir();
    all.extend(EVENTS.iter().filter(is_there).map(|(system, name)| format!("{system}:{name}")));
    all.sort();
    Ok(all)
}

fn hold_in(instance: &Path, held: &[String]) -> io::Result<()> {
    fs::create_dir(instance)?;
    fs::write(instance.join("tracing_on"), "0")?;
    // Nothing is ever recorded there.
    fs::write(instance.join("buffer_size_kb"), "4")?;
    for event in held {
        // One write is one trigger.
        let mut trigger = File::options().append(true).open(instance.join(NEVER))?;
        trigger.write_all(format!("enable_event:{event}").as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_tracepoints_are_held_and_none_without_tracing() {
        let root = tempfile::tempdir().unwrap();
        hold(root.path()).unwrap();
        for dir in ["sched/sched_switch", "sched/sched_new", "kvm/kvm_entry", "kvm/kvm_pio"] {
            fs::create_dir_all(root.path().join("events").join(dir)).unwrap();
        }
        fs::write(root.path().join("events/sched/filter"), "").unwrap();
        let found = held(root.path()).unwrap();
        assert_eq!(found, ["kvm:kvm_entry", "sched:sched_new", "sched:sched_switch"]);
    }

    #[test]
    fn a_tracing_that_refuses_is_named() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("instances/held-1")).unwrap();
        assert!(hold(root.path()).unwrap_err().to_string().contains("events"));
        fs::create_dir_all(root.path().join("events/sched")).unwrap();
        let error = hold(root.path()).unwrap_err().to_string();
        assert!(
            error.contains("cannot hold tracepoints in") && error.contains("held-1"),
            "{error}"
        );
    }
}
