//! What an emulated Xen host boots from: Debian's Xen, its tools, and a kernel for dom0 and the
//! domains, unpacked into the cache and found there the next time.
//!
//! ```text
//! QEMU ──multiboot──> Xen ──> dom0: Linux, the lab's init, xenstored, xenconsoled, the channel
//!                      └────> PV domains: the same Linux, the lab's guest init
//! ```
//! It knows nothing of scenarios; what goes into dom0's initramfs is written by `image.rs`.

use super::kernel::{HostKernel, only_name, unpack_modules};
use super::machine::{Clock, HostMachine, XenScheduler};
use crate::apt::Apt;
use crate::cache::Cache;
use crate::command;
use crate::error::Error;
use crate::image;
use crate::stop::Stop;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The suite whose Xen is used.
pub const SUITE: &str = "bookworm";
/// Its version of Xen, which is in the names of packages and files.
const VERSION: &str = "4.17";

/// The packages of Xen, of its tools and of what these need beyond this machine's libraries. `xz` unpacks the kernel.
const PACKAGES: [&str; 15] = [
    "xen-hypervisor-4.17-amd64",
    "xen-utils-4.17",
    "libxenmisc4.17",
    "xenstore-utils",
    "libxencall1",
    "libxendevicemodel1",
    "libxenevtchn1",
    "libxenforeignmemory1",
    "libxengnttab1",
    "libxenhypfs1",
    "libxenstore4",
    "libxentoolcore1",
    "libxentoollog1",
    "libyajl2",
    "xz-utils",
];

/// The meta package that names the newest kernel; the one for clouds cannot be dom0.
const META: &str = "linux-image-amd64";

/// The modules that dom0 loads, in this order: Xen's devices, and the lab's port.
const MODULES: [&str; 11] = [
    "xen-evtchn",
    "xen-privcmd",
    "xenfs",
    "xen-gntdev",
    "xen-gntalloc",
    "virtio-ring",
    "virtio",
    "virtio-pci-modern-dev",
    "virtio-pci-legacy-dev",
    "virtio-pci",
    "virtio-console",
];

/// The programs of dom0: what it begins with, and what operators use.
const TOOLS: [&str; 7] =
    ["xl", "xenstored", "xen-init-dom0", "xenconsoled", "xenconsole", "xentrace", "xentop"];
const STORE_TOOLS: [&str; 4] = ["xenstore", "xenstore-ls", "xenstore-read", "xenstore-write"];

/// Where Debian has libraries, in a package and in dom0.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Xen's own command line without a scheduler. The memory of dom0 is that of [`DOM0_MIB`]; a reboot ends QEMU.
const COMMAND_LINE: &str = "com1=115200,8n1 console=com1 loglvl=warning guest_loglvl=none \
                                dom0_mem=1G,max:1G dom0_max_vcpus=2 edid=no bootscrub=0";

/// The command line of dom0's kernel; `machine.rs` tells why each word is there. It has no comma, which would end it.
pub const DOM0_COMMAND_LINE: &str = "console=hvc0 rdinit=/init quiet panic=-1 mitigations=off audit=0 \
                                     apparmor=0 nowatchdog cryptomgr.notests init_on_alloc=0";

/// The memory of dom0 in MiB, and what Xen needs beside it while it loads dom0.
const DOM0_MIB: u64 = 1024;
const BOOT_MIB: u64 = 512;

/// Where Xen is in the cache, each with its kernel.
const CACHED: &str = "xen";

/// How the kernel's payload begins that xz can unpack, and how many bytes of size the kernel's build appends.
const XZ: &[u8] = b"\xfd7zXZ\0";
const APPENDED: usize = 4;
const UNPACKS: Duration = Duration::from_secs(120);

/// Xen and its tools, as unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xen {
    /// The hypervisor, as multiboot loads it.
    pub hypervisor: PathBuf,
    /// The programs of dom0.
    pub tools: Vec<PathBuf>,
    /// The directory of Xen's libraries.
    pub libraries: PathBuf,
}

impl Xen {
    /// Where a file of dom0 lies inside, if it is one of Xen's libraries.
    pub fn library_inside(&self, file: &Path) -> Option<String> {
        let name = file.strip_prefix(&self.libraries).ok()?;
        Some(format!("{LIBRARIES}/{}", name.display()))
    }

    /// The library by which Instep sets what no command of `xl` does; it loads it at run time.
    pub fn toolstack(&self) -> PathBuf {
        self.libraries.join(format!("libxenlight.so.{VERSION}"))
    }
}

