//! Where fetched packages and built images are kept between runs:
//! `$XDG_CACHE_HOME/instep` or `~/.cache/instep`.
//!
//! An entry is a directory that appears whole, by a rename: what was interrupted half-way never
//! looks finished. One lock on the cache keeps two at once from fetching the same twice; another,
//! shared by all that use it, keeps it from being cleaned under them.

use crate::error::Error;
use crate::stop::Stop;
use std::cmp::Ordering;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How directories begin that are being filled.
const FILLING: &str = ".filling-";

/// The cache directory, which exists.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// The user's cache, made if need be.
    ///
    /// # Errors
    /// When no home is known or the directory cannot be made.
    pub fn open() -> Result<Self, Error> {
        let missing = |why: String| {
            Error::missing(format!("no cache directory: {why}"), "set XDG_CACHE_HOME=DIR to one")
        };
        let dir = place(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
            .ok_or_else(|| missing("neither XDG_CACHE_HOME nor HOME names a directory".into()))?;
        Self::at(dir).map_err(|error| missing(error.to_string()))
    }

    /// A cache in `dir`, made if need be.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn at(dir: impl Into<PathBuf>) -> Result<Self, Error> {
        let dir = dir.into();
        fs::create_dir_all(&dir).map_err(|error| Error::io("make", &dir, error))?;
        Ok(Self { dir })
    }

    /// The path of an entry, whether it exists or not.
    pub fn path(&self, entry: &str) -> PathBuf {
        self.dir.join(entry)
    }

    /// The names in a directory of the cache, sorted; empty when it is not there.
    pub fn list(&self, entry: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(entry)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The names in a directory of the cache that versions tell apart, the newest first; none of what is being filled.
    pub fn newest_first(&self, entry: &str) -> Vec<String> {
        let mut names = self.list(entry);
        names.retain(|name| !name.starts_with('.'));
        names.sort_by(|a, b| by_version(b, a));
        names
    }

    /// Removes a directory of the cache and says how many bytes its files had; 0 when it was not
    /// there.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(&self, entry: &str) -> Result<u64, Error> {
        let path = self.path(entry);
        if !path.exists() {
            return Ok(0);
        }
        let size = size_of_tree(&path, 0);
        fs::remove_dir_all(&path).map_err(|error| Error::io("remove", path, error))?;
        Ok(size)
    }

    /// Waits until no other process fetches into the cache; the lock is held while the file
    /// lives. What a killed fetch left in `parent` (a directory of the cache that is filled only
    /// under this lock) is removed.
    ///
    /// # Errors
    /// When the lock file cannot be made or locked, or `stop` is raised meanwhile.
    pub fn lock(&self, parent: &str, stop: &Stop) -> Result<File, Error> {
        let file = self.waited("lock", File::try_lock, stop, &mut || ())?;
        for name in self.list(parent).iter().filter(|name| name.starts_with(FILLING)) {
            let _ = fs::remove_dir_all(self.path(parent).join(name));
        }
        Ok(file)
    }

    /// Keeps others from removing what is used while the file lives; many may use it at once.
    ///
    /// # Errors
    /// When the lock file cannot be made or locked, or `stop` is raised while somebody removes.
    pub fn used(&self, stop: &Stop) -> Result<File, Error> {
        self.waited("used", File::try_lock_shared, stop, &mut || ())
    }

    /// Waits until nobody uses what is here, which holds while the file lives; `waits` hears once
    /// that somebody does.
    ///
    /// # Errors
    /// When the lock file cannot be made or locked, or `stop` is raised meanwhile.
    pub fn unused(&self, stop: &Stop, waits: &mut dyn FnMut()) -> Result<File, Error> {
        self.waited("used", File::try_lock, stop, waits)
    }

    /// The file `name` once it can be locked this way.
    fn waited(
        &self,
        name: &str,
        lock: fn(&File) -> Result<(), TryLockError>,
        stop: &Stop,
        waits: &mut dyn FnMut(),
    ) -> Result<File, Error> {
        let path = self.path(name);
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(|error| Error::io("open", &path, error))?;
        let mut told = false;
        loop {
            match lock(&file) {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut told, true) {
                        waits();
                    }
                    stop.sleep(Duration::from_millis(200))?;
                }
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", path, error)),
            }
        }
    }

    /// Fills the entry, a directory: `fill` works in a fresh directory beside it, which takes the
    /// entry's name when all went well. An entry that meanwhile exists is kept.
    ///
    /// # Errors
    /// Those of `fill`, and when the directory cannot be made or renamed.
    pub fn fill(
        &self,
        entry: &str,
        fill: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<PathBuf, Error> {
        let target = self.path(entry);
        let parent = target.parent().unwrap_or(&self.dir);
        let name = target.file_name().unwrap_or_default();
        self.filled(parent, |into| fill(into).map(|()| name.to_owned()))
    }

    /// The same for an entry of `parent`, a directory of the cache, of which only `fill` knows the name.
    ///
    /// # Errors
    /// As [`Cache::fill`].
    pub fn fill_named(
        &self,
        parent: &str,
        fill: impl FnOnce(&Path) -> Result<String, Error>,
    ) -> Result<PathBuf, Error> {
        self.filled(&self.path(parent), |into| fill(into).map(OsString::from))
    }

    fn filled(
        &self,
        parent: &Path,
        fill: impl FnOnce(&Path) -> Result<OsString, Error>,
    ) -> Result<PathBuf, Error> {
        fs::create_dir_all(parent).map_err(|error| Error::io("make", parent, error))?;
        let temporary = tempfile::Builder::new()
            .prefix(FILLING)
            .tempdir_in(parent)
            .map_err(|error| Error::io("make a directory in", parent, error))?;
        let target = parent.join(fill(temporary.path())?);
        match fs::rename(temporary.path(), &target) {
            Ok(()) => {
                // It has moved: nothing is left to remove under the old name.
                let _ = temporary.keep();
                Ok(target)
            }
            Err(error) if exists_already(&error) => Ok(target),
            Err(error) => Err(Error::io("rename to", target, error)),
        }
    }
}

