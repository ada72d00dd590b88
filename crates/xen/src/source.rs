//! Where the output of commands comes from: `xl` of this machine, with a time limit, or a copy of its outputs.
//!
//! A copy is a folder `xen` with one file a command ([`Query::file`]), beside `proc/uptime` of dom0. It is what
//! `instep collect` writes.

use crate::error::Error;
use instep_core::wording::printable;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The most that is read of one output.
pub const MAX_OUTPUT: u64 = 16 << 20;
/// How long a command may take. With xenstored gone `xl` waits for ever.
pub const LIMIT: Duration = Duration::from_secs(10);
/// Where administrators' programs are, whatever PATH says.
const PLACES: [&str; 4] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/xensource/bin"];

/// A command whose output is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Query {
    /// Version, scheduler, CPUs and nodes.
    Info,
    /// Domains with UUID, CPU pool and node affinity.
    List,
    /// vCPUs with both affinities.
    VcpuList,
    /// CPUs of each pool.
    CpuPools,
    /// Weights and caps under the credit scheduler.
    Credit,
    /// The same under credit2.
    Credit2,
    /// Configurations of domains.
    Configs,
    /// How long each domain runs.
    Uptime,
    /// The hypervisor's log, for memory by node.
    Log,
}

impl Query {
    /// All, in the order in which they are asked.
    pub const ALL: [Query; 9] = [
        Query::Info,
        Query::List,
        Query::VcpuList,
        Query::CpuPools,
        Query::Credit,
        Query::Credit2,
        Query::Configs,
        Query::Uptime,
        Query::Log,
    ];

    /// What `xl` is called with.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Query::Info => &["info", "-n"],
            Query::List => &["list", "-v", "-c", "-n"],
            Query::VcpuList => &["vcpu-list"],
            Query::CpuPools => &["cpupool-list", "-c"],
            Query::Credit => &["sched-credit"],
            Query::Credit2 => &["sched-credit2"],
            Query::Configs => &["list", "-l"],
            Query::Uptime => &["uptime"],
            Query::Log => &["dmesg"],
        }
    }

    /// The name of its file in a copy.
    pub fn file(self) -> &'static str {
        match self {
            Query::Info => "xl-info-n",
            Query::List => "xl-list-v-c-n",
            Query::VcpuList => "xl-vcpu-list",
            Query::CpuPools => "xl-cpupool-list-c",
            Query::Credit => "xl-sched-credit",
            Query::Credit2 => "xl-sched-credit2",
            Query::Configs => "xl-list-l",
            Query::Uptime => "xl-uptime",
            Query::Log => "xl-dmesg",
        }
    }
}

/// This machine's `xl`, or a copy of what it printed.
#[derive(Clone, Debug)]
pub enum Source {
    /// The program and how long each of its commands may take.
    Live {
        /// `xl`.
        program: PathBuf,
        /// The limit of one command.
        limit: Duration,
    },
    /// The root of a copy, which holds `xen` and `proc`.
    Copy(PathBuf),
}

