//! What a process gives up before it reads the first byte of a stranger: it needs no right but to read files that
//! everybody may read.

use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use std::fs;
use std::io;

/// The user and group `nobody`, where a kernel maps users that it does not know to.
const NOBODY: u32 = 65_534;

/// Becomes nobody where it is root, and drops all capabilities. For good, and for all programs that it might start.
///
/// # Errors
/// The kernel refuses, or there are other threads: each has rights of its own.
pub(crate) fn give_up() -> io::Result<()> {
    let threads = fs::read_dir("/proc/self/task").map(Iterator::count);
    if threads.is_ok_and(|threads| threads != 1) {
        return Err(io::Error::other("it has several threads"));
    }
    if geteuid().is_root() {
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        set_thread_groups(&[])?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)?;
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    match set_capabilities(None, sets) {
        // A filter of system calls that bars it bars what capabilities are for.
        Ok(()) | Err(Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    set_no_new_privs(true)?;
    Ok(())
}