/// Checks what only a Xen host cannot be.
///
/// # Errors
/// A message that names the wrong value.
pub fn check(machine: &HostMachine) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("host: hypervisor = \"xen\" {what}"));
    if machine.threads != 1 {
        return wrong("has threads = 1 only: QEMU shows Xen no SMT");
    }
    if machine.cores < 2 {
        return wrong("has cores = 2 or more: Xen reports no topology of sockets with one core");
    }
    if machine.clock != Clock::Real {
        return wrong("has the real clock only: leave out `clock`");
    }
    if machine.numa_balancing {
        return wrong("has no numa_balancing: dom0 sees no nodes");
    }
    let least = DOM0_MIB + BOOT_MIB;
    if machine.memory_mib < least {
        return Err(format!(
            "host: {} MiB of memory; Xen and dom0 need {least} MiB",
            machine.memory_mib
        ));
    }
    Ok(())
}

/// Xen's own command line.
pub fn command_line(machine: &HostMachine) -> String {
    let scheduler = machine.scheduler.map_or("", |scheduler| match scheduler {
        XenScheduler::Credit => " sched=credit",
        XenScheduler::Credit2 => " sched=credit2",
    });
    format!("{COMMAND_LINE}{scheduler}")
}

/// The memory in MiB that a machine has for domains.
pub fn memory_for_domains(machine: &HostMachine) -> u64 {
    machine.memory_mib.saturating_sub(DOM0_MIB + BOOT_MIB)
}

/// The cached Xen with its kernel, or one fetched by apt.
///
/// # Errors
/// When it cannot be fetched: with what to run.
pub fn obtain(cache: &Cache, stop: &Stop, say: &mut dyn FnMut(&str)) -> Result<HostKernel, Error> {
    if let Some(found) = cached(cache) {
        return Ok(found);
    }
    let busybox = image::busybox(cache, stop, say)?;
    let _lock = cache.lock(CACHED, stop)?;
    if let Some(found) = cached(cache) {
        return Ok(found);
    }
    cache.fill_named(CACHED, |into| fetch(into, &busybox, stop, say))?;
    cached(cache).ok_or_else(|| lacking("a file that the lab boots from"))
}

/// The newest Xen in the cache, without fetching any.
pub fn cached(cache: &Cache) -> Option<HostKernel> {
    let names = cache.newest_first(CACHED);
    names.iter().find_map(|name| in_directory(&cache.path(CACHED).join(name), name))
}

/// What [`fetch`] left in a directory; `None` when a file is missing.
fn in_directory(dir: &Path, release: &str) -> Option<HostKernel> {
    let existing = |path: PathBuf| path.is_file().then_some(path);
    let tools = TOOLS.iter().chain(&STORE_TOOLS).map(|name| existing(dir.join("bin").join(name)));
    let modules = MODULES.iter().map(|name| existing(dir.join(format!("{name}.ko"))));
    let xen = Xen {
        hypervisor: existing(dir.join("xen"))?,
        tools: tools.collect::<Option<_>>()?,
        libraries: dir.join("lib"),
    };
    existing(xen.toolstack())?;
    Some(HostKernel {
        release: release.to_owned(),
        image: existing(dir.join("vmlinux"))?,
        config: None,
        modules: modules.collect::<Option<_>>()?,
        xen: Some(xen),
    })
}

/// Fetches and unpacks into `into`: `xen`, `vmlinux`, the modules, `bin` and `lib`; returns the kernel's release.
fn fetch(
    into: &Path,
    busybox: &Path,
    stop: &Stop,
    say: &mut dyn FnMut(&str),
) -> Result<String, Error> {
    let (private, all) = (into.join("apt"), into.join("all"));
    for dir in [&private, &all, &into.join("bin")] {
        fs::create_dir(dir).map_err(|error| Error::io("make", dir, error))?;
    }
    let mut apt = Apt::of_suite(SUITE, &private, stop)?;
    let architecture = apt.architecture()?;
    if architecture != "amd64" {
        let what = format!("no Xen host is known for {architecture}");
        return Err(Error::missing(what, "leave out hypervisor = \"xen\""));
    }
    apt.update(say)?;
    let mut packages: Vec<String> = PACKAGES.map(str::to_owned).to_vec();
    let images = apt.depends(META)?.unwrap_or_default();
    let image = images.into_iter().find(|name| name.starts_with("linux-image-"));
    packages.push(image.ok_or_else(|| {
        let what = format!("the suite {SUITE} of this machine's mirror has no {META}, or the mirror cannot be reached");
        Error::missing(what, "run: apt-get update, or leave out hypervisor = \"xen\"")
    })?);
    apt.unpack(&packages, &all, say)?;

    let release = only_name(&all.join("lib/modules"))?;
    unpack_modules(&all.join("lib/modules").join(&release), into, &MODULES, busybox, stop)?;
    let packed = all.join(format!("boot/xen-{VERSION}-amd64.gz"));
    let made = |name: &str| {
        let file = into.join(name);
        File::create(&file).map_err(|error| Error::io("make", file, error))
    };
    command::into_file(Command::new(busybox).arg("zcat").arg(packed), made("xen")?, UNPACKS, stop)?;
    let payload = into.join("payload");
    cut_payload(&all.join(format!("boot/vmlinuz-{release}")), &payload)?;
    let mut xz = Command::new(all.join("usr/bin/xz"));
    command::into_file(xz.arg("-dc").arg(&payload), made("vmlinux")?, UNPACKS, stop)?;

    let keep = |from: PathBuf, to: PathBuf| {
        fs::rename(&from, to).map_err(|error| Error::io("move", from, error))
    };
    for name in TOOLS {
        keep(all.join(format!("usr/lib/xen-{VERSION}/bin/{name}")), into.join("bin").join(name))?;
    }
    for name in STORE_TOOLS {
        // Links to the first: each is a copy, which the name is the command of.
        let (from, to) = (all.join("usr/bin").join(name), into.join("bin").join(name));
        fs::copy(&from, to).map_err(|error| Error::io("copy", from, error))?;
    }
    keep(all.join(LIBRARIES), into.join("lib"))?;
    fs::remove_file(&payload).map_err(|error| Error::io("remove", payload, error))?;
    for dir in [&private, &all] {
        fs::remove_dir_all(dir).map_err(|error| Error::io("remove", dir, error))?;
    }
    Ok(release)
}