impl Source {
    /// This machine, with `xl` of PATH or of the usual places.
    ///
    /// # Errors
    /// It is nowhere.
    pub fn live() -> Result<Self, Error> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let named = std::env::split_paths(&path).chain(PLACES.iter().map(PathBuf::from));
        let found = named.map(|dir| dir.join("xl")).find(|file| file.is_file());
        let program = found.ok_or_else(|| Error::NoProgram { program: "xl".to_owned() })?;
        Ok(Self::Live { program, limit: LIMIT })
    }

    /// Whether it is this machine.
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Live { .. })
    }

    /// The output of a command.
    ///
    /// # Errors
    /// It cannot be run or read, it failed, or it took too long.
    pub fn read(&self, query: Query) -> Result<String, Error> {
        match self {
            Self::Live { .. } => self.run(query.arguments()),
            Self::Copy(root) => read_file(&root.join("xen").join(query.file())),
        }
    }

    /// The hypervisor's log with a table of memory by node that is made now. Xen may write it a moment after it was asked
    /// to, and an older one may be of other domains.
    ///
    /// # Errors
    /// A command failed, or no new table came within a second.
    pub fn log_with_memory(&self) -> Result<String, Error> {
        let old = stamp(&self.read(Query::Log)?).map(str::to_owned);
        self.run(&["debug-keys", "u"])?;
        let mut before = String::new();
        for _ in 0..20 {
            let log = self.read(Query::Log)?;
            let is_new = stamp(&log).is_some() && stamp(&log) != old.as_deref();
            // Two looks that are alike: it is complete.
            if is_new && log == before {
                return Ok(log);
            }
            before = log;
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(Error::Unusable {
            what: "Xen wrote no table of memory by node to its log within a second".to_owned(),
            next: "try `xl debug-keys u` and `xl dmesg` by hand",
        })
    }

    /// When it is: time since dom0's boot, as a copy tells; `None` where that is not known, and on this machine.
    pub fn uptime(&self) -> Option<instep_core::units::Nanos> {
        let Self::Copy(root) = self else { return None };
        let text = read_file(&root.join("proc/uptime")).ok()?;
        crate::text::seconds(text.split_whitespace().next()?).map(instep_core::units::Nanos)
    }

    /// Runs `xl` with these arguments.
    ///
    /// # Errors
    /// As [`Source::read`]; always of a copy.
    pub fn run(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String, Error> {
        let shown: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy()).collect();
        let command = format!("xl {}", shown.join(" "));
        let Self::Live { program, limit } = self else {
            return Err(Error::Unusable {
                what: format!("`{command}` cannot be run on a copy of a host"),
                next: "leave --root out to act on this one",
            });
        };
        let start = |source| Error::Start { command: command.clone(), source };
        let mut xl = Command::new(program);
        xl.args(arguments).env("LC_ALL", "C");
        xl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        end_with_us(&mut xl);
        let mut child = xl.spawn().map_err(start)?;
        let (out, errors) = (reader(child.stdout.take()), reader(child.stderr.take()));
        let status = wait(&mut child, *limit).map_err(start)?;
        let Some(status) = status else {
            // A child of the command may hold its pipes open, so their readers are not waited for.
            return Err(Error::Slow { command, seconds: limit.as_secs() });
        };
        let text = |thread: JoinHandle<Vec<u8>>| {
            String::from_utf8_lossy(&thread.join().unwrap_or_default()).into_owned()
        };
        let (out, errors) = (text(out), text(errors));
        if status.success() {
            // A row that was cut could be taken for another.
            let said = format!("it printed more than {} MiB", MAX_OUTPUT >> 20);
            let is_whole = u64::try_from(out.len()).is_ok_and(|length| length <= MAX_OUTPUT);
            let too_long = Error::Failed { command, status: "status 0".to_owned(), said };
            return if is_whole { Ok(out) } else { Err(too_long) };
        }
        let said: Vec<&str> =
            errors.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let said = match said.as_slice() {
            [] => "it said nothing".to_owned(),
            said => printable(&said[..said.len().min(4)].join("; ")),
        };
        let status =
            status.code().map_or_else(|| "by a signal".to_owned(), |n| format!("status {n}"));
        Err(Error::Failed { command, status, said })
    }
}

/// Ends a program with this process: what a run changes must be over when its guardian puts things back. Signals that
/// systemd sends to all of a service at once do not end it before.
fn end_with_us(command: &mut Command) {
    let us = std::process::id();
    let die_with_parent = move || {
        // SAFETY: system calls with numbers only, which may be called between fork and exec.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_IGN);
            }
            // It may have ended before the first call.
            match libc::getppid().cast_unsigned() == us {
                true => Ok(()),
                false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        }
    };
    // SAFETY: the closure does nothing but those calls.
    unsafe { command.pre_exec(die_with_parent) };
}

