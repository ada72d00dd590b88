//! What a scan has read, in memory.

use super::secrets::without_secrets;
use crate::discover::{cgroup, definition, units};
use crate::root::{MAX_FILE, Root};
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Reading one numa_maps ends after this time: the kernel walks a guest's page tables meanwhile.
const MAX_WALK: Duration = Duration::from_millis(250);
/// The most links that are followed to one file, as in the kernel (MAXSYMLINKS).
const MAX_LINKS: usize = 40;

/// Copies of files, shared by all who read of one host.
#[derive(Clone, Debug)]
pub(crate) struct Copies(Arc<Mutex<Kept>>);

/// The copies by their place below the root.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Where the host's `proc` and `sys` are.
    root: PathBuf,
    pub(super) files: BTreeMap<PathBuf, Vec<u8>>,
    pub(super) links: BTreeMap<PathBuf, PathBuf>,
    /// Folders that count though no file in them was read.
    pub(super) dirs: BTreeSet<PathBuf>,
    /// What is known to be no link.
    plain: BTreeSet<PathBuf>,
    /// What could not be read for lack of privilege.
    denied: BTreeSet<PathBuf>,
}

impl Copies {
    /// None yet of the host under this root.
    pub(super) fn of(root: &Root) -> Self {
        Self(Arc::new(Mutex::new(Kept { root: root.join(""), ..Kept::default() })))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a copy of an opened file and gives the copy to read. A file that was read before is the
    /// same again, as it will be for a reader of the copy.
    ///
    /// # Errors
    /// It cannot be read, or is too large.
    pub(crate) fn file(&self, path: &Path, opened: File) -> io::Result<File> {
        let mut kept = self.kept();
        let Some(place) = kept.place(path) else { return Ok(opened) };
        if !kept.files.contains_key(&place) {
            let whole = whole(opened, &place);
            let bytes = whole.inspect_err(|error| kept.note_error(path, error))?;
            kept.files.insert(place.clone(), reduced(&place, bytes));
        }
        let mut copy = File::from(memfd_create("instep-copy", MemfdFlags::CLOEXEC)?);
        copy.write_all(&kept.files[&place])?;
        copy.rewind()?;
        Ok(copy)
    }

    /// Keeps a folder.
    pub(crate) fn dir(&self, path: &Path) {
        let mut kept = self.kept();
        if let Some(place) = kept.place(path) {
            kept.dirs.insert(place);
        }
    }

    /// Keeps a link of a process, which leads nowhere in a copy.
    pub(crate) fn link(&self, path: &Path, target: &Path) {
        let mut kept = self.kept();
        if let Some(place) = kept.place(path) {
            kept.links.insert(place, target.to_owned());
        }
    }

    /// Notes that something could not be read.
    pub(crate) fn note_error(&self, path: &Path, error: &io::Error) {
        self.kept().note_error(path, error);
    }

    /// What is of the host, and of these processes; of `named` ones what tells that they run, and of others nothing.
    pub(super) fn of_processes(&self, pids: &BTreeSet<u32>, named: &BTreeMap<u32, String>) -> Kept {
        let mut kept = std::mem::take(&mut *self.kept());
        let tells_name = |place: &Path, pid| {
            let dir = PathBuf::from(format!("proc/{pid}"));
            ["stat", "status"].iter().any(|file| place == dir.join(file))
        };
        let belongs = |place: &Path| {
            process_of(place).is_none_or(|pid| {
                pids.contains(&pid) || named.contains_key(&pid) && tells_name(place, pid)
            })
        };
        let is_foreign = |place: &&PathBuf| {
            definition::process_of(place, &kept.files).is_some_and(|pid| !pids.contains(&pid))
        };
        let foreign: BTreeSet<PathBuf> = kept.files.keys().filter(is_foreign).cloned().collect();
        kept.files.retain(|place, _| belongs(place) && !foreign.contains(place));
        kept.links.retain(|place, _| belongs(place));
        kept.dirs.retain(|place| belongs(place));
        kept.denied.retain(|place| belongs(place));
        kept
    }
}

impl Kept {
    fn note_error(&mut self, path: &Path, error: &io::Error) {
        if error.kind() == io::ErrorKind::PermissionDenied
            && let Ok(place) = path.strip_prefix(&self.root)
        {
            self.denied.insert(place.to_owned());
        }
    }

    /// Of how many processes something could not be read.
    pub(super) fn denied(&self) -> usize {
        let pids: BTreeSet<u32> =
            self.denied.iter().filter_map(|place| process_of(place)).collect();
        pids.len()
    }

    /// Where a file goes in the copy; `None` for one that is not below the root. The links of sysfs on the way
    /// are kept: the devices of a bus are links, and `..` of one is what it leads to.
    fn place(&mut self, path: &Path) -> Option<PathBuf> {
        let below = path.strip_prefix(&self.root).ok()?;
        // The mount table is the same for all of them, but not the process.
        if below == Path::new("proc/self/mounts") || below == Path::new("proc/1/mounts") {
            return Some(PathBuf::from("proc/mounts"));
        }
        if !below.starts_with("sys") {
            return Some(below.to_owned());
        }
        let mut place = PathBuf::new();
        let mut rest: Vec<OsString> = parts(below);
        let mut followed = 0;
        while let Some(part) = rest.pop() {
            if part == ".." {
                place.pop();
                continue;
            }
            place.push(part);
            if let Some(target) = self.target(&place) {
                followed += 1;
                if followed > MAX_LINKS {
                    return None;
                }
                rest.extend(parts(&target));
                place.pop();
            }
        }
        Some(place)
    }

