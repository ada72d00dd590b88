//! QEMU's answer to query-cpus-fast over a free QMP socket, bounded in time and bytes.
//!
//! A QMP socket serves one client at a time; a second one connects and is never greeted. So no
//! greeting within [`GREETING`] means "not free". Nothing is sent before a greeting. A path comes
//! from the command line of the monitor's owner, so only that process is listened to, what it says
//! is only believed about its own threads (see [`super::identify`]), and `QmpBudget` bounds what all
//! monitors together may take of a scan.

use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait for the greeting.
pub const GREETING: Duration = Duration::from_millis(200);
/// How long the whole exchange may take.
const EXCHANGE: Duration = Duration::from_millis(500);
/// The most bytes that are read; an answer for 4096 vCPUs has about 700 kB.
const MAX_ANSWER: usize = 2 << 20;
/// The longest path of a unix socket (sun_path less its NUL, unix(7)).
const MAX_PATH: usize = 107;

/// The time of one scan for asking, which monitors get in turn: a scan that found no time for one
/// lets the next begin with it. Ascending by process id.
#[derive(Debug, Default)]
pub(super) struct QmpBudget {
    left: Duration,
    /// The process that this scan begins with.
    from: u32,
    /// The first process that had no turn in this scan.
    next: Option<u32>,
}

impl QmpBudget {
    /// A new scan with so much time; the last one to have a turn may exceed it by [`EXCHANGE`].
    pub(super) fn begin(&mut self, budget: Duration) {
        (self.from, self.left) = (self.next.take().unwrap_or(0), budget);
    }

    /// Whether there is time for process `pid`.
    pub(super) fn has_time(&mut self, pid: u32) -> bool {
        if pid >= self.from && self.left.is_zero() {
            self.next.get_or_insert(pid);
        }
        pid >= self.from && !self.left.is_zero()
    }

    /// So much was used.
    pub(super) fn spend(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time);
    }
}

/// Why a socket gave no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// It could not be connected to.
    Connect(io::Error),
    /// This process serves it, not the monitor; 0 for one that cannot be seen from here.
    Foreign(u32),
    /// Another client holds it.
    Busy,
    /// It answered something else than QMP, too much or too slowly.
    Answer(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Connect(error) => write!(f, "cannot be connected to ({error})"),
            Failure::Foreign(pid) => write!(f, "is served by process {pid} instead of the monitor"),
            Failure::Busy => f.write_str("is held by another client"),
            Failure::Answer(what) => f.write_str(what),
        }
    }
}

/// Asks the monitor `pid`, seen at `process` (`/proc/PID`), on its socket `path` for its vCPUs:
/// index and thread.
pub(super) fn query(pid: u32, process: &Path, path: &str) -> Result<Vec<(u32, u32)>, Failure> {
    let mut talk = connect(process, path)?;
    match server(&talk.socket).map_err(Failure::Connect)? {
        server if server == pid => {}
        other => return Err(Failure::Foreign(other)),
    }
    talk.greeted()?;
    talk.send(b"{\"execute\":\"qmp_capabilities\"}\r\n")?;
    talk.answer()?;
    talk.send(b"{\"execute\":\"query-cpus-fast\"}\r\n")?;
    let answer = talk.answer()?;
    cpus(&answer).ok_or_else(|| Failure::Answer("gave an answer without thread ids".to_owned()))
}

/// The vCPUs in the `return` value of query-cpus-fast (qapi/machine.json, QEMU 2.12 and later):
/// `cpu-index` and `thread-id`. `None` when an entry lacks either.
pub fn cpus(value: &Value) -> Option<Vec<(u32, u32)>> {
    let number = |entry: &Value, key: &str| u32::try_from(entry.get(key)?.as_u64()?).ok();
    value
        .as_array()?
        .iter()
        .map(|entry| Some((number(entry, "cpu-index")?, number(entry, "thread-id")?)))
        .collect()
}

