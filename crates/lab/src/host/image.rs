//! The emulated host's initramfs: busybox, the modules, QEMU or Xen's tools for the guests, what the
//! guests boot from, Instep, and any further programs. That of a Xen host is dom0's.
//!
//! Two archives one after the other: the large one, which changes with the machine's packages
//! only, is kept in the cache; the small one holds what changes with every build and scenario.
//! Neither is compressed: under software emulation unpacking costs more than reading.

use crate::cache::Cache;
use crate::cpio::{Archive, Node};
use crate::error::Error;
use crate::host::emulator::{Emulator, QEMU};
use crate::host::kernel::HostKernel;
use crate::host::lean;
use crate::host::programs::{self, Packed};
use crate::host::xen::Xen;
use crate::image::{IMAGES, fingerprint};
use crate::stop::Stop;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The host's first program: what is done once, and then the channel's other end.
const INIT: &str = include_str!("init.sh");
pub(super) const CHANNEL: &str = include_str!("channel.sh");
const GUEST_INIT: &str = include_str!("guest.sh");
/// What the first program of dom0 does beside.
const XEN: &str = include_str!("xen.sh");
/// Domains get no memory of dom0, which has its share from its boot on.
const XL_CONF: &str = "autoballoon=\"off\"\n";
/// A library that glibc loads when a program ends one of its threads, as `xl` does; `ldd` does not name it.
const THREADS_END: &str = "libgcc_s.so.1";

/// What QEMU's `microvm` machine reads, and where a machine keeps it.
const FIRMWARE: [&str; 4] = ["bios-microvm.bin", "linuxboot_dma.bin", "kvmvapic.bin", "pvh.bin"];
const FIRMWARE_DIRS: [&str; 3] = ["/usr/share/qemu", "/usr/local/share/qemu", "/usr/share/seabios"];

/// What goes into a host beside what is always there.
#[derive(Clone, Debug, Default)]
pub struct Extra {
    /// Programs of this machine: the file and the name inside.
    pub programs: Vec<(PathBuf, String)>,
    /// The guest workload `instep-load`, a static program, when there is one.
    pub load: Option<PathBuf>,
    /// For guests that need programs of this machine: the guest's name, files and names inside.
    pub guests: Vec<(String, Vec<(PathBuf, String)>)>,
    /// A shell script that the host runs to its end before it answers.
    pub begin: Option<String>,
}

/// The guests' kernel in the host: the host's own, unpacked where QEMU can enter it.
pub const GUEST_KERNEL: &str = "lab/kernel";

/// The guests' initramfs in the host: one for those that need no programs, and one for each that
/// does.
pub fn guest_archive(name: Option<&str>) -> String {
    name.map_or("lab/guest.cpio".to_owned(), |name| format!("lab/guest-{name}.cpio"))
}

/// Writes the host's initramfs to `target`.
///
/// # Errors
/// When something it holds is missing, or a file cannot be read or written.
pub fn write(
    target: &Path,
    cache: &Cache,
    emulator: &Emulator,
    kernel: &HostKernel,
    busybox: &Path,
    extra: &Extra,
    stop: &Stop,
) -> Result<(), Error> {
    let base = base(cache, emulator, kernel, busybox, stop)?;
    let mut out = File::create(target).map_err(|error| Error::io("make", target, error))?;
    let mut large = File::open(&base).map_err(|error| Error::io("read", &base, error))?;
    let copied = io::copy(&mut large, &mut out);
    copied.map_err(|error| Error::io("write", target, error))?;
    let mut files = BTreeMap::new();
    put(&mut files, &extra.programs, stop)?;
    for content in files.values_mut() {
        content.made_by(lean::loaded);
    }
    if let Some(load) = &extra.load {
        files.insert("usr/bin/instep-load".to_owned(), Content::File(load.clone()));
    }
    if let Some(script) = &extra.begin {
        files.insert("lab/begin".to_owned(), Content::Bytes(script.clone().into_bytes()));
    }
    files.insert(guest_archive(None), Content::Bytes(guest(busybox, extra, &[], stop)?));
    for (name, programs) in &extra.guests {
        let archive = guest(busybox, extra, programs, stop)?;
        files.insert(guest_archive(Some(name)), Content::Bytes(archive));
    }
    let small = archive(&files)?;
    out.write_all(&small).map_err(|error| Error::io("write", target, error))
}

/// Adds programs and their libraries.
fn put(
    files: &mut BTreeMap<String, Content>,
    programs: &[(PathBuf, String)],
    stop: &Stop,
) -> Result<(), Error> {
    for (file, name) in programs {
        for packed in programs::with_libraries(file, name, None, stop)? {
            files.insert(packed.inside, Content::File(packed.file));
        }
    }
    Ok(())
}

