//! That Instep uses DAMON, on disk before it does, so that the monitor can be removed after anything.
//!
//! One file, `damon.json`, schema `instep.damon/1`. It is there for as long as a process is watched, a few
//! seconds. The monitors are gone with a boot, so the file need not survive one.

use super::Files;
use crate::apply::instance::{Instance, InstanceLife, boot_id};
use crate::apply::journal::Holder;
use crate::apply::state::StateDir;
use crate::error::Error;
use crate::root::Root;
use instep_state::Outlives;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::Duration;

const SCHEMA: &str = "instep.damon/1";
const FILE: &str = "damon.json";
/// The most that is read of it.
const MAX_RECORD: u64 = 64 << 10;
/// How often removing is tried while the kernel is busy with another write, and the pause between.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// Which instance of Instep watches which process.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    schema: String,
    holder: Instance,
    target: u32,
}

/// What became of a monitor that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undone {
    /// It is removed.
    Removed {
        /// The process that it watched.
        target: u32,
    },
    /// It was gone.
    Gone,
    /// What is there now is somebody else's, and stays.
    Others,
}

impl fmt::Display for Undone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undone::Removed { target } => write!(f, "DAMON no longer watches process {target}"),
            Undone::Gone => f.write_str("DAMON's monitor was gone"),
            Undone::Others => f.write_str("DAMON is left as it is: another program uses it now"),
        }
    }
}

impl Record {
    /// This process watches `target`.
    pub(crate) fn of(target: u32) -> Result<Self, Error> {
        Ok(Self { schema: SCHEMA.to_owned(), holder: Instance::this()?, target })
    }

    /// Puts it where [`undo`] finds it.
    pub(crate) fn write(&self, state: &StateDir) -> Result<(), Error> {
        let path = path_in(state);
        let failed = |source| Error::system(format!("cannot write {}", path.display()), source);
        let bytes = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        instep_state::replace(&path, &bytes, 0o600, Outlives::Machine).map_err(failed)
    }

    /// Reads it; `None` when there is none.
    fn load(state: &StateDir) -> Result<Option<Self>, Error> {
        let path = path_in(state);
        let mut bytes = Vec::new();
        let opened = instep_state::open(&path);
        match opened.and_then(|file| file.take(MAX_RECORD).read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::read(path, source)),
        }
        let damaged = |why: String| Error::Unusable {
            what: format!("the record {} is damaged: {why}", path.display()),
            next: "remove it, and `echo 0 > /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds` if \
                   no other program uses DAMON"
                .to_owned(),
        };
        let record: Self = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        match record.schema == SCHEMA {
            true => Ok(Some(record)),
            false => Err(damaged(format!("its schema is not {SCHEMA}"))),
        }
    }
}

fn path_in(state: &StateDir) -> PathBuf {
    state.file(FILE)
}

/// The instance that watches a process by the record in this directory, and whether that lives; `None` when
/// nothing is recorded.
///
/// # Errors
/// The record cannot be read or is damaged.
pub fn is_recorded(state: &StateDir) -> Result<Option<(Holder, InstanceLife)>, Error> {
    let Some(Record { holder, .. }) = Record::load(state)? else { return Ok(None) };
    let life = holder.life()?;
    Ok(Some((Holder::Instance { pid: holder.pid, start: holder.start }, life)))
}

/// Removes the monitor that is recorded in this directory, if it is still the one that was recorded, and then
/// the record. `None` when nothing is recorded. To be called by the instance that made it, or when that is gone.
///
/// # Errors
/// The record or the kernel's files cannot be read or written; the record stays then.
pub fn undo(root: &Root, state: &StateDir) -> Result<Option<Undone>, Error> {
    let Some(record) = Record::load(state)? else { return Ok(None) };
    let files = Files::of(root);
    let undone = match owner(&files, &record)? {
        Owner::Nobody => Undone::Gone,
        Owner::Others => Undone::Others,
        Owner::Instep => {
            // One that is off already, as its process ended, cannot be turned off.
            if files.read("0/state")?.trim() != "off" {
                insist(|| files.write("0/state", "off"))?;
            }
            insist(|| files.write("nr_kdamonds", "0"))?;
            Undone::Removed { target: record.target }
        }
    };
    let path = path_in(state);
    fs::remove_file(&path)
        .map_err(|source| Error::system(format!("cannot remove {}", path.display()), source))?;
    Ok(Some(undone))
}

/// Whose monitor there is.
enum Owner {
    Nobody,
    Instep,
    Others,
}

/// Tells the recorded monitor from another one: it watches that process, or is off and watches none yet, as
/// one that was not finished.
fn owner(files: &Files, record: &Record) -> Result<Owner, Error> {
    let has_damon = files.path("nr_kdamonds").exists();
    if record.holder.boot_id != boot_id()? || !has_damon {
        return Ok(Owner::Nobody);
    }
    match files.monitors()? {
        0 => return Ok(Owner::Nobody),
        1 => {}
        _ => return Ok(Owner::Others),
    }
    let target = match files.read("0/contexts/0/targets/0/pid_target") {
        Ok(text) => text.trim().parse().unwrap_or(0),
        Err(error) if error.is_gone() => 0,
        Err(error) => return Err(error),
    };
    let is_unfinished = || Ok::<_, Error>(target == 0 && files.read("0/state")?.trim() == "off");
    Ok(if target == record.target || is_unfinished()? { Owner::Instep } else { Owner::Others })
}

/// Tries again while the kernel is busy with what another process reads or writes there.
fn insist(mut change: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    for _ in 1..TRIES {
        match change() {
            Err(Error::System { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
    change()
}
