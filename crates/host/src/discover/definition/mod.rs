//! What a VM's own definition says of it: the metadata of a domain of libvirt, the tags of a VM of Proxmox.
//!
//! ```text
//! process --name--> /run/libvirt/qemu/NAME.xml   the file's pid and UUID are the process's --> settings
//!         --id----> /run/qemu-server/ID.pid      the file's pid is the process's
//!                   /etc/pve/qemu-server/ID.conf                                           --> settings
//! ```
//! Anybody can start a process with the name of somebody's VM, so that a name leads to a file and proves nothing.
//! The managers write these files as root, but their users choose what is in them: the parsers are bounded, and
//! nothing here judges a value. A file is read again when it changed. One that cannot be read any more does not
//! change what was known of the process.
//!
//! `/run` is memory. `/etc/pve` is a file system that a process answers for: it is read by a thread of its own
//! ([`Aside`]), for which a scan waits for a bounded time.

mod aside;
pub mod libvirt;
pub mod proxmox;
mod reduced;

pub(super) use aside::Aside;
pub(crate) use reduced::{process_of, reduced};

use super::facts::Manager;
use super::files::Reader;
use super::guest::{GuestArguments, readable};
use crate::root::Root;
use std::fmt;
use std::fs::Metadata;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The most that a scan waits for `/etc/pve`.
pub(super) const BUDGET: Duration = Duration::from_millis(500);
/// The most that is read of one file.
pub const MAX_FILE: u64 = 1 << 20;
/// The most settings of one definition that are kept.
const MAX_SETTINGS: usize = 64;
/// The longest key and the longest value that are kept, in characters.
const MAX_TEXT: usize = 64;
/// A file that changed less than this before it was read may change again without a new time: some file
/// systems, such as that of /etc/pve, keep seconds.
const UNSETTLED: Duration = Duration::from_secs(2);

/// What the definition of one VM says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definition {
    /// The file that it was read from; empty where there is none.
    pub file: PathBuf,
    /// Its settings in the order of the file, none of them judged.
    pub settings: Vec<Setting>,
    /// What is wrong with it, each with the file.
    pub problems: Vec<String>,
}

/// One setting as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Which one, printable.
    pub key: String,
    /// Its value, printable; empty where there is none.
    pub value: String,
    /// Where it stands.
    pub origin: Origin,
}

/// Where a definition says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The metadata of a domain of libvirt.
    LibvirtMetadata,
    /// A tag of a VM of Proxmox.
    ProxmoxTag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::LibvirtMetadata => "libvirt metadata",
            Origin::ProxmoxTag => "Proxmox tag",
        })
    }
}

/// Keeps what is fit to be kept of these keys and values.
fn settings(said: Vec<(String, String)>, origin: Origin) -> Vec<Setting> {
    let short = |text: String| readable(&text).chars().take(MAX_TEXT).collect();
    let setting = |(key, value)| Setting { key: short(key), value: short(value), origin };
    said.into_iter().take(MAX_SETTINGS).map(setting).collect()
}

/// The process whose definition is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process<'a> {
    pub(super) pid: u32,
    pub(super) guest: &'a GuestArguments,
    pub(super) manager: Option<Manager>,
    pub(super) root: &'a Root,
}

/// What was read for one process, and of which files.
#[derive(Debug, Default)]
pub(super) struct State {
    stamps: Option<Vec<Option<Stamp>>>,
    known: Definition,
    /// What is to be said where this user may not read it.
    denied: Option<String>,
}

/// A version of a file.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<(Self, Option<SystemTime>)> {
        let found = std::fs::metadata(path).ok()?;
        let stamp = Self {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        };
        Some((stamp, found.modified().ok()))
    }
}

/// Why a file says nothing.
enum Unread {
    /// It is not there, or is another process's.
    NotIts,
    /// This user may not read it.
    Denied(String),
    /// What is wrong with it.
    Wrong(String),
}

impl State {
    /// What the definition says now. Where no file changed, it costs a look at each.
    pub(super) fn refresh(
        &mut self,
        process: &Process<'_>,
        (reader, aside): (&mut Reader, &mut Aside),
    ) -> &Definition {
        let Some(files) = Files::of(process) else { return &self.known };
        let look = DefinitionRead {
            files,
            pid: process.pid,
            uuid: process.guest.uuid.clone(),
            is_live: process.root.is_live(),
            stamps: self.stamps.take(),
        };
        let seen = match look.may_wait() {
            true => aside.run(process.root, move |reader| look.read(reader)),
            false => Some(look.read(reader)),
        };
        if let Some(Seen { stamps, read }) = seen {
            self.stamps = stamps;
            read.into_iter().for_each(|read| self.take(read));
        }
        &self.known
    }

    /// What is to be said where this user may not read the definition.
    pub(super) fn denied(&self) -> Option<&str> {
        self.denied.as_deref()
    }

    fn take(&mut self, read: Result<Definition, Unread>) {
        self.denied = None;
        match read {
            Ok(definition) => self.known = definition,
            Err(Unread::NotIts) => self.known = Definition::default(),
            Err(Unread::Denied(why)) => self.denied = Some(why),
            Err(Unread::Wrong(problem)) => self.known.problems = vec![problem],
        }
    }

