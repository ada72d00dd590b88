//! Asks where pages are and moves them: the system call `move_pages` and what its answers mean.
//!
//! The call does not tell the whole truth (mm/migrate.c, 6.18): when a page of a group cannot be
//! moved it stops, leaves the status of that group unwritten though most of it may have moved, and
//! never comes to the pages after it. So the status array is filled with [`UNTOLD`] before, and
//! callers ask again where the pages are.

use crate::apply::thread;
use crate::error::Error;
use crate::root::Root;
use instep_core::units::{NodeId, Tid};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::io;
use std::time::Instant;

/// A status that the kernel did not write.
pub const UNTOLD: i32 = i32::MIN;
/// Move pages that only this process maps (include/uapi/linux/mempolicy.h, 6.18).
const MPOL_MF_MOVE: libc::c_int = 1 << 1;

/// Why a page is, or is not, at home now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It was elsewhere and is at home now.
    Moved,
    /// It was at home.
    AlreadyHome,
    /// The address has no page now (never touched, swapped out, unmapped).
    NotPresent,
    /// The kernel could not isolate it just now.
    Busy,
    /// Other processes map it too (vhost-user, shared files), and only its sole user's are moved.
    Shared,
    /// The home nodes had no memory for it.
    NoMemory,
    /// The shared page of zeroes, or a special mapping.
    ZeroOrSpecial,
    /// Dirty, and its file system cannot move it.
    Io,
    /// The kernel tried and gave up: pinned for a device (VFIO, io_uring) or in use throughout.
    Stuck,
    /// Another error.
    Other,
}

impl Cause {
    /// What a negative status of `move_pages(2)` means.
    pub fn of_status(status: i32) -> Self {
        match status.checked_neg() {
            Some(libc::ENOENT) => Cause::NotPresent,
            Some(libc::EBUSY | libc::EAGAIN) => Cause::Busy,
            Some(libc::EACCES | libc::EPERM) => Cause::Shared,
            Some(libc::ENOMEM) => Cause::NoMemory,
            Some(libc::EFAULT) => Cause::ZeroOrSpecial,
            Some(libc::EIO) => Cause::Io,
            None => Cause::Stuck,
            Some(_) => Cause::Other,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Cause::Moved => "moved",
            Cause::AlreadyHome => "already home",
            Cause::NotPresent => "not present",
            Cause::Busy => "busy",
            Cause::Shared => "shared with other processes",
            Cause::NoMemory => "no memory at home",
            Cause::ZeroOrSpecial => "zero page or special mapping",
            Cause::Io => "cannot be moved by its file system",
            Cause::Stuck => "pinned or in use",
            Cause::Other => "other error",
        })
    }
}

/// The pages of one process, replaceable by a simulated page table.
pub trait Pages {
    /// Writes the node of each page, or a negative error.
    ///
    /// # Errors
    /// `ESRCH`, `EPERM`.
    fn query(&mut self, pages: &[u64], status: &mut [i32]) -> io::Result<()>;

    /// Moves each page to its node; what is not written to `status` is not known.
    ///
    /// # Errors
    /// `ESRCH`, `EPERM`; `ENOMEM` when a node is full, `EACCES` or `ENODEV` when a node may not be
    /// used. Some pages may have moved.
    fn move_to(&mut self, pages: &[u64], nodes: &[NodeId], status: &mut [i32]) -> io::Result<()>;

    /// Time since some fixed moment, for budgets.
    fn now(&self) -> std::time::Duration;
}

/// The pages of a running process.
#[derive(Debug)]
pub struct KernelPages {
    pid: libc::pid_t,
    began: Instant,
}

impl KernelPages {
    /// The pages of process `pid` that started at `pid_start` (ticks, see
    /// [`crate::apply::ThreadKey`]). Meant for one step: an id can be reused later.
    ///
    /// # Errors
    /// [`Error::is_gone`] when that process is gone.
    pub fn of(pid: u32, pid_start: u64) -> Result<Self, Error> {
        let gone = || {
            let source = io::Error::from_raw_os_error(libc::ESRCH);
            Error::system(format!("cannot move memory of process {pid}"), source)
        };
        let now = thread::key_of(&Root::live(), pid, Tid(pid))?;
        let pid = libc::pid_t::try_from(pid).map_err(|_| gone())?;
        // 0 would mean this process.
        if now.pid_start != pid_start || pid == 0 {
            return Err(gone());
        }
        Ok(Self { pid, began: Instant::now() })
    }

