//! Asks the kernel's DAMON which memory of a process is in use, so that this comes home first.
//!
//! DAMON clears the accessed bit of a page now and then, in the tables of KVM guests, too, and looks whether
//! it was set again (Documentation/admin-guide/mm/damon/usage.rst, 7.2). So it sees what a guest touches while
//! it runs as a guest, which no PMU samples. Instep has one monitor (kdamond) for one VM at a time.
//!
//! ```text
//! nr_kdamonds is not 0 -> somebody else's: left alone, and said
//!                0     -> recorded in the state directory -> made -> on -> ... regions with their accesses
//! dropped                                  -> off, nr_kdamonds 0, the record removed
//! killed -> guardian, `instep restore` or the next run -> the same, while it is still Instep's
//! ```
//! It does not know what the regions are used for ([`heat`] does), nor when watching pays.

pub mod heat;
mod record;
mod regions;

pub(crate) use record::Record;
pub use record::{Undone, is_recorded, undo};
pub use regions::{Region, parse_regions};

use crate::apply::StateDir;
use crate::apply::thread;
use crate::error::Error;
use crate::root::Root;
use instep_core::units::Tid;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often DAMON looks whether a page was used.
const SAMPLE: Duration = Duration::from_millis(100);
/// After how long it counts, splits regions and joins those that are alike. Ten looks are too few to tell a
/// region that is used from one that a single access hit.
const AGGREGATE: Duration = Duration::from_secs(2);
/// The fewest and the most regions. DAMON looks at one page of each, so they bound what it costs.
const REGIONS: [u32; 2] = [100, 500];
/// The most regions that are read; more than DAMON was allowed is no answer of its.
const MAX_READ: usize = 4 * REGIONS[1] as usize;
/// How long a process is to be watched before its regions are asked for: five times the aggregation, in which
/// regions come to the size of what is used. The answer itself takes up to one more.
pub const WATCHED: Duration = Duration::from_secs(10);

/// Modules of the kernel that use DAMON by themselves, with nobody beside them. Debian turns the first one on.
const KERNELS_OWN: [&str; 3] = ["damon_stat", "damon_reclaim", "damon_lru_sort"];

/// Where the kernel has the monitors.
const KDAMONDS: &str = "sys/kernel/mm/damon/admin/kdamonds";

/// The kernel's DAMON, and where it is recorded that Instep uses it.
#[derive(Clone, Debug)]
pub struct Damon {
    root: Root,
    state: StateDir,
}

impl Damon {
    /// The DAMON below `root`; nothing is read or changed yet.
    pub fn new(root: Root, state: StateDir) -> Self {
        Self { root, state }
    }

    /// Begins to watch process `pid` that started at `pid_start` (clock ticks since boot).
    ///
    /// # Errors
    /// The kernel has no DAMON for processes; this user may not use it; somebody else does; the process is
    /// gone. Then nothing of it stays.
    pub fn watch(&self, pid: u32, pid_start: u64) -> Result<HeatMonitor, Error> {
        // One of this run that could not be removed.
        undo(&self.root, &self.state)?;
        let files = Files::of(&self.root);
        match files.monitors()? {
            0 => {}
            others => {
                return Err(Error::Unusable {
                    what: format!(
                        "another program uses DAMON ({} is {others})",
                        files.path("nr_kdamonds").display()
                    ),
                    next: "Instep leaves that alone".to_owned(),
                });
            }
        }
        Record::of(pid)?.write(&self.state)?;
        // From here on dropping it removes whatever there is.
        let watch = HeatMonitor { files, root: self.root.clone(), state: self.state.clone() };
        watch.files.set_up(pid)?;
        if thread::key_of(&self.root, pid, Tid(pid))?.pid_start != pid_start {
            return Err(Error::system(
                format!("cannot watch the memory of process {pid}"),
                io::Error::from_raw_os_error(libc::ESRCH),
            ));
        }
        Ok(watch)
    }
}

/// A process that is watched, until this is dropped.
#[derive(Debug)]
pub struct HeatMonitor {
    files: Files,
    root: Root,
    state: StateDir,
}

impl HeatMonitor {
    /// The regions with their accesses, ascending. It waits for the end of an aggregation, two seconds at most.
    ///
    /// # Errors
    /// DAMON does not answer: the process ended, or somebody removed the monitor.
    pub fn regions(&self) -> Result<Vec<Region>, Error> {
        self.files.write("0/state", "update_schemes_tried_regions")?;
        let mut text = String::new();
        for number in 0..MAX_READ {
            let dir = format!("0/contexts/0/schemes/0/tried_regions/{number}");
            let read = |name| self.files.read(&format!("{dir}/{name}"));
            let start = match read("start") {
                Ok(start) => start,
                Err(error) if error.is_gone() => break,
                Err(error) => return Err(error),
            };
            let (end, accesses) = (read("end")?, read("nr_accesses")?);
            let _ = writeln!(text, "{} {} {}", start.trim(), end.trim(), accesses.trim());
        }
        let (regions, bad) = parse_regions(&text);
        if bad > 0 {
            let path = self.files.path("0/contexts/0/schemes/0/tried_regions");
            let first = text.lines().next().unwrap_or_default();
            return Err(Error::parse(&path, 0, first, "the start, end and accesses of a region"));
        }
        Ok(regions)
    }
}