/// What tells the last table of memory in the log from earlier ones.
fn stamp(log: &str) -> Option<&str> {
    log[log.rfind("dumping numa info (now = ")?..].lines().next()
}

/// Reads a pipe to its end, or a byte beyond the limit, on a thread of its own.
fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.by_ref().take(MAX_OUTPUT + 1).read_to_end(&mut bytes);
            // A writer that is not read would wait for ever.
            let _ = io::copy(&mut pipe, &mut io::sink());
        }
        bytes
    })
}

/// Waits for the end of a process, and ends it after the limit: `None`.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Reads a file of a copy: a regular one, up to the limit.
fn read_file(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::File { what: "read", path: path.to_owned(), source };
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is no regular file")));
    }
    let mut bytes = Vec::new();
    file.take(MAX_OUTPUT + 1).read_to_end(&mut bytes).map_err(failed)?;
    if !u64::try_from(bytes.len()).is_ok_and(|length| length <= MAX_OUTPUT) {
        return Err(failed(io::Error::other(format!("it has more than {} MiB", MAX_OUTPUT >> 20))));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// A program that does what `script` says.
    fn program(dir: &Path, script: &str, limit: Duration) -> Source {
        let program = dir.join("xl");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Source::Live { program, limit }
    }

    #[test]
    fn command_that_hangs_is_stopped_after_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let source = program(dir.path(), "exec sleep 60", Duration::from_millis(200));
        let begun = Instant::now();
        let error = source.read(Query::List).unwrap_err();
        assert!(matches!(error, Error::Slow { .. }), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert!(error.to_string().contains("`xl list -v -c -n` did not end"), "{error}");
    }

    /// A log to which each request adds a table at the second look after it.
    #[test]
    fn table_of_memory_is_waited_for_until_it_is_new() {
        let dir = tempfile::tempdir().unwrap();
        let script = r#"cd "${0%/*}"
case $1 in
debug-keys) touch asked ;;
dmesg)
  echo "(XEN) 'u' pressed -> dumping numa info (now = 1)"
  [ -e asked ] && { [ -e ready ] && echo "(XEN) 'u' pressed -> dumping numa info (now = 2)"; touch ready; } ;;
esac; true"#;
        let log = program(dir.path(), script, LIMIT).log_with_memory().unwrap();
        assert!(log.ends_with("(now = 2)\n"), "{log}");
        let never = program(dir.path(), "echo \"dumping numa info (now = 1)\"", LIMIT);
        let error = never.log_with_memory().unwrap_err().to_string();
        assert!(error.starts_with("Xen wrote no table of memory by node"), "{error}");
    }

    #[test]
    fn failure_is_reported_with_the_message_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let said = "echo 'xencall: error: Could not obtain handle on privileged command interface: No such \
                    file or directory' >&2; exit 1";
        let source = program(dir.path(), said, LIMIT);
        let error = source.read(Query::Info).unwrap_err().to_string();
        assert!(error.contains("`xl info -n` failed (status 1): xencall: error"), "{error}");
        assert!(error.ends_with("run it in the control domain (dom0) of a Xen host, as root, with xenfs mounted on /proc/xen"), "{error}");
        let denied = program(dir.path(), "echo 'libxl: Permission denied' >&2; exit 1", LIMIT);
        let error = denied.read(Query::Info).unwrap_err();
        assert!(error.is_denied() && error.to_string().ends_with("; run it as root"), "{error}");
        let silent = program(dir.path(), "exit 3", LIMIT).read(Query::Info).unwrap_err();
        assert!(silent.to_string().contains("(status 3): it said nothing"), "{silent}");
    }

    #[test]
    fn file_of_a_copy_that_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = Source::Copy(dir.path().to_owned()).read(Query::List).unwrap_err().to_string();
        assert!(error.contains("xen/xl-list-v-c-n: No such file"), "{error}");
        let error = Source::Copy(dir.path().to_owned()).run(&["vcpu-pin"]).unwrap_err();
        assert!(error.to_string().contains("cannot be run on a copy"), "{error}");
    }
}
