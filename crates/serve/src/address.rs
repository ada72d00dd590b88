//! Where to listen: loopback or a Unix socket, nothing else, and whom a request may be meant for.

use crate::Error;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A loopback address and port; [`loopback`] makes one.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// An address that is not listened on.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadAddress {
    /// It is none.
    #[error("is no address with a port; use 127.0.0.1:PORT or [::1]:PORT")]
    NotOne,
    /// Other machines reach it.
    #[error(
        "can be reached from other machines, and `instep serve` asks nobody for a password; use 127.0.0.1:PORT or \
         --unix PATH, and for other machines `ssh -L` or a proxy with TLS"
    )]
    NotLoopback,
}

/// Reads a loopback address with its port.
///
/// # Errors
/// It is none, or not of loopback.
pub fn loopback(text: &str) -> Result<SocketAddr, BadAddress> {
    let address: SocketAddr = text.parse().map_err(|_| BadAddress::NotOne)?;
    if address.ip().is_loopback() { Ok(address) } else { Err(BadAddress::NotLoopback) }
}

/// Whether a request with this `Host` is meant for this server. A page of another site whose name was made to lead
/// here (DNS rebinding) has its own name there. The port may be that of a tunnel.
pub(crate) fn is_local(host: &str) -> bool {
    let (name, rest) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((name, rest)) => (name, rest),
        None => host.split_once(':').map_or((host, ""), |(name, _)| (name, &host[name.len()..])),
    };
    let is_loopback = name.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    (is_loopback || name.eq_ignore_ascii_case("localhost"))
        && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
}

/// A socket that takes connections.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    pub(crate) fn bind(address: &Address) -> Result<Self, Error> {
        match address {
            Address::Tcp(address) => Self::tcp(*address).map_err(|source| Error::Listen {
                address: address.to_string(),
                source,
                next: "name another port with --listen 127.0.0.1:PORT",
            }),
            Address::Unix(path) => Self::unix(path).map_err(|source| Error::Listen {
                address: path.display().to_string(),
                source,
                next: "name another place with --unix PATH",
            }),
        }
    }

    fn tcp(address: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        // A rush of connections waits here for its turn.
        rustix::net::listen(&listener, 1024)?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener).map(Self::Tcp)
    }

    /// The owner and the group may connect. A socket that an earlier process left is replaced.
    fn unix(path: &Path) -> io::Result<Self> {
        if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
            match std::os::unix::net::UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(path)?;
                }
                _ => return Err(io::ErrorKind::AddrInUse.into()),
            }
        }
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o117));
        let listener = UnixListener::bind(path);
        rustix::process::umask(before);
        Ok(Self::Unix(listener?, path.to_owned()))
    }

    /// Where it listens, for people.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| "loopback".to_owned(), |address| format!("http://{address}/")),
            Self::Unix(_, path) => format!("the socket {}", path.display()),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Accepted::Tcp(stream)),
            Self::Unix(listener, _) => {
                listener.accept().await.map(|(stream, _)| Accepted::Unix(stream))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_listened_on() {
        for good in ["127.0.0.1:9877", "[::1]:0", "127.0.0.2:1"] {
            assert!(loopback(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("0.0.0.0:80", BadAddress::NotLoopback),
            ("[::]:80", BadAddress::NotLoopback),
            ("192.0.2.1:80", BadAddress::NotLoopback),
            ("localhost", BadAddress::NotOne),
            ("127.0.0.1", BadAddress::NotOne),
            ("", BadAddress::NotOne),
        ] {
            assert_eq!(loopback(bad), Err(why), "{bad}");
        }
    }

    #[test]
    fn request_for_another_host_is_none_of_ours() {
        for good in
            ["localhost", "LOCALHOST:1", "127.0.0.1:9877", "[::1]", "[::1]:65535", "127.9.0.1"]
        {
            assert!(is_local(good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "evil.example:9877",
            "localhost.evil.example",
            "localhost:",
            "localhost:x",
            "localhost:65536",
            "[::1",
            "[::1]x",
            "[::1]:",
            "[evil]",
            "::1:80",
            "localhost:1:2",
            "192.0.2.1",
            "localhost@evil.example",
        ] {
            assert!(!is_local(bad), "{bad}");
        }
    }
}