/// The initramfs of guests that need these programs.
fn guest(
    busybox: &Path,
    extra: &Extra,
    programs: &[(PathBuf, String)],
    stop: &Stop,
) -> Result<Vec<u8>, Error> {
    let mut files = BTreeMap::new();
    put(&mut files, programs, stop)?;
    files.insert("bin/busybox".to_owned(), Content::File(busybox.to_owned()));
    files.insert("init".to_owned(), Content::Bytes(GUEST_INIT.as_bytes().to_vec()));
    if let Some(load) = &extra.load {
        files.insert("bin/instep-load".to_owned(), Content::File(load.clone()));
    }
    archive(&files)
}

/// The large archive in the cache, built when one of its files changed.
fn base(
    cache: &Cache,
    emulator: &Emulator,
    kernel: &HostKernel,
    busybox: &Path,
    stop: &Stop,
) -> Result<PathBuf, Error> {
    let mut files = of_kernel(kernel)?;
    files.insert("bin/busybox".to_owned(), Content::File(busybox.to_owned()));
    match &kernel.xen {
        Some(xen) => put_xen(&mut files, xen, stop)?,
        None => put_emulator(&mut files, emulator, stop)?,
    }
    let init = [INIT, CHANNEL].concat();
    files.insert("init".to_owned(), Content::Bytes(init.into_bytes()));
    let entry = format!("{IMAGES}/host-{:016x}", fingerprint(identity(&files)?.as_bytes()));
    let path = cache.path(&entry).join("base.cpio");
    if !path.exists() {
        let _lock = cache.lock(IMAGES, stop)?;
        cache.fill(&entry, |into| {
            let file = into.join("base.cpio");
            fs::write(&file, archive(&files)?).map_err(|error| Error::io("write", file, error))
        })?;
    }
    Ok(path)
}

/// Adds what runs guests by KVM.
fn put_emulator(
    files: &mut BTreeMap<String, Content>,
    emulator: &Emulator,
    stop: &Stop,
) -> Result<(), Error> {
    for Packed { inside, file } in programs::with_libraries(&emulator.program, QEMU, None, stop)? {
        files.insert(inside, Content::File(file));
    }
    for name in FIRMWARE {
        let inside = format!("usr/share/qemu/{name}");
        files.insert(inside, Content::File(firmware(name, &emulator.data)?));
    }
    Ok(())
}

/// Adds what runs guests by Xen, with its own libraries and this machine's.
fn put_xen(files: &mut BTreeMap<String, Content>, xen: &Xen, stop: &Stop) -> Result<(), Error> {
    for (inside, text) in [("lab/xen.sh", XEN), ("etc/xen/xl.conf", XL_CONF)] {
        files.insert(inside.to_owned(), Content::Bytes(text.as_bytes().to_vec()));
    }
    for tool in &xen.tools {
        let name = tool.file_name().unwrap_or_default().to_string_lossy();
        for packed in programs::with_libraries(tool, &name, Some(&xen.libraries), stop)? {
            let inside = xen.library_inside(&packed.file).unwrap_or(packed.inside);
            files.insert(inside, Content::File(packed.file));
        }
    }
    let threads_end = programs::library(THREADS_END)?;
    let inside = threads_end.to_string_lossy().trim_start_matches('/').to_owned();
    files.insert(inside, Content::File(threads_end));
    Ok(())
}

/// A kernel's files. Modules of a kernel of the user's own are unpacked anew for every run, so that
/// only what they hold tells them apart.
fn of_kernel(kernel: &HostKernel) -> Result<BTreeMap<String, Content>, Error> {
    let mut files = BTreeMap::new();
    let image = Content::Lean(kernel.image.clone(), lean::kernel);
    files.insert(GUEST_KERNEL.to_owned(), image);
    for module in &kernel.modules {
        if let Some(name) = module.file_name() {
            let bytes = fs::read(module).map_err(|error| Error::io("read", module, error))?;
            files.insert(format!("lab/{}", name.to_string_lossy()), Content::Bytes(bytes));
        }
    }
    if let Some(config) = &kernel.config {
        files.insert("boot/config".to_owned(), Content::File(config.clone()));
    }
    Ok(files)
}

/// The firmware that an emulator does not find on this machine, with what to do; `None` when all of it is.
pub fn lacks_firmware(emulator: &Emulator) -> Option<Error> {
    FIRMWARE.iter().find_map(|name| firmware(name, &emulator.data).err())
}

fn firmware(name: &str, own: &[PathBuf]) -> Result<PathBuf, Error> {
    let dirs = own.iter().map(PathBuf::as_path).chain(FIRMWARE_DIRS.map(Path::new));
    let found = dirs.map(|dir| dir.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let what = format!("QEMU's firmware {name} is not in {}", FIRMWARE_DIRS.join(", "));
        Error::missing(what, "install it: apt-get install qemu-system-x86")
    })
}

