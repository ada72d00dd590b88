//! Writes copies of a host to a folder that only its owner can read, all of them or none.

use super::HostCopy;
use super::copies::Kept;
use crate::error::Error;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Why no copy was written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A file could not be written.
    #[error(transparent)]
    Failed(#[from] Error),
    /// It was asked to stop.
    #[error("stopped while the copy was written; what was written of it is removed")]
    Stopped,
}

/// Writes each copy to the folder of its name in `dir`, which must be empty or not there. Files get mode 0600
/// and folders 0700. Gives how many files there are.
///
/// # Errors
/// Something could not be written, or `stop` became true. What was written is removed then.
pub fn write(
    dir: &Path,
    copies: &[(&str, &HostCopy)],
    stop: &AtomicBool,
) -> Result<usize, WriteError> {
    let is_new = !dir.exists();
    if is_new {
        make_dir(dir)?;
    }
    let mut made = Vec::new();
    let written = copies.iter().try_fold(0, |files, (name, copy)| {
        let folder = dir.join(name);
        make_dir(&folder)?;
        made.push(folder.clone());
        fill(&folder, &copy.kept, stop)?;
        Ok(files + copy.kept.files.len())
    });
    if written.is_err() {
        // What is in the way of removing it was in the way of writing it.
        for folder in made {
            let _ = fs::remove_dir_all(folder);
        }
        if is_new {
            let _ = fs::remove_dir(dir);
        }
    }
    written
}

fn fill(folder: &Path, kept: &Kept, stop: &AtomicBool) -> Result<(), WriteError> {
    let parents = kept.files.keys().chain(kept.links.keys()).filter_map(|place| place.parent());
    let parents = parents.chain(kept.dirs.iter().map(PathBuf::as_path));
    let all = parents.flat_map(Path::ancestors).filter(|dir| !dir.as_os_str().is_empty());
    // In this order a folder comes before what is in it.
    for place in all.collect::<BTreeSet<_>>() {
        check(stop)?;
        make_dir(&folder.join(place))?;
    }
    for (place, bytes) in &kept.files {
        check(stop)?;
        let path = folder.join(place);
        let mut options = OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(0o600).open(&path);
        opened.and_then(|mut file| file.write_all(bytes)).map_err(|error| cannot(&path, error))?;
    }
    for (place, target) in &kept.links {
        check(stop)?;
        let path = folder.join(place);
        symlink(target, &path).map_err(|error| cannot(&path, error))?;
    }
    Ok(())
}

fn check(stop: &AtomicBool) -> Result<(), WriteError> {
    if stop.load(Ordering::Relaxed) { Err(WriteError::Stopped) } else { Ok(()) }
}

fn make_dir(path: &Path) -> Result<(), Error> {
    DirBuilder::new().mode(0o700).create(path).map_err(|error| cannot(path, error))
}

fn cannot(path: &Path, error: io::Error) -> Error {
    Error::system(format!("cannot write {}", path.display()), error)
}
