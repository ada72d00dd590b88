//! A server on a port of its own, and clients that speak HTTP by hand.

use super::common::{Started, binary};
use super::vm::wait_for;
use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

/// An `instep serve` that ends with the test.
pub(crate) struct Server {
    started: Started,
    pub(crate) address: SocketAddr,
}

/// A status and what follows it.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Server {
    /// Serves what is published in this directory, which everybody may pass through then.
    pub(crate) fn start(state: &Path) -> Self {
        // Where root starts it, it becomes nobody, who has no way into directories of tests.
        let open = |dir: &Path| fs::set_permissions(dir, Permissions::from_mode(0o711));
        open(state.parent().unwrap()).unwrap();
        let mut command = binary(env!("CARGO_BIN_EXE_instep"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--state-dir"]).arg(state);
        let mut started = Started::new(&mut command);
        let mut address = None;
        wait_for("the address", || {
            let said = started.text("err");
            assert!(started.child.try_wait().unwrap().is_none(), "it ended: {said}");
            let port = said.split_once("http://").and_then(|(_, at)| at.split_once('/'));
            address = port.and_then(|(at, _)| at.parse().ok());
            address.is_some()
        });
        Self { started, address: address.unwrap() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.started.child.id()
    }

    /// A field of `/proc/PID/status`.
    pub(crate) fn status(&self, field: &str) -> String {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {field} in {text}")).trim().to_owned()
    }

    /// How many sockets and files it has open.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends these bytes; what is answered until the connection is closed.
    pub(crate) fn send(&self, request: &str) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        // A server that is done with a client may not have read all that it sent.
        let _ = stream.read_to_end(&mut bytes);
        Answer::parse(&String::from_utf8_lossy(&bytes))
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }

    /// What is in `/state.json`.
    pub(crate) fn shown(&self) -> serde_json::Value {
        serde_json::from_str(&self.get("/state.json").body).unwrap()
    }
}

impl Answer {
    pub(crate) fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Self { status: status.unwrap_or(0), head: head.to_lowercase(), body: body.to_owned() }
    }
}

/// A port of this machine that is free now.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}
