//! What the journals of KVM and Xen hosts share: files that are replaced as a whole, the boot that a journal speaks of,
//! the process that answers for the journal's entries, and the users whose files count.
//!
//! It knows neither hosts nor what a journal holds beside sets of CPUs and nodes.
#![forbid(unsafe_code)]

mod shared;

pub use shared::{is_trusted_owner, open, open_or_make, share_directory, user_id};

use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Where the kernel tells which boot this is.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The instance that is responsible for a placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// Nobody: it was meant to stand after `run --once`.
    #[default]
    Kept,
    /// An instance of Instep that restores it when it ends; after a crash it is gone.
    Instance {
        /// Its process.
        pid: u32,
        /// Start of the process, clock ticks since boot.
        start: u64,
    },
}

/// The id of this boot.
///
/// # Errors
/// It cannot be read, or there is none.
pub fn boot_id() -> io::Result<String> {
    read_boot_id(Path::new(BOOT_ID))
}

fn read_boot_id(path: &Path) -> io::Result<String> {
    let id = fs::read_to_string(path)?.trim().to_owned();
    if id.is_empty() { Err(io::Error::other("it is empty")) } else { Ok(id) }
}

/// What a file outlives that has just been replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlives {
    /// The end of this process.
    Process,
    /// A crash of the machine.
    Machine,
}

/// Puts a file with this mode, whatever the umask, in the place of the one at `path`, as a whole and never through a
/// link that somebody put there. Whoever calls it is the only one who writes this file.
///
/// # Errors
/// The directory is full or gone; the old content stands then.
pub fn replace(path: &Path, bytes: &[u8], mode: u32, outlives: Outlives) -> io::Result<()> {
    let part = path.with_added_extension("part");
    let _ = fs::remove_file(&part);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&part)?;
    let is_safe = outlives == Outlives::Machine;
    let written = file
        .write_all(bytes)
        .and_then(|()| file.set_permissions(Permissions::from_mode(mode)))
        .and_then(|()| if is_safe { file.sync_all() } else { Ok(()) })
        .and_then(|()| fs::rename(&part, path));
    written.inspect_err(|_| _ = fs::remove_file(&part))?;
    match path.parent().filter(|_| is_safe) {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

/// Sets as lists (`0-63`), for `#[serde(with = "instep_state::list")]`: as arrays the journal of 8,000 threads on 256
/// CPUs would be 16 MB a write.
pub mod list {
    use instep_core::idset::IdSet;
    use instep_core::units::Id;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<T: Id, S: Serializer>(
        set: &IdSet<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(set)
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is no list.
    pub fn deserialize<'de, T: Id, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<IdSet<T>, D::Error> {
        IdSet::parse_list(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_boot_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("boot_id");
        assert_eq!(read_boot_id(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&path, "\n").unwrap();
        assert!(read_boot_id(&path).is_err());
        fs::write(&path, "a-b\n").unwrap();
        assert_eq!(read_boot_id(&path).unwrap(), "a-b");
    }

    #[test]
    fn file_is_replaced_as_a_whole_or_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        for (outlives, mode) in [(Outlives::Process, 0o644), (Outlives::Machine, 0o600)] {
            replace(&path, b"new", mode, outlives).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no part is left");
        }
        // A link in its place is replaced, and what it leads to stays.
        let (link, other) = (dir.path().join("link"), dir.path().join("other"));
        std::os::unix::fs::symlink(&other, &link).unwrap();
        replace(&link, b"new", 0o600, Outlives::Machine).unwrap();
        assert!(!other.exists() && fs::symlink_metadata(&link).unwrap().is_file());
        fs::create_dir_all(dir.path().join("a.json.part/x")).unwrap();
        replace(&path, b"newer", 0o600, Outlives::Machine).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn holders_have_the_form_of_earlier_journals() {
        let form = |holder| serde_json::to_string(&holder).unwrap();
        assert_eq!(form(Holder::Kept), "\"kept\"");
        let instance = Holder::Instance { pid: 7, start: 9 };
        assert_eq!(form(instance), r#"{"instance":{"pid":7,"start":9}}"#);
        assert_eq!(serde_json::from_str::<Holder>(&form(instance)).unwrap(), instance);
    }
}