    /// Where this place leads if it is a link that stays below the root.
    fn target(&mut self, place: &Path) -> Option<PathBuf> {
        if self.plain.contains(place) {
            return None;
        }
        if let Some(target) = self.links.get(place) {
            return Some(target.clone());
        }
        let target = std::fs::read_link(self.root.join(place)).ok();
        match target.filter(|target| target.is_relative()) {
            Some(target) => {
                self.links.insert(place.to_owned(), target.clone());
                Some(target)
            }
            None => {
                self.plain.insert(place.to_owned());
                None
            }
        }
    }
}

/// The names in a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let is_name =
        |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    let names = path.components().filter(is_name).map(|part| part.as_os_str().to_owned());
    let mut names: Vec<OsString> = names.collect();
    names.reverse();
    names
}

/// The process that a place in /proc belongs to.
fn process_of(place: &Path) -> Option<u32> {
    place.strip_prefix("proc").ok()?.iter().next()?.to_str()?.parse().ok()
}

/// The bytes of a file. A numa_maps that takes too long is cut in the middle of a line, by which a reader
/// knows it.
fn whole(mut file: File, place: &Path) -> io::Result<Vec<u8>> {
    let is_walk = place.file_name().is_some_and(|name| name == "numa_maps");
    let begun = Instant::now();
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 << 10];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if bytes.len() as u64 > MAX_FILE {
            return Err(io::Error::other("it has more than 64MiB"));
        }
        if is_walk && begun.elapsed() > MAX_WALK {
            bytes.truncate(bytes.trim_ascii_end().len());
            return Ok(bytes);
        }
    }
}

/// What is kept of a file: all of it, but of a command line no passwords, of the mount table only cgroups,
/// of a VM's definition only what Instep reads in it, and of what the kernel told Instep's own process only the two numbers that a reader needs.
fn reduced(place: &Path, bytes: Vec<u8>) -> Vec<u8> {
    if let Some(kept) = definition::reduced(place, &bytes) {
        return kept;
    }
    match place.file_name().and_then(|name| name.to_str()) {
        Some("cmdline") => without_secrets(&bytes),
        Some("mounts") => {
            let text = String::from_utf8_lossy(&bytes);
            let lines = text.lines().filter(|line| !cgroup::cgroup_mounts(line).is_empty());
            lines.map(|line| format!("{line}\n")).collect::<String>().into_bytes()
        }
        Some("auxv") => units::reduced(&bytes),
        _ => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_lies_behind_links_of_sysfs_is_kept_where_they_lead() {
        let host = instep_madehost::scratch_dir().unwrap();
        let device = host.path().join("sys/devices/pci/0000:86:00.0");
        std::fs::create_dir_all(device.join("vdpa0")).unwrap();
        std::fs::create_dir_all(host.path().join("sys/bus/vdpa")).unwrap();
        std::fs::write(device.join("numa_node"), "2\n").unwrap();
        let link = host.path().join("sys/bus/vdpa/vdpa0");
        symlink("../../devices/pci/0000:86:00.0/vdpa0", &link).unwrap();
        symlink("round", host.path().join("sys/round")).unwrap();
        let copies = Copies::of(&Root::at(host.path()));
        let path = link.join("../numa_node");
        let mut text = String::new();
        let copy = copies.file(&path, File::open(&path).unwrap());
        copy.unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "2\n");
        let kept = copies.of_processes(&BTreeSet::new(), &BTreeMap::new());
        let files: Vec<_> = kept.files.keys().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(files, ["sys/devices/pci/0000:86:00.0/numa_node"]);
        let links: Vec<_> = kept.links.keys().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(links, ["sys/bus/vdpa/vdpa0"]);
        let mut copies = Kept { root: host.path().to_owned(), ..Kept::default() };
        assert_eq!(copies.place(&host.path().join("sys/round/x")), None);
        assert_eq!(copies.place(Path::new("/elsewhere")), None);
    }

    #[test]
    fn mount_table_holds_cgroups_only() {
        let text = "/dev/sda1 / ext4 rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n\
                    //nas/x /mnt cifs rw,username=u 0 0\n";
        let kept = reduced(Path::new("proc/mounts"), text.as_bytes().to_vec());
        assert_eq!(kept, b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
    }

    #[test]
    fn file_that_was_read_twice_says_the_same() {
        let host = instep_madehost::scratch_dir().unwrap();
        let path = host.path().join("stat");
        let copies = Copies::of(&Root::at(host.path()));
        for text in ["one", "two"] {
            std::fs::write(&path, text).unwrap();
            let mut read = String::new();
            let copy = copies.file(&path, File::open(&path).unwrap()).unwrap();
            { copy }.read_to_string(&mut read).unwrap();
            assert_eq!(read, "one");
        }
    }
}
