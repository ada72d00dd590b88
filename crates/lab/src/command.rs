//! Runs a command to its end, within a time limit, and captures what it prints.
//!
//! Every process started here dies with the thread that started it (PR_SET_PDEATHSIG), so a
//! killed test or demo leaves nothing running. What is waited for has a process group of its own, so that
//! a terminal's Ctrl-C reaches Instep alone, which then ends it: its end is no failure of its own.

use crate::error::Error;
use crate::stop::{Stop, TICK};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The most that is kept of a command's output.
const MAX_OUTPUT: u64 = 16 << 20;

/// The most that is read of a file that a program writes.
const MAX_READ: u64 = 4 << 20;

/// How a command ended and what it printed.
#[derive(Debug)]
pub struct Output {
    /// Its exit status.
    pub status: ExitStatus,
    /// Standard output, bytes that are not UTF-8 replaced.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
}

/// The text of a file that a program writes, such as a console; empty when it is not there.
pub fn read_lossy(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(MAX_READ).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Makes the kernel kill the command's process when the calling thread ends.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    // SAFETY: the closure runs between fork and exec; prctl, getppid and _exit are
    // async-signal-safe and it allocates nothing.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the call: then nobody will ever signal us.
            if libc::getppid().unsigned_abs() != parent {
                libc::_exit(1);
            }
            Ok(())
        })
    }
}

/// The command line as one would type it, for messages.
pub fn shown(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}

/// Runs `command` and captures its output, whatever its exit status.
///
/// # Errors
/// When it cannot be started, runs longer than `limit` or `stop` is raised (it is then killed).
pub fn output(command: &mut Command, limit: Duration, stop: &Stop) -> Result<Output, Error> {
    let name = shown(command);
    let failed = |why: String| Error::Command { command: name.clone(), why };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = die_with_parent(command.process_group(0))
        .spawn()
        .map_err(|error| failed(format!("cannot be started: {error}")))?;
    let stdout = child.stdout.take().map(drain);
    let stderr = child.stderr.take().map(drain);
    let ended = wait(&mut child, limit, stop);
    if !matches!(ended, Ok(Some(_))) {
        end(&mut child);
    }
    let status = match ended {
        Ok(Some(status)) => status,
        Ok(None) => return Err(failed(format!("took longer than {}s", limit.as_secs()))),
        Err(error) => return Err(error),
    };
    Ok(Output { status, stdout: gathered(stdout), stderr: gathered(stderr) })
}

/// Runs `command`, which must succeed, and gives its standard output.
///
/// # Errors
/// As [`output`], and when it fails: with its last lines.
pub fn succeed(command: &mut Command, limit: Duration, stop: &Stop) -> Result<String, Error> {
    let ran = output(command, limit, stop)?;
    if ran.status.success() {
        return Ok(ran.stdout);
    }
    let said = if ran.stderr.trim().is_empty() { &ran.stdout } else { &ran.stderr };
    let why = format!("failed ({}): {}", ran.status, last_lines(said, 3));
    Err(Error::Command { command: shown(command), why })
}

/// Runs `command`, which must succeed, with its standard output in `file`.
///
/// # Errors
/// As [`succeed`].
pub fn into_file(
    command: &mut Command,
    file: File,
    limit: Duration,
    stop: &Stop,
) -> Result<(), Error> {
    let name = shown(command);
    let failed = |why: String| Error::Command { command: name.clone(), why };
    command.stdin(Stdio::null()).stdout(file).stderr(Stdio::null());
    let mut child = die_with_parent(command.process_group(0))
        .spawn()
        .map_err(|error| failed(format!("cannot be started: {error}")))?;
    let ended = wait(&mut child, limit, stop);
    if !matches!(ended, Ok(Some(_))) {
        end(&mut child);
    }
    match ended? {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(failed(format!("failed ({status})"))),
        None => Err(failed(format!("took longer than {}s", limit.as_secs()))),
    }
}

/// Waits for a child: `None` when the limit passed first.
///
/// # Errors
/// [`Error::Interrupted`] when `stop` is raised; the child still runs then.
pub fn wait(child: &mut Child, limit: Duration, stop: &Stop) -> Result<Option<ExitStatus>, Error> {
    let end = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Some(status)),
            Ok(None) => {}
            Err(error) => {
                return Err(Error::io("wait for", format!("process {}", child.id()), error));
            }
        }
        stop.check()?;
        if Instant::now() >= end {
            return Ok(None);
        }
        std::thread::sleep(TICK);
    }
}

/// How long a process is waited for that could not be killed.
const LEFT_AFTER: Duration = Duration::from_secs(2);

/// Kills a process and reaps it. One that may not be killed (`sudo`, which is root's) is left to
/// itself after a while: its pipes are closed, and it has a limit of its own at best.
fn end(child: &mut Child) {
    let killed = child.kill().is_ok();
    reap(child, killed);
}

fn reap(child: &mut Child, killed: bool) {
    if killed {
        let _ = child.wait();
        return;
    }
    if let Ok(None) = wait(child, LEFT_AFTER, &Stop::never()) {
        tracing::warn!(pid = child.id(), "cannot be killed, and is left running");
    }
}

/// The last `count` non-empty lines.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn drain(pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let mut pipe = pipe;
        let _ = pipe.by_ref().take(MAX_OUTPUT).read_to_end(&mut bytes);
        let _ = io::copy(&mut pipe, &mut io::sink());
        bytes
    })
}

fn gathered(reader: Option<JoinHandle<Vec<u8>>>) -> String {
    let bytes = reader.and_then(|handle| handle.join().ok()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_s_ctrl_c_does_not_reach_what_is_waited_for() {
        let mut asks = Command::new("sh");
        let group = succeed(
            asks.args(["-c", "echo $$; ps -o pgid= -p $$"]),
            Duration::from_secs(30),
            &Stop::never(),
        );
        let group = group.unwrap();
        let ids: Vec<&str> = group.split_whitespace().collect();
        assert_eq!(ids[0], ids[1]);
    }

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_failing_command_is_named_with_its_last_words() {
        let error =
            succeed(&mut sh("echo no luck >&2; exit 3"), Duration::from_secs(30), &Stop::never())
                .unwrap_err()
                .to_string();
        assert!(error.contains("sh -c") && error.contains("no luck"), "{error}");
    }

    #[test]
    fn a_command_that_runs_too_long_is_killed() {
        let start = Instant::now();
        let error = output(&mut sh("exec sleep 60"), Duration::from_millis(100), &Stop::never());
        assert!(matches!(error, Err(Error::Command { .. })));
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn output_larger_than_a_pipe_does_not_block() {
        let ran =
            succeed(&mut sh("seq 1 100000"), Duration::from_secs(30), &Stop::never()).unwrap();
        assert_eq!(ran.lines().count(), 100_000);
    }

    #[test]
    fn one_that_may_not_be_killed_is_waited_for_a_while_only() {
        let mut child = sh("exec sleep 60").spawn().unwrap();
        let start = Instant::now();
        reap(&mut child, false);
        assert!(start.elapsed() < Duration::from_secs(30));
        end(&mut child);
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn a_raised_stop_kills_the_command() {
        let stop = Stop::never();
        stop.raise();
        let error = output(&mut sh("exec sleep 60"), Duration::from_secs(60), &stop);
        assert!(matches!(error, Err(Error::Interrupted)));
    }
}
