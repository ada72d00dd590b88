//! Directories that root and the service share: the service has a user of its own, and root's `instep restore` puts back what the
//! service changed.
//!
//! Files that the service's user could have planted must not lead root elsewhere: links are not followed, pipes and devices are not
//! opened, and files of other users and with other names count for nothing. Files that root makes there become the service's.

use rustix::fs::OFlags;
use rustix::process::geteuid;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown, lchown};
use std::path::Path;

/// The user of `packaging/instep.service`.
const SERVICE: &str = "instep";
const ROOT: u32 = 0;

/// The number of a user by /etc/passwd.
pub fn user_id(name: &str) -> Option<u32> {
    user_of(&fs::read_to_string("/etc/passwd").unwrap_or_default(), name)
}

fn user_of(passwd: &str, name: &str) -> Option<u32> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        fields.nth(1)?.parse().ok()
    })
}

/// Whether this process takes a directory of this user for one in which nobody else changes anything: its own, and for root that
/// of the service.
pub fn is_trusted_owner(uid: u32) -> bool {
    let own = geteuid().as_raw();
    uid == own || (own == ROOT && is_service(uid))
}

fn is_service(uid: u32) -> bool {
    uid != ROOT && user_id(SERVICE) == Some(uid)
}

/// Opens a file of a state directory to read it.
///
/// # Errors
/// There is none; it is a link or no regular file; somebody else than the directory's owner, root and this user owns it.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    check(&file, &directory_of(path)?).map(|_| file)
}

/// Opens a file of a state directory to read and write it, and makes it where it is missing: nobody but the owner of the directory may
/// read it.
///
/// # Errors
/// As [`open`], but for a missing file.
pub fn open_or_make(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(flags.bits() as i32).open(path)?;
    let directory = directory_of(path)?;
    let found = check(&file, &directory)?;
    if geteuid().is_root() && found.uid() == ROOT && is_service(directory.uid()) {
        fchown(&file, Some(directory.uid()), Some(directory.gid()))?;
    }
    Ok(file)
}

/// Gives a directory that is there to the service if root made it in one of the service's.
///
/// # Errors
/// It cannot be given, or is a link that the service's user could have made.
pub fn share_directory(path: &Path) -> io::Result<()> {
    let around = directory_of(path)?;
    if !geteuid().is_root() || !is_service(around.uid()) {
        return Ok(());
    }
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() {
        return Err(io::Error::other(
            "it is no directory, but a link or a file of the user instep",
        ));
    }
    if found.uid() == ROOT {
        lchown(path, Some(around.uid()), Some(around.gid()))?;
    }
    Ok(())
}

fn directory_of(path: &Path) -> io::Result<Metadata> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    fs::metadata(parent.unwrap_or(Path::new(".")))
}

/// The file is one that the owner of its directory, root or this user made there, and has no other name: one of
/// another place that was linked here would be written to.
fn check(file: &File, directory: &Metadata) -> io::Result<Metadata> {
    let found = file.metadata()?;
    let is_of_known = [geteuid().as_raw(), ROOT, directory.uid()].contains(&found.uid());
    // One that was replaced since it was opened has no name.
    if found.is_file() && found.nlink() <= 1 && is_of_known {
        return Ok(found);
    }
    Err(io::Error::other(format!(
        "it is no file of its own of the directory's owner (user {}, mode {:o}, {} names)",
        found.uid(),
        found.mode(),
        found.nlink()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::process::Command;

    /// A user other than root and this one.
    const OTHER: u32 = 54_321;

    #[test]
    fn users_are_known_by_name() {
        assert_eq!(user_of("root:x:0:0::/:/bin/sh\na:x:1234:5::/:/b\n", "a"), Some(1234));
        assert_eq!(user_of("ab:x:7:7::/:/b\nshort\n", "a"), None);
        assert_eq!(user_id("root"), Some(ROOT));
        assert!(is_trusted_owner(geteuid().as_raw()) && !is_trusted_owner(OTHER));
    }

    #[test]
    fn what_could_have_been_planted_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("victim"), "kept").unwrap();
        symlink(path("victim"), path("link")).unwrap();
        fs::write(path("twice"), "kept").unwrap();
        fs::hard_link(path("twice"), path("name")).unwrap();
        // No process has the pipe open for writing: to open it for reading would wait for ever.
        assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        for planted in ["link", "name", "pipe"] {
            assert!(open(&path(planted)).is_err(), "{planted}");
            assert!(open_or_make(&path(planted)).is_err(), "{planted}");
        }
        assert_eq!(open(&path("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        open_or_make(&path("new")).unwrap();
        assert_eq!(fs::metadata(path("new")).unwrap().permissions().mode() & 0o777, 0o600);
        open(&path("new")).unwrap();
        if geteuid().is_root() {
            fs::write(path("others"), "").unwrap();
            lchown(path("others"), Some(OTHER), None).unwrap();
            assert!(open(&path("others")).is_err(), "a file of somebody else");
            lchown(dir.path(), Some(OTHER), None).unwrap();
            open(&path("others")).unwrap();
        }
    }

    #[test]
    fn what_is_replaced_while_it_is_read_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "old").unwrap();
        let file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(check(&file, &fs::metadata(dir.path()).unwrap()).is_ok());
    }

    #[test]
    fn directories_of_others_stay_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a");
        fs::create_dir(&inner).unwrap();
        if geteuid().is_root() {
            lchown(dir.path(), Some(OTHER), None).unwrap();
        }
        share_directory(&inner).unwrap();
        assert_eq!(fs::metadata(&inner).unwrap().uid(), geteuid().as_raw());
    }
}