fn connect(process: &Path, path: &str) -> Result<QmpSession, Failure> {
    let mut last = io::Error::from(io::ErrorKind::InvalidInput);
    for candidate in candidates(process, path) {
        match connect_to(&candidate) {
            Ok(socket) => {
                let end = Instant::now() + EXCHANGE;
                return Ok(QmpSession { socket, end, bytes: Vec::new(), at: 0 });
            }
            // The backlog of a socket that serves one client is full.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(Failure::Busy),
            Err(error) => last = error,
        }
    }
    Err(Failure::Connect(last))
}

/// The path as the monitor sees it (its root or working directory), then as it stands.
fn candidates(process: &Path, path: &str) -> Vec<PathBuf> {
    let seen = match path.strip_prefix('/') {
        Some(absolute) => process.join("root").join(absolute),
        None => process.join("cwd").join(path),
    };
    let mut all = vec![seen];
    if path.starts_with('/') {
        all.push(PathBuf::from(path));
    }
    all.retain(|path| path.as_os_str().len() <= MAX_PATH);
    all
}

fn connect_to(path: &Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// The process that called listen(2) on the other end: SO_PEERCRED of unix(7), its id as seen from
/// here (net/unix/af_unix.c, `init_peercred`, 6.18).
fn server(socket: &Socket) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = std::mem::size_of_val(&peer) as libc::socklen_t;
    // SAFETY: both pointers are to values of this frame, the first of the size that the second
    // holds; the call writes no more than that.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u32::try_from(peer.pid).unwrap_or(0))
}

/// A conversation.
struct QmpSession {
    socket: Socket,
    end: Instant,
    bytes: Vec<u8>,
    at: usize,
}

impl QmpSession {
    fn greeted(&mut self) -> Result<(), Failure> {
        let end = self.end;
        self.end = end.min(Instant::now() + GREETING);
        let value = match self.value() {
            Err(Failure::Answer(_)) if self.bytes.is_empty() => return Err(Failure::Busy),
            other => other?,
        };
        self.end = end;
        match value.get("QMP") {
            Some(_) => Ok(()),
            None => Err(Failure::Answer("did not greet as QMP".to_owned())),
        }
    }

    fn send(&mut self, request: &[u8]) -> Result<(), Failure> {
        let left = self.left()?;
        self.socket.set_write_timeout(Some(left)).map_err(Failure::Connect)?;
        self.socket.write_all(request).map_err(Failure::Connect)
    }

    /// The value of the next `return`; events in between are passed over.
    fn answer(&mut self) -> Result<Value, Failure> {
        loop {
            let mut value = self.value()?;
            if let Some(answer) = value.get_mut("return") {
                return Ok(answer.take());
            }
            if value.get("error").is_some() {
                return Err(Failure::Answer("refused the question".to_owned()));
            }
        }
    }

    /// The next JSON value, which may span lines (`-qmp-pretty`).
    fn value(&mut self) -> Result<Value, Failure> {
        let mut chunk = [0; 16 << 10];
        loop {
            let mut values =
                serde_json::Deserializer::from_slice(&self.bytes[self.at..]).into_iter::<Value>();
            match values.next() {
                Some(Ok(value)) => {
                    self.at += values.byte_offset();
                    return Ok(value);
                }
                Some(Err(error)) if !error.is_eof() => {
                    return Err(Failure::Answer("did not answer in JSON".to_owned()));
                }
                Some(Err(_)) | None => {}
            }
            if self.bytes.len() > MAX_ANSWER {
                return Err(Failure::Answer("answered more than 2MiB".to_owned()));
            }
            let left = self.left()?;
            self.socket.set_read_timeout(Some(left)).map_err(Failure::Connect)?;
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err(Failure::Answer("closed the connection".to_owned())),
                Ok(count) => self.bytes.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(too_slow());
                }
                Err(error) => return Err(Failure::Connect(error)),
            }
        }
    }

    fn left(&self) -> Result<Duration, Failure> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left < Duration::from_millis(1) { Err(too_slow()) } else { Ok(left) }
    }
}

fn too_slow() -> Failure {
    Failure::Answer("did not answer in time".to_owned())
}
