//! The affinities of a process's threads, as the kernel shows them: evidence of tests,
//! independent of the code that they test.

use instep_lab::Error;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::BTreeMap;
use std::fs;
use std::io;

/// The allowed CPUs (a list such as `0-1`) of each thread of a process, with the thread's name.
pub type Affinities = BTreeMap<u32, (String, String)>;

/// Reads every thread's `Cpus_allowed_list`; threads that end meanwhile are left out.
///
/// # Errors
/// When the process is gone.
pub fn of_process(pid: u32) -> Result<Affinities, Error> {
    let dir = format!("/proc/{pid}/task");
    let tasks = fs::read_dir(&dir).map_err(|error| Error::io("list", &dir, error))?;
    let mut all = Affinities::new();
    for task in tasks.flatten() {
        let Some(tid) = task.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
        if let (Some(name), Some(cpus)) =
            (field(&status, "Name"), field(&status, "Cpus_allowed_list"))
        {
            all.insert(tid, (name, cpus));
        }
    }
    Ok(all)
}

/// Binds a thread to one CPU.
///
/// # Errors
/// When the thread is gone, belongs to another user, or may not use the CPU.
pub fn bind(tid: u32, cpu: u32) -> Result<(), Error> {
    let wrong = |error| Error::io("bind", format!("thread {tid} to CPU {cpu}"), error);
    let thread = i32::try_from(tid).ok().and_then(Pid::from_raw);
    if cpu as usize >= CpuSet::MAX_CPU || thread.is_none() {
        return Err(wrong(io::ErrorKind::InvalidInput.into()));
    }
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    sched_setaffinity(thread, &set).map_err(|error| wrong(error.into()))
}

/// The value of `key:` in a /proc status file.
fn field(status: &str, key: &str) -> Option<String> {
    let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_thread_with_its_own_id() {
        let all = of_process(std::process::id()).unwrap();
        assert!(!all[&std::process::id()].1.is_empty());
    }

    #[test]
    fn a_bound_thread_shows_its_one_cpu() {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let tid: u32 = field(&status, "Pid").unwrap().parse().unwrap();
        let allowed = field(&status, "Cpus_allowed_list").unwrap();
        let first: String = allowed.chars().take_while(char::is_ascii_digit).collect();
        // A thread of this test only: it ends with it.
        bind(tid, first.parse().unwrap()).unwrap();
        assert_eq!(of_process(std::process::id()).unwrap()[&tid].1, first);
    }

    #[test]
    fn a_key_is_not_found_inside_another() {
        assert_eq!(
            field("Cpus_allowed:\t3\nCpus_allowed_list:\t0-1\n", "Cpus_allowed").unwrap(),
            "3"
        );
    }
}