/// The bytes of all files below a directory, at most 16 deep.
fn size_of_tree(dir: &Path, depth: u32) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() && depth < 16 => size_of_tree(&entry.path(), depth + 1),
        _ => entry.metadata().map_or(0, |meta| meta.len()),
    };
    entries.flatten().map(size).sum()
}

fn exists_already(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty)
}

/// The cache directory by the XDG base directory rules: a relative XDG_CACHE_HOME is ignored.
fn place(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    xdg.and_then(absolute)
        .or_else(|| home.and_then(absolute).map(|home| home.join(".cache")))
        .map(|dir| dir.join("instep"))
}

/// Orders names by their numbers, so that 6.10 comes after 6.9.
pub(crate) fn by_version(a: &str, b: &str) -> Ordering {
    let (a_parts, b_parts) = (version_parts(a), version_parts(b));
    a_parts.cmp(&b_parts).then_with(|| a.cmp(b))
}

fn version_parts(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_order_by_number_not_by_letter() {
        let (nine, ten) = ("linux-image-6.9.1-cloud-amd64", "linux-image-6.10.0-cloud-amd64");
        assert_eq!(by_version(nine, ten), Ordering::Less);
    }

    #[test]
    fn xdg_comes_before_home_and_relative_paths_are_ignored() {
        let s = |text: &str| Some(OsString::from(text));
        assert_eq!(place(s("/x"), s("/h")), Some(PathBuf::from("/x/instep")));
        assert_eq!(place(s("x"), s("/h")), Some(PathBuf::from("/h/.cache/instep")));
        assert_eq!(place(None, s("")), None);
    }

    #[test]
    fn a_failed_fill_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let result = cache.fill("k/a", |at| {
            fs::write(at.join("half"), "x").unwrap();
            Err(Error::Interrupted)
        });
        assert!(result.is_err());
        assert_eq!(cache.list("k"), Vec::<String>::new());
    }

    #[test]
    fn what_a_killed_fetch_left_is_removed_under_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        fs::create_dir_all(cache.path("k/.filling-x/y")).unwrap();
        fs::create_dir_all(cache.path("k/whole")).unwrap();
        let _lock = cache.lock("k", &Stop::never()).unwrap();
        assert_eq!(cache.list("k"), ["whole"]);
    }

    #[test]
    fn what_labs_use_is_not_removed_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let (now, mut waits) = (Stop::never(), 0);
        now.raise();
        let (one, two) = (cache.used(&now).unwrap(), cache.used(&now).unwrap());
        drop(one);
        let cleaning = cache.unused(&now, &mut || waits += 1);
        assert!(matches!(cleaning, Err(Error::Interrupted)));
        assert_eq!(waits, 1);
        drop(two);
        let _cleaning = cache.unused(&now, &mut || panic!("nobody uses it")).unwrap();
        assert!(matches!(cache.used(&now), Err(Error::Interrupted)));
    }

    #[test]
    fn the_first_of_two_fills_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        for content in ["first", "second"] {
            let write = |at: &Path| {
                fs::write(at.join("f"), content).unwrap();
                Ok(())
            };
            cache.fill("k/a", write).unwrap();
        }
        assert_eq!(fs::read_to_string(cache.path("k/a/f")).unwrap(), "first");
        assert_eq!(cache.list("k"), ["a"]);
    }
}