/// Writes what xz can unpack of a bzImage.
fn cut_payload(kernel: &Path, target: &Path) -> Result<(), Error> {
    let bytes = fs::read(kernel).map_err(|error| Error::io("read", kernel, error))?;
    let payload = super::lean::payload(&bytes).filter(|payload| payload.starts_with(XZ));
    let payload = payload.and_then(|payload| payload.get(..payload.len().checked_sub(APPENDED)?));
    let payload = payload.ok_or_else(|| lacking("a kernel that is compressed by xz"))?;
    fs::write(target, payload).map_err(|error| Error::io("write", target, error))
}

fn lacking(what: &str) -> Error {
    let what = format!("the packages of Xen {VERSION} of {SUITE} lack {what}");
    Error::missing(what, "leave out hypervisor = \"xen\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of the cache as [`fetch`] leaves it.
    fn fill(dir: &Path) {
        let modules = MODULES.iter().map(|name| format!("{name}.ko"));
        let tools = TOOLS.iter().chain(&STORE_TOOLS).map(|name| format!("bin/{name}"));
        let others = ["xen", "vmlinux", "lib/libxenlight.so.4.17"].map(str::to_owned);
        for name in modules.chain(tools).chain(others) {
            let file = dir.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
    }

    #[test]
    fn a_cached_xen_is_whole_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        assert_eq!(cached(&cache), None);
        let own = cache.path(CACHED).join("6.1.0-9-amd64");
        fill(&own);
        let found = cached(&cache).unwrap();
        assert_eq!((found.release.as_str(), found.modules.len()), ("6.1.0-9-amd64", MODULES.len()));
        let xen = found.xen.unwrap();
        let inside = xen.library_inside(&xen.toolstack());
        assert_eq!(inside.as_deref(), Some("usr/lib/x86_64-linux-gnu/libxenlight.so.4.17"));
        assert_eq!(xen.library_inside(Path::new("/usr/lib/libc.so.6")), None);
        for lacking in ["xen", "vmlinux", "bin/xl", "virtio-console.ko", "lib/libxenlight.so.4.17"]
        {
            fs::remove_file(own.join(lacking)).unwrap();
            assert_eq!(cached(&cache), None, "{lacking}");
            fs::write(own.join(lacking), "").unwrap();
        }
    }

    #[test]
    fn the_payload_of_a_kernel_is_what_xz_can_unpack() {
        let dir = tempfile::tempdir().unwrap();
        let (kernel, target) = (dir.path().join("vmlinuz"), dir.path().join("payload"));
        let packed = [XZ, b"packed"].concat();
        let image = |payload: &[u8]| {
            let mut image = vec![0; 1024 + 16];
            image[0x1f1] = 1;
            image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
            image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
            [&image, payload, b"behind"].concat()
        };
        fs::write(&kernel, image(&[&packed[..], b"size"].concat())).unwrap();
        cut_payload(&kernel, &target).unwrap();
        assert_eq!(fs::read(&target).unwrap(), packed);
        for other in [image(b"\x28\xb5\x2f\xfdzstd"), image(b""), Vec::new()] {
            fs::write(&kernel, other).unwrap();
            let error = cut_payload(&kernel, &target).unwrap_err();
            assert!(error.is_lacking(), "{error}");
        }
    }

    #[test]
    fn command_lines_have_no_comma_where_qemu_splits_them() {
        assert!(!DOM0_COMMAND_LINE.contains(','));
        assert!(COMMAND_LINE.contains(&format!("dom0_mem={}G", DOM0_MIB >> 10)));
    }
}