impl Drop for HeatMonitor {
    fn drop(&mut self) {
        // If it cannot be removed, the record stays: the next watch, the end of the run and `instep restore` try
        // again, and tell.
        let _ = undo(&self.root, &self.state);
    }
}

/// The kernel's files, as one user of them.
#[derive(Clone, Debug)]
struct Files {
    root: Root,
}

impl Files {
    fn of(root: &Root) -> Self {
        Self { root: root.clone() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(KDAMONDS).join(name)
    }

    fn read(&self, name: &str) -> Result<String, Error> {
        self.root.read(Path::new(KDAMONDS).join(name))
    }

    /// Writes one value in one call, as sysfs takes it.
    fn write(&self, name: &str, value: &str) -> Result<(), Error> {
        let path = self.path(name);
        let written = std::fs::OpenOptions::new().write(true).open(&path);
        let written =
            written.and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
        written.map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                denied(&path, &source)
            }
            _ => Error::system(format!("cannot write `{value}` to {}", path.display()), source),
        })
    }

    /// How many monitors there are.
    fn monitors(&self) -> Result<u64, Error> {
        let path = self.path("nr_kdamonds");
        let text = match self.read("nr_kdamonds") {
            Ok(text) => text,
            Err(error) if error.is_gone() => {
                return Err(Error::Unusable {
                    what: format!("the kernel has no DAMON: there is no {}", path.display()),
                    next: "a kernel with CONFIG_DAMON_SYSFS and CONFIG_DAMON_VADDR shows which \
                           memory is in use"
                        .to_owned(),
                });
            }
            Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                return Err(denied(&path, &source));
            }
            Err(error) => return Err(error),
        };
        text.trim().parse().map_err(|_| Error::parse(&path, 1, text.trim(), "a number of monitors"))
    }

    /// Makes one monitor of the process and turns it on.
    fn set_up(&self, pid: u32) -> Result<(), Error> {
        self.write("nr_kdamonds", "1")?;
        self.write("0/contexts/nr_contexts", "1")?;
        let context = |name: &str| format!("0/contexts/0/{name}");
        let known = self.read(&context("avail_operations"))?;
        if !known.split_ascii_whitespace().any(|one| one == "vaddr") {
            return Err(Error::Unusable {
                what: "the kernel's DAMON does not watch the memory of processes".to_owned(),
                next: "a kernel with CONFIG_DAMON_VADDR does".to_owned(),
            });
        }
        let micros = |time: Duration| time.as_micros().to_string();
        for (name, value) in [
            ("operations", "vaddr".to_owned()),
            ("monitoring_attrs/intervals/sample_us", micros(SAMPLE)),
            ("monitoring_attrs/intervals/aggr_us", micros(AGGREGATE)),
            ("monitoring_attrs/nr_regions/min", REGIONS[0].to_string()),
            ("monitoring_attrs/nr_regions/max", REGIONS[1].to_string()),
            ("targets/nr_targets", "1".to_owned()),
            ("targets/0/pid_target", pid.to_string()),
            ("schemes/nr_schemes", "1".to_owned()),
            ("schemes/0/action", "stat".to_owned()),
            // Of every size, with any number of accesses, of any age.
            ("schemes/0/access_pattern/sz/max", u64::MAX.to_string()),
            ("schemes/0/access_pattern/nr_accesses/max", u32::MAX.to_string()),
            ("schemes/0/access_pattern/age/max", u32::MAX.to_string()),
        ] {
            self.write(&context(name), &value)?;
        }
        self.write("0/state", "on").map_err(|error| match error {
            Error::System { source, .. } if source.kind() == io::ErrorKind::ResourceBusy => {
                self.busy()
            }
            error => error,
        })
    }

    /// Why there cannot be a monitor now, though nobody made one: the kernel's own users want to be alone.
    fn busy(&self) -> Error {
        let parameter = |module: &&&str| format!("sys/module/{module}/parameters/enabled");
        let is_on =
            |module: &&&str| self.root.read(parameter(module)).is_ok_and(|text| text.trim() == "Y");
        let user = KERNELS_OWN.iter().find(is_on);
        Error::Unusable {
            what: match user {
                Some(module) => format!("the kernel uses DAMON for itself ({module})"),
                None => "the kernel uses DAMON for itself".to_owned(),
            },
            next: match user {
                Some(module) => format!(
                    "Instep leaves that alone; `echo N > /{}` makes room",
                    parameter(&module)
                ),
                None => "Instep leaves that alone".to_owned(),
            },
        }
    }
}

fn denied(path: &Path, source: &io::Error) -> Error {
    Error::Unusable {
        what: format!("DAMON cannot be used: {}: {source}", path.display()),
        next: "run as root, or give the service what /usr/share/doc/instep/examples/hot-memory.conf has"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests;
