//! That only one instance acts on a host, whatever state directory each was given: an abstract
//! unix socket that one process at a time can be bound to.
//!
//! The kernel frees the name whatever ends the process, and no file is left. Abstract names belong
//! to a network namespace (unix(7)), so it does not see an instance in a container with a network
//! of its own. Any user can hold the name, whom the message then tells by process.

use crate::error::Error;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::os::fd::AsRawFd;

/// The name of the one instance on a host.
pub const INSTANCE: &str = "instep-instance";
/// A name longer than this does not fit into an address.
const MAX_NAME: usize = 64;

/// Held for as long as an instance acts.
#[derive(Debug)]
pub struct HostLock {
    _socket: Socket,
}

impl HostLock {
    /// Becomes the instance `name`, usually [`INSTANCE`]: letters, digits, `-`, `_` and `.`.
    ///
    /// # Errors
    /// Another process is that instance (named); the name is no name; no socket can be had.
    pub fn take(name: &str) -> Result<Self, Error> {
        let sane = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(sane) {
            return Err(Error::Unusable {
                what: format!("`{}` is no name of an instance", name.escape_default()),
                next: format!("use up to {MAX_NAME} letters, digits, `-`, `_` and `.`"),
            });
        }
        let failed = |source| Error::system(format!("cannot become the instance {name}"), source);
        let address = SockAddr::unix(format!("\0{name}")).map_err(failed)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed)?;
        match socket.bind(&address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(held_by(&address)),
            bound => {
                // Listening lets the others ask who it is; nobody needs an answer.
                bound.and_then(|()| socket.listen(1024)).map_err(failed)?;
                Ok(Self { _socket: socket })
            }
        }
    }
}

fn held_by(address: &SockAddr) -> Error {
    let (pid, user) = holder(address).unzip();
    Error::Taken { pid, user }
}

/// Process and user that listen at this address; `None` when they ended meanwhile, are outside
/// this process namespace or have too many callers.
fn holder(address: &SockAddr) -> Option<(u32, u32)> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).ok()?;
    socket.set_nonblocking(true).ok()?;
    socket.connect(address).ok()?;
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).ok()?;
    // SAFETY: the descriptor is open while `socket` lives, `peer` and `length` are valid for the
    // call, and `length` is the size of `peer`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut peer).cast(),
            &mut length,
        )
    };
    let pid = u32::try_from(peer.pid).ok().filter(|pid| *pid != 0)?;
    (result == 0).then_some((pid, peer.uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(of: &str) -> String {
        format!("instep-test-{of}-{}", std::process::id())
    }

    #[test]
    fn the_second_is_told_the_process_of_the_first_until_that_ends() {
        let name = name("second");
        let first = HostLock::take(&name).unwrap();
        let text = HostLock::take(&name).unwrap_err().to_string();
        let process = format!("process {} of user", std::process::id());
        assert!(text.contains("already runs") && text.contains(&process), "{text}");
        drop(first);
        HostLock::take(&name).unwrap();
    }

    #[test]
    fn many_who_ask_do_not_hang() {
        let name = name("many");
        let _first = HostLock::take(&name).unwrap();
        for _ in 0..2000 {
            assert!(HostLock::take(&name).is_err());
        }
    }

    #[test]
    fn instances_of_other_names_live_side_by_side() {
        let (one, other) = (name("one"), name("other"));
        let _locks = [HostLock::take(&one).unwrap(), HostLock::take(&other).unwrap()];
    }

    #[test]
    fn a_name_that_is_none_is_refused() {
        for bad in ["", "a b", "a/b", "a\0b", &"a".repeat(65)] {
            let text = HostLock::take(bad).unwrap_err().to_string();
            assert!(text.contains("no name of an instance"), "{text}");
        }
    }
}