    fn call(&self, pages: &[u64], nodes: *const i32, status: &mut [i32]) -> io::Result<()> {
        assert_eq!(pages.len(), status.len(), "one status per page");
        // SAFETY: `pages` and `status` hold `pages.len()` elements of the ABI's sizes (pointers
        // are 64 bits on the hosts this is built for), `nodes` is null or as long; the addresses
        // themselves belong to the other process and are only looked up by the kernel.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                self.pid,
                pages.len(),
                pages.as_ptr(),
                nodes,
                status.as_mut_ptr(),
                MPOL_MF_MOVE,
            )
        };
        // A positive result counts pages that did not move.
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(not(target_pointer_width = "64"))]
compile_error!("move_pages takes arrays of pointers; Instep places VMs on 64-bit hosts only");

impl Pages for KernelPages {
    fn query(&mut self, pages: &[u64], status: &mut [i32]) -> io::Result<()> {
        self.call(pages, std::ptr::null(), status)
    }

    fn move_to(&mut self, pages: &[u64], nodes: &[NodeId], status: &mut [i32]) -> io::Result<()> {
        assert_eq!(pages.len(), nodes.len(), "one node per page");
        let nodes: Vec<i32> =
            nodes.iter().map(|node| i32::try_from(node.0).unwrap_or(i32::MAX)).collect();
        self.call(pages, nodes.as_ptr(), status)
    }

    fn now(&self) -> std::time::Duration {
        self.began.elapsed()
    }
}

/// A failed call in words.
pub fn call_error(pid: u32, source: io::Error) -> Error {
    let what = format!("cannot move memory of process {pid}");
    match source.raw_os_error() {
        Some(libc::EPERM) => Error::Unusable {
            what: format!("{what}: {source}"),
            next: "moving memory of another user's VM needs CAP_SYS_PTRACE and CAP_SYS_NICE: run \
                   as root"
                .into(),
        },
        Some(libc::EACCES | libc::ENODEV) => Error::Unusable {
            what: format!("{what}: {source}: a target node is outside its cpuset.mems or offline"),
            next: format!("see Mems_allowed_list in /proc/{pid}/status"),
        },
        _ => Error::system(what, source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::ranges;
    use crate::apply::testing::Sleeper;

    #[test]
    fn every_status_has_its_cause() {
        let table = [
            (libc::ENOENT, Cause::NotPresent),
            (libc::EBUSY, Cause::Busy),
            (libc::EAGAIN, Cause::Busy),
            (libc::EACCES, Cause::Shared),
            (libc::EPERM, Cause::Shared),
            (libc::ENOMEM, Cause::NoMemory),
            (libc::EFAULT, Cause::ZeroOrSpecial),
            (libc::EIO, Cause::Io),
            (libc::EINVAL, Cause::Other),
            (4095, Cause::Other),
        ];
        for (errno, cause) in table {
            assert_eq!(Cause::of_status(-errno), cause, "{errno}");
        }
        assert_eq!(Cause::of_status(UNTOLD), Cause::Stuck);
    }

    #[test]
    fn resident_pages_are_found_on_a_node_and_unmapped_ones_not() {
        let sleeper = Sleeper::start();
        let key = sleeper.key();
        let Ok((guest, _)) = ranges::read(&Root::live(), key.pid) else {
            return instep_madehost::skip::note("numa_maps cannot be read here");
        };
        let mut pages = KernelPages::of(key.pid, key.pid_start).unwrap();
        let mut on_node = 0;
        for range in &guest.all {
            let addresses: Vec<u64> =
                (range.start..range.end).step_by(range.page as usize).collect();
            let mut status = vec![UNTOLD; addresses.len()];
            pages.query(&addresses, &mut status).unwrap();
            on_node += status.iter().filter(|s| **s >= 0).count() as u64;
            assert!(!status.contains(&UNTOLD));
        }
        assert!(on_node > 0);
        let mut status = [UNTOLD; 2];
        pages.query(&[0x1000, 0x2000], &mut status).unwrap();
        let cause = Cause::of_status(status[0]);
        assert!(matches!(cause, Cause::NotPresent | Cause::ZeroOrSpecial), "{status:?}");
    }

    #[test]
    fn a_process_that_ended_or_was_replaced_is_gone() {
        let mut sleeper = Sleeper::start();
        let key = sleeper.key();
        assert!(KernelPages::of(key.pid, key.pid_start + 1).unwrap_err().is_gone());
        let mut pages = KernelPages::of(key.pid, key.pid_start).unwrap();
        sleeper.stop();
        assert!(KernelPages::of(key.pid, key.pid_start).unwrap_err().is_gone());
        let error = pages.query(&[0x1000], &mut [0]).unwrap_err();
        assert!(call_error(key.pid, error).is_gone());
    }

    #[test]
    fn refusals_name_the_capability_or_the_setting() {
        let told = |errno| call_error(7, io::Error::from_raw_os_error(errno)).to_string();
        assert!(told(libc::EPERM).contains("CAP_SYS_NICE"));
        assert!(told(libc::EACCES).contains("Mems_allowed_list in /proc/7/status"));
    }
}
