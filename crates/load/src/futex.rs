//! The futex system call: sleep while a word has a value, wake the sleepers.
//!
//! The lab watches who wakes whom, so that the path of a wake-up matters: one `FUTEX_WAIT` by each
//! waiter, one `FUTEX_WAKE` by the waker, nothing between.

use std::sync::atomic::AtomicU32;

/// Sleeps until woken, if `word` still holds `value`. May return without cause: look again.
pub(crate) fn wait(word: &AtomicU32, value: u32) {
    // SAFETY: the word lives as long as the reference; a null timeout means forever.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            std::ptr::null::<libc::timespec>(),
        );
    }
}

/// Wakes everyone who sleeps on `word`.
pub(crate) fn wake_all(word: &AtomicU32) {
    // SAFETY: the kernel uses the address as a key only.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            i32::MAX,
        );
    }
}