/// What a file of the image holds.
#[derive(Clone, Debug)]
enum Content {
    File(PathBuf),
    /// What can be made of a file, or the file as it is.
    Lean(PathBuf, fn(&[u8]) -> Option<Vec<u8>>),
    Bytes(Vec<u8>),
}

impl Content {
    /// Lets something be made of a file.
    fn made_by(&mut self, make: fn(&[u8]) -> Option<Vec<u8>>) {
        if let Content::File(path) = self {
            *self = Content::Lean(std::mem::take(path), make);
        }
    }

    fn bytes(&self) -> Result<Cow<'_, [u8]>, Error> {
        let read = |path| fs::read(path).map_err(|error| Error::io("read", path, error));
        Ok(match self {
            Content::Bytes(bytes) => Cow::from(bytes),
            Content::File(path) => Cow::from(read(path)?),
            Content::Lean(path, made) => {
                let whole = read(path)?;
                let lean = made(&whole).unwrap_or_else(|| {
                    tracing::debug!("{} is taken along unchanged", path.display());
                    whole
                });
                Cow::from(lean)
            }
        })
    }
}

/// A text that changes when one of the files does: by size and modification time, since reading
/// all of them costs more than booting is worth.
fn identity(files: &BTreeMap<String, Content>) -> Result<String, Error> {
    let mut text = String::new();
    for (inside, content) in files {
        let line = match content {
            Content::File(path) | Content::Lean(path, _) => {
                let how = matches!(content, Content::Lean(..)).then_some(lean::VERSION);
                let meta = fs::metadata(path).map_err(|error| Error::io("read", path, error))?;
                let (size, time) = (meta.size(), (meta.mtime(), meta.mtime_nsec()));
                format!("{inside} {} {size} {time:?} {how:?}\n", path.display())
            }
            Content::Bytes(bytes) => format!("{inside} {:016x}\n", fingerprint(bytes)),
        };
        text.push_str(&line);
    }
    Ok(text)
}

/// The archive of these files, with the directories they need.
fn archive(files: &BTreeMap<String, Content>) -> Result<Vec<u8>, Error> {
    let mut dirs = BTreeSet::from(["dev".to_owned()]);
    for inside in files.keys() {
        let mut dir = Path::new(inside).parent();
        while let Some(path) = dir.filter(|path| !path.as_os_str().is_empty()) {
            dirs.insert(path.to_string_lossy().into_owned());
            dir = path.parent();
        }
    }
    let mut archive = Archive::new();
    for dir in &dirs {
        archive = archive.add(dir, 0o755, &Node::Directory);
    }
    archive = archive.add("dev/console", 0o600, &Node::Device { major: 5, minor: 1 }).add(
        "dev/null",
        0o666,
        &Node::Device { major: 1, minor: 3 },
    );
    for (inside, content) in files {
        archive = archive.add(inside, 0o755, &Node::File(&content.bytes()?));
    }
    Ok(archive.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_before_what_they_hold() {
        let files = BTreeMap::from([("a/b/c".to_owned(), Content::Bytes(b"deep".to_vec()))]);
        let bytes = archive(&files).unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let at = |name: &str| text.find(&format!("{name}\0")).unwrap();
        assert!(at("a") < at("a/b") && at("a/b") < at("a/b/c"));
    }

    #[test]
    fn modules_that_are_unpacked_anew_make_no_other_image() {
        let vmlinuz = tempfile::NamedTempFile::new().unwrap();
        let unpacked = |content: &str| {
            let dir = tempfile::tempdir().unwrap();
            let module = dir.path().join("kvm.ko");
            fs::write(&module, content).unwrap();
            let kernel = HostKernel {
                release: "7".to_owned(),
                image: vmlinuz.path().to_owned(),
                config: None,
                modules: vec![module],
                xen: None,
            };
            identity(&of_kernel(&kernel).unwrap()).unwrap()
        };
        assert_eq!(unpacked("one"), unpacked("one"));
        assert_ne!(unpacked("one"), unpacked("two"));
    }

    #[test]
    fn unknown_file_is_copied_unchanged_with_an_identity_of_its_own() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "a kernel of another kind").unwrap();
        let mut content = Content::File(file.path().to_owned());
        let of = |content: &Content| {
            identity(&BTreeMap::from([("k".to_owned(), content.clone())])).unwrap()
        };
        let before = of(&content);
        content.made_by(lean::kernel);
        assert_eq!(&content.bytes().unwrap()[..], b"a kernel of another kind");
        assert_ne!(of(&content), before);
    }

    #[test]
    fn a_changed_file_makes_another_image() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let files = BTreeMap::from([("f".to_owned(), Content::File(path.clone()))]);
        fs::write(&path, "one").unwrap();
        let before = identity(&files).unwrap();
        fs::write(&path, "three").unwrap();
        assert_ne!(before, identity(&files).unwrap());
    }
}
