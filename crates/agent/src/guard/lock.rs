//! Waiting for the lock while a guardian is at work.

use super::{GOING, NAME, PAUSES};
use std::time::{Duration, Instant};

/// Whether a guardian holds the lock that could not be had: it will be free in a moment.
fn holds(error: &instep_host::Error) -> bool {
    let instep_host::Error::Taken { pid: Some(pid), .. } = error else { return false };
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.strip_suffix(b"\n") == Some(NAME.to_bytes())
}

/// The error in words of its own where a guardian has the lock: it does not heed `kill PID`.
pub(super) fn worded(error: instep_host::Error) -> instep_host::Error {
    match error {
        instep_host::Error::Taken { pid: Some(pid), .. } if holds(&error) => {
            instep_host::Error::Unusable {
                what: format!(
                    "process {pid} still puts back what an `instep run` that was killed had changed"
                ),
                next: format!(
                    "wait for its end, or end it with `kill -9 {pid}` and see to the rest with \
                     `instep restore`"
                ),
            }
        }
        error => error,
    }
}

/// Takes a lock. It waits while a guardian has it, or a process that does not yet, or no longer, say what it is.
pub(crate) fn after_guardians<T>(
    take: impl FnMut() -> Result<T, instep_host::Error>,
) -> Result<T, instep_host::Error> {
    within(GOING, take)
}

fn within<T>(
    limit: Duration,
    mut take: impl FnMut() -> Result<T, instep_host::Error>,
) -> Result<T, instep_host::Error> {
    let end = Instant::now() + limit;
    let untold =
        |error: &instep_host::Error| matches!(error, instep_host::Error::Taken { pid: None, .. });
    loop {
        match take() {
            Err(error) if (holds(&error) || untold(&error)) && Instant::now() < end => {
                std::thread::sleep(PAUSES[0]);
            }
            taken => return taken.map_err(worded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_of_a_guardian_or_an_unknown_process_is_waited_for() {
        let taken = |pid| instep_host::Error::Taken { pid };
        let times = move |pid, limit| {
            let mut times = 0;
            let taken = within(limit, || {
                times += 1;
                if times < 3 { Err(taken(pid)) } else { Ok(()) }
            });
            taken.map(|()| times).map_err(|error| error.to_string())
        };
        let (long, own) = (Duration::from_secs(60), std::process::id());
        let said = times(Some(own), long).unwrap_err();
        assert!(said.contains(&format!("`kill {own}`")), "{said}");
        assert_eq!(times(None, long), Ok(3));
        std::thread::spawn(move || {
            rustix::thread::set_name(NAME).unwrap();
            // /proc/PID/comm is that of the first thread, which a test is not.
            let tid = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            assert_eq!(times(Some(tid), long), Ok(3));
            let said = times(Some(tid), Duration::ZERO).unwrap_err();
            assert!(said.contains(&format!("`kill -9 {tid}`")), "{said}");
        })
        .join()
        .unwrap();
    }
}
