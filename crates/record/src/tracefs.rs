//! tracefs as a source, where BPF is not allowed: an instance of its own, of the kernel's ring
//! buffers, read page by page without waiting.
//!
//! The instance is removed when the recording ends; what a killed recorder left behind is removed
//! by the next one. kvm_entry is left out: here every entry would be a record; ends of
//! halts are taken where KVM is loaded. A thread that is
//! born does not come with its process; the session looks that up.

use crate::error::Error;
use crate::source::{Source, Wanted};
use instep_core::units::CpuId;
use instep_trace::event::Event;
use instep_trace::live::Pages;
use instep_trace::rec::Lost;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const EVENTS: [&str; 8] = [
    "sched/sched_switch",
    "sched/sched_waking",
    "sched/sched_wakeup",
    "sched/sched_wakeup_new",
    "sched/sched_migrate_task",
    "sched/sched_process_fork",
    "sched/sched_process_exit",
    "task/task_rename",
];
/// Recorded where KVM is there.
const OPTIONAL: [&str; 1] = ["kvm/kvm_vcpu_wakeup"];
/// Pages of one CPU that are read before the next CPU's turn.
const AT_ONCE: usize = 256;
const PREFIX: &str = "instep-";

pub(crate) struct Tracefs {
    // Dropped in order: an instance with open files cannot be removed.
    cpus: Vec<(CpuId, File)>,
    instance: Instance,
    pages: Pages,
    page: Vec<u8>,
}

impl Tracefs {
    pub(crate) fn start(wanted: &Wanted) -> Result<Self, String> {
        let root = PLACES.iter().map(Path::new).find(|place| place.join("events").is_dir());
        let root = root.ok_or(
            "it is not mounted, or not readable for this user (root: mount -t tracefs nodev \
             /sys/kernel/tracing)",
        )?;
        remove_left_behind(&root.join("instances"));
        let instance = Instance::make(root)?;
        instance.put("tracing_on", "0")?;
        instance.put("trace_clock", "mono")?;
        let kib = (wanted.buffer / wanted.cpus.len().max(1) as u64 / 1024).clamp(64, 1 << 20);
        instance.put("buffer_size_kb", &kib.to_string())?;
        let mut formats = Vec::new();
        for event in EVENTS {
            formats.push(instance.get(&format!("events/{event}/format"))?);
        }
        let there: Vec<&str> = OPTIONAL.into_iter().filter(|event| instance.has(event)).collect();
        for event in &there {
            formats.push(instance.get(&format!("events/{event}/format"))?);
        }
        // Instances have no header_page of their own; the layout is that of the kernel.
        let header = root.join("events/header_page");
        let header = fs::read(&header).map_err(|error| file_error(&header, &error))?;
        let pages = Pages::new(&header, &formats)?;
        let mut cpus = Vec::new();
        for cpu in &wanted.cpus {
            let path = instance.0.join(format!("per_cpu/cpu{}/trace_pipe_raw", cpu.0));
            let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
            cpus.push((*cpu, file.map_err(|error| file_error(&path, &error))?));
        }
        for event in EVENTS.into_iter().chain(there) {
            instance.put(&format!("events/{event}/enable"), "1")?;
        }
        instance.put("tracing_on", "1")?;
        // Sub-buffers are pages unless somebody made them larger (Linux 6.8 and later).
        let kib = instance.get("buffer_subbuf_size_kb").ok();
        let kib = kib.and_then(|text| String::from_utf8_lossy(&text).trim().parse().ok());
        let page = vec![0; kib.unwrap_or(4).clamp(4, 1024) * 1024];
        Ok(Tracefs { cpus, instance, pages, page })
    }
}

impl Source for Tracefs {
    fn name(&self) -> &'static str {
        "tracefs"
    }

    fn drain(&mut self, out: &mut Vec<Event>) -> Result<bool, Error> {
        let mut is_more = false;
        for (cpu, file) in &mut self.cpus {
            for turn in 0.. {
                if turn == AT_ONCE {
                    is_more = true;
                    break;
                }
                match file.read(&mut self.page) {
                    Ok(0) => break,
                    Ok(got) => self.pages.read(*cpu, &self.page[..got], out),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        return Err(Error::Source(format!(
                            "tracefs: cannot read CPU {cpu}'s buffer: {error}"
                        )));
                    }
                }
            }
        }
        Ok(is_more)
    }

    fn tells_processes(&self) -> bool {
        false
    }

    fn stop(&mut self) {
        if let Err(why) = self.instance.put("tracing_on", "0") {
            tracing::warn!("{why}");
        }
    }

    fn lost(&mut self) -> Vec<Lost> {
        let one = |place: &str, events| Lost { place: place.to_owned(), events };
        vec![one("ring", self.pages.lost()), one("damaged", self.pages.damaged())]
    }

    fn kernel_cost_ns(&self) -> Result<u64, String> {
        Err("the kernel does not count what tracefs costs".to_owned())
    }

    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Ring buffers and settings of one's own; removed when dropped.
struct Instance(PathBuf);

impl Instance {
    fn make(root: &Path) -> Result<Self, String> {
        let path = root.join("instances").join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| file_error(&path, &error))?;
        Ok(Instance(path))
    }

    fn put(&self, file: &str, value: &str) -> Result<(), String> {
        let path = self.0.join(file);
        fs::write(&path, value).map_err(|error| file_error(&path, &error))
    }

    fn has(&self, event: &str) -> bool {
        self.0.join("events").join(event).join("format").exists()
    }

    fn get(&self, file: &str) -> Result<Vec<u8>, String> {
        let path = self.0.join(file);
        fs::read(&path).map_err(|error| file_error(&path, &error))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            tracing::warn!("{}", file_error(&self.0, &error));
        }
    }
}

fn file_error(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Removes instances whose recorder is gone.
fn remove_left_behind(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
            && let Err(error) = fs::remove_dir(entry.path())
        {
            tracing::warn!("{}", file_error(&entry.path(), &error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_instances_of_ended_recorders_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let own = format!("{PREFIX}{}", std::process::id());
        // No process has this number: it is beyond PID_MAX_LIMIT.
        for name in [own.as_str(), "instep-4200000", "other-4200000", "instep-x"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        remove_left_behind(dir.path());
        let mut left: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let mut expected = vec![own, "instep-x".to_owned(), "other-4200000".to_owned()];
        expected.sort();
        assert_eq!(left, expected);
    }
}