    fn unread(path: &Path, error: &io::Error) -> Unread {
        let path = path.display();
        match error.kind() {
            io::ErrorKind::NotFound => Unread::NotIts,
            io::ErrorKind::PermissionDenied => Unread::Denied(format!(
                "cannot read {path}: {error}; what definitions say of VMs is not known (run as root)"
            )),
            _ => Unread::Wrong(format!("cannot read {path}: {error}")),
        }
    }
}

/// A look at the files of one process, which may be another thread's.
struct DefinitionRead {
    files: Files,
    pid: u32,
    uuid: Option<String>,
    is_live: bool,
    /// The versions of the files that were read before.
    stamps: Option<Vec<Option<Stamp>>>,
}

/// What came of it.
struct Seen {
    /// The versions of the files; `None` where they may change again without a new time.
    stamps: Option<Vec<Option<Stamp>>>,
    /// `None` where they are those that were read before.
    read: Option<Result<Definition, Unread>>,
}

impl DefinitionRead {
    /// Whether the files are in a file system that need not answer.
    fn may_wait(&self) -> bool {
        self.is_live && matches!(self.files, Files::Proxmox { .. })
    }

    fn read(self, reader: &mut Reader) -> Seen {
        let found: Vec<_> = self.files.all().iter().map(|path| Stamp::of(path)).collect();
        let is_settled = |time: Option<SystemTime>| {
            time.is_none_or(|time| time.elapsed().is_ok_and(|age| age >= UNSETTLED))
        };
        let settled = found.iter().flatten().all(|(_, time)| is_settled(*time));
        let stamps: Vec<_> = found.into_iter().map(|found| found.map(|(stamp, _)| stamp)).collect();
        if self.stamps.as_ref() == Some(&stamps) {
            return Seen { stamps: self.stamps, read: None };
        }
        let read = self.files.read((self.pid, self.uuid.as_deref()), self.is_live, reader);
        Seen { stamps: settled.then_some(stamps), read: Some(read) }
    }
}

/// The files of one VM.
enum Files {
    Libvirt { status: PathBuf },
    Proxmox { pid: PathBuf, config: PathBuf },
}

impl Files {
    fn of(process: &Process<'_>) -> Option<Self> {
        let Process { guest, root, .. } = process;
        match process.manager? {
            Manager::Libvirt => {
                let name = guest.name.as_ref().filter(|name| !name.contains('/'))?;
                Some(Self::Libvirt { status: root.join(format!("run/libvirt/qemu/{name}.xml")) })
            }
            Manager::Proxmox => {
                let id = guest.number?;
                let pid = root.join(format!("run/qemu-server/{id}.pid"));
                let config = root.join(format!("etc/pve/qemu-server/{id}.conf"));
                Some(Self::Proxmox { pid, config })
            }
            Manager::Incus => None,
        }
    }

    fn all(&self) -> Vec<&Path> {
        match self {
            Self::Libvirt { status } => vec![status],
            Self::Proxmox { pid, config } => vec![pid, config],
        }
    }

    fn read(
        &self,
        (pid, uuid): (u32, Option<&str>),
        is_live: bool,
        reader: &mut Reader,
    ) -> Result<Definition, Unread> {
        match self {
            Self::Libvirt { status } => {
                let bytes = read_of_root(status, is_live, reader)?;
                let wrong = |why| Unread::Wrong(format!("{}: {why}", status.display()));
                let domain = libvirt::parse(&bytes).map_err(wrong)?;
                if !domain.is_of(pid, uuid) {
                    return Err(Unread::NotIts);
                }
                let named = |why: String| format!("{}: {why}", status.display());
                Ok(Definition {
                    file: status.clone(),
                    problems: domain.problems().map(named).collect(),
                    settings: settings(domain.settings, Origin::LibvirtMetadata),
                })
            }
            Self::Proxmox { pid: named, config } => {
                let of = read_of_root(named, is_live, reader)?;
                if proxmox::pid(&of) != Some(pid) {
                    return Err(Unread::NotIts);
                }
                let bytes = read_of_root(config, is_live, reader)?;
                let settings = settings(proxmox::settings(&bytes), Origin::ProxmoxTag);
                Ok(Definition { file: config.clone(), settings, problems: Vec::new() })
            }
        }
    }
}

/// The whole of a file that root alone can have written. Those who made a copy own its files.
fn read_of_root(path: &Path, is_live: bool, reader: &mut Reader) -> Result<Vec<u8>, Unread> {
    let unread = |error: io::Error| State::unread(path, &error);
    let file = reader.open(path).map_err(unread)?;
    let found = file.metadata().map_err(unread)?;
    if !found.is_file() || (is_live && !is_roots(&found)) {
        return Err(Unread::Wrong(format!(
            "{} is ignored: it must be a regular file of root that nobody else may write to (it \
             is user {}'s, mode {:o})",
            path.display(),
            found.uid(),
            found.mode() & 0o7777
        )));
    }
    let mut bytes = Vec::new();
    // One byte more tells a file that is too large from one that just fits.
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(unread)?;
    if bytes.len() as u64 > MAX_FILE {
        let why = format!("{} counts for nothing: it is larger than 1MiB", path.display());
        return Err(Unread::Wrong(why));
    }
    Ok(bytes)
}

/// Whether root alone may write to it.
fn is_roots(found: &Metadata) -> bool {
    found.uid() == 0 && found.mode() & 0o022 == 0
}

#[cfg(test)]
mod tests;
