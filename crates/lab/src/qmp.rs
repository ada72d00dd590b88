//! A tiny QMP client: enough to ask QEMU what its monitor tells people.
//!
//! Protocol: QEMU's docs/interop/qmp-spec. A socket serves one client at a time; dropping the
//! [`Qmp`] frees it.

use crate::error::Error;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(10);
const MAX_LINE: u64 = 1 << 20;

/// A session with one QEMU.
#[derive(Debug)]
pub struct Qmp {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects and leaves the negotiation mode.
    ///
    /// # Errors
    /// When the socket does not answer within 10 s.
    pub fn connect(socket: &Path) -> Result<Self, Error> {
        let end = Instant::now() + LIMIT;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() >= end => {
                    return Err(Error::io("connect to", socket, error));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_read_timeout(Some(LIMIT)).map_err(|e| Error::io("set up", socket, e))?;
        let mut qmp = Self { socket: socket.to_owned(), stream: BufReader::new(stream) };
        let greeting = qmp.receive()?;
        if greeting.get("QMP").is_none() {
            return Err(qmp.broken("no QMP greeting"));
        }
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and gives its `return` value; events that come meanwhile are dropped.
    ///
    /// # Errors
    /// When QEMU refuses or does not answer.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, Error> {
        let request = format!("{}\n", json!({"execute": command, "arguments": arguments}));
        let sent = self.stream.get_mut().write_all(request.as_bytes());
        sent.map_err(|error| Error::io("write to", &self.socket, error))?;
        // Bounded: a QEMU that sends events without end does not hold us for ever.
        for _ in 0..1000 {
            let mut answer = self.receive()?;
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            if let Some(error) = answer.get("error") {
                return Err(self.broken(&format!("{command}: {error}")));
            }
        }
        Err(self.broken("no answer among 1000 messages"))
    }

    /// What QEMU's monitor for people answers to a line.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn monitor(&mut self, line: &str) -> Result<String, Error> {
        let answer = self.execute("human-monitor-command", json!({"command-line": line}))?;
        answer.as_str().map(str::to_owned).ok_or_else(|| self.broken(&format!("{line}: no text")))
    }

    fn receive(&mut self) -> Result<Value, Error> {
        let mut line = Vec::new();
        let read = self.stream.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        read.map_err(|error| Error::io("read from", &self.socket, error))?;
        serde_json::from_slice(&line).map_err(|_| self.broken("its answer is not JSON"))
    }

    fn broken(&self, what: &str) -> Error {
        let error = io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        Error::io("talk to", &self.socket, error)
    }
}
