//! Which process is, or was, an instance of Instep, told from a later one of the same number and
//! from those of an earlier boot.

use crate::apply::thread::{self, ThreadKey};
use crate::discover::proc_text;
use crate::error::Error;
use crate::root::Root;
use instep_core::units::Tid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A process of one boot; the default is none, of no boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Instance {
    /// `/proc/sys/kernel/random/boot_id` of its boot.
    pub boot_id: String,
    /// Its process.
    pub pid: u32,
    /// Start of the process, clock ticks since boot.
    pub start: u64,
}

/// What became of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceLife {
    /// It runs.
    Runs,
    /// It ended.
    Ended,
    /// The machine was booted again since.
    EarlierBoot,
}

impl Instance {
    /// This process.
    ///
    /// # Errors
    /// When this process cannot be read under /proc.
    pub fn this() -> Result<Self, Error> {
        let pid = std::process::id();
        let key = thread::key_of(&Root::live(), pid, Tid(pid))?;
        Ok(Self { boot_id: boot_id()?, pid, start: key.pid_start })
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// An unreadable /proc.
    pub fn life(&self) -> Result<InstanceLife, Error> {
        if self.boot_id != boot_id()? {
            return Ok(InstanceLife::EarlierBoot);
        }
        let runs = runs(&Root::live(), self.pid, self.start)?;
        Ok(if runs { InstanceLife::Runs } else { InstanceLife::Ended })
    }
}

/// Whether this very process runs; one that only waits for its parent to take note of its end does
/// not.
pub(crate) fn runs(root: &Root, pid: u32, start: u64) -> Result<bool, Error> {
    let key = ThreadKey { pid, pid_start: start, tid: Tid(pid), tid_start: start };
    if !key.is_alive(root)? {
        return Ok(false);
    }
    match root.read(format!("proc/{pid}/stat")) {
        Ok(text) => Ok(proc_text::stat(text.as_bytes()).is_some_and(|stat| !stat.is_dead())),
        Err(error) if error.is_gone() => Ok(false),
        Err(error) => Err(error),
    }
}

/// The id of this boot.
pub(crate) fn boot_id() -> Result<String, Error> {
    instep_state::boot_id().map_err(|source| Error::read(instep_state::BOOT_ID, source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn process_runs_until_it_ends_even_if_not_waited_for() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let key = thread::key_of(&Root::live(), child.id(), Tid(child.id())).unwrap();
        let this = Instance::this().unwrap();
        let instance = Instance { pid: key.pid, start: key.pid_start, ..this.clone() };
        assert_eq!([this.life().unwrap(), instance.life().unwrap()], [InstanceLife::Runs; 2]);
        let later = Instance { start: key.pid_start + 1, ..instance.clone() };
        assert_eq!(
            later.life().unwrap(),
            InstanceLife::Ended,
            "a process that only has its number"
        );
        child.kill().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        // Its entry stays in /proc: nobody has waited for it.
        while instance.life().unwrap() != InstanceLife::Ended {
            assert!(Instant::now() < end, "a process that was killed is taken for a running one");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(key.is_alive(&Root::live()).unwrap());
        child.wait().unwrap();
        assert_eq!(instance.life().unwrap(), InstanceLife::Ended);
    }

    #[test]
    fn the_same_process_in_another_boot_is_another() {
        let this = Instance::this().unwrap();
        let before = Instance { boot_id: "another".to_owned(), ..this };
        assert_eq!(before.life().unwrap(), InstanceLife::EarlierBoot);
    }
}
