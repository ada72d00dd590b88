//! The emulated host's kernel: Debian's newest of a suite whose kernels have sched_ext, with the
//! KVM modules it loads, unpacked into the cache and found there the next time.
//!
//! A kernel of one's own does as well: `Config::kernel` names a bzImage and, where KVM is not
//! built in, a directory with its modules. It does not look into the kernel's configuration; what
//! a kernel lacks shows when it boots.

use super::xen::Xen;
use crate::apt::Apt;
use crate::cache::{Cache, by_version};
use crate::command;
use crate::error::Error;
use crate::image;
use crate::stop::Stop;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The suite whose kernels are used. `sid` always has the newest; older suites' kernels lack
/// sched_ext or have a broken BTF.
pub const SUITE: &str = "sid";

/// The modules the host loads, in this order.
pub const MODULES: [&str; 4] = ["irqbypass", "kvm", "kvm-amd", "kvm-intel"];

/// The meta package that names the newest kernel.
const META: &str = "linux-image-cloud-amd64";

/// The prefixes of what holds the image, the modules and the configuration.
const HOLDERS: [&str; 3] = ["linux-binary-", "linux-modules-", "linux-base-"];

/// A kernel to boot a host from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKernel {
    /// Its release (`uname -r`), or the file's name where that is not known.
    pub release: String,
    /// The image (bzImage).
    pub image: PathBuf,
    /// Its configuration, where there is one.
    pub config: Option<PathBuf>,
    /// Its modules, unpacked, in the order of loading.
    pub modules: Vec<PathBuf>,
    /// Xen and its tools, where this kernel is that of dom0.
    pub xen: Option<Xen>,
}

/// The suite whose mirrors keep kernels of older series.
const SERIES_SUITE: &str = "trixie-backports";

/// A series of kernels, such as `6.18`; [`obtain`] fetches the newest of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series(String);

impl Series {
    /// The series that a path names which is no file: two numbers with a point between.
    pub fn named(path: &Path) -> Option<Self> {
        let name = path.to_str().filter(|_| !path.exists())?;
        let (major, minor) = name.split_once('.')?;
        let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        (number(major) && number(minor)).then(|| Self(name.to_owned()))
    }

    /// Its newest image among the names of packages.
    fn newest(&self, names: &[String]) -> Option<String> {
        let of_it = |name: &&String| {
            let release = name.strip_prefix("linux-image-")?.strip_prefix(&self.0)?;
            (release.starts_with('.') && release.ends_with("-cloud-amd64")).then_some(())
        };
        names.iter().filter(|name| of_it(name).is_some()).max_by(|a, b| by_version(a, b)).cloned()
    }
}

/// The cached kernel, or one fetched by apt: the newest, or the newest of a series.
///
/// # Errors
/// When it cannot be fetched: with what to run.
pub fn obtain(
    cache: &Cache,
    series: Option<&Series>,
    stop: &Stop,
    say: &mut dyn FnMut(&str),
) -> Result<HostKernel, Error> {
    let fetch = |into: &Path, busybox: &Path, stop: &Stop, say: Say| {
        fetch(into, series, busybox, stop, say)
    };
    obtain_with(cache, &kernels(series), stop, say, image::busybox, fetch)
}

type Say<'a> = &'a mut dyn FnMut(&str);

/// As [`obtain`], with the ways to get a busybox and to fetch a kernel by it into a directory.
fn obtain_with(
    cache: &Cache,
    kernels: &str,
    stop: &Stop,
    say: Say,
    busybox: impl FnOnce(&Cache, &Stop, Say) -> Result<PathBuf, Error>,
    fetch: impl FnOnce(&Path, &Path, &Stop, Say) -> Result<(), Error>,
) -> Result<HostKernel, Error> {
    if let Some(found) = cached_in(cache, kernels) {
        return Ok(found);
    }
    // Before the lock: fetching a busybox takes the same one.
    let busybox = busybox(cache, stop, say)?;
    let _lock = cache.lock(kernels, stop)?;
    if let Some(found) = cached_in(cache, kernels) {
        return Ok(found);
    }
    cache.fill_named(kernels, |into| {
        fetch(into, &busybox, stop, say)?;
        let file = into.join("release");
        let release = fs::read_to_string(&file).map_err(|error| Error::io("read", file, error))?;
        Ok(release.trim().to_owned())
    })?;
    cached_in(cache, kernels).ok_or_else(|| {
        let what = format!("the packages for {kernels} hold no image");
        Error::missing(what, "give a kernel by hand: --kernel FILE")
    })
}

/// The newest kernel in the cache, without fetching any.
pub fn cached(cache: &Cache) -> Option<HostKernel> {
    cached_in(cache, &kernels(None))
}

fn cached_in(cache: &Cache, kernels: &str) -> Option<HostKernel> {
    let names = cache.newest_first(kernels);
    names.iter().find_map(|name| in_directory(&cache.path(kernels).join(name), name))
}

/// Where a bzImage says what it is, and how (Linux 6.1, Documentation/x86/boot.rst, `header`).
const BZIMAGE_MAGIC: (usize, &[u8]) = (0x202, b"HdrS");

/// A kernel of the user's own: an image and, perhaps, a directory below which its modules lie
/// (`/lib/modules/RELEASE`), plain or compressed by xz.
///
/// # Errors
/// When the image cannot be read or is none, the directory is none, or a module cannot be unpacked.
pub fn own(
    image: &Path,
    modules: Option<&Path>,
    into: &Path,
    busybox: &Path,
    stop: &Stop,
) -> Result<HostKernel, Error> {
    is_kernel(image)?;
    if let Some(dir) = modules.filter(|dir| !dir.is_dir()) {
        let what = format!("{} is no directory of modules", dir.display());
        return Err(Error::missing(what, "give --modules /lib/modules/RELEASE"));
    }
    let release = image.file_name().unwrap_or(image.as_os_str()).to_string_lossy().into_owned();
    let modules = match modules {
        Some(dir) => unpack_modules(dir, into, &MODULES, busybox, stop)?,
        None => Vec::new(),
    };
    let config = config_of(image, &release);
    Ok(HostKernel { release, image: image.to_owned(), config, modules, xen: None })
}

/// Refuses what is no kernel image that QEMU boots.
///
/// # Errors
/// When the file cannot be read or is none.
pub fn is_kernel(image: &Path) -> Result<(), Error> {
    if is_bzimage(image).map_err(|error| Error::io("read", image, error))? {
        return Ok(());
    }
    let what = format!("{} is no Linux kernel image (bzImage) for x86", image.display());
    Err(Error::missing(what, "give a vmlinuz, such as one of /boot"))
}

/// The configuration beside an image, under the names that distributions give it.
fn config_of(image: &Path, name: &str) -> Option<PathBuf> {
    let release = name.strip_prefix("vmlinuz-").unwrap_or_default();
    let names = [format!("config-{release}"), "config".to_owned()];
    names.iter().map(|name| image.with_file_name(name)).find(|path| path.is_file())
}

/// Whether a file begins as a bzImage does.
fn is_bzimage(path: &Path) -> io::Result<bool> {
    let (at, magic) = BZIMAGE_MAGIC;
    let mut head = Vec::new();
    fs::File::open(path)?.take((at + magic.len()) as u64).read_to_end(&mut head)?;
    Ok(head.get(at..) == Some(magic))
}

fn kernels(series: Option<&Series>) -> String {
    format!("kernels/{}", series.map_or(SUITE, |series| &series.0))
}

fn in_directory(dir: &Path, release: &str) -> Option<HostKernel> {
    let existing = |path: PathBuf| path.is_file().then_some(path);
    let modules: Vec<PathBuf> =
        MODULES.iter().map(|name| dir.join(format!("{name}.ko"))).filter(|p| p.is_file()).collect();
    Some(HostKernel {
        release: release.to_owned(),
        image: newest_in(dir)?,
        config: existing(dir.join("config")),
        modules,
        xen: None,
    })
}

/// Fetches and unpacks into `into`: `vmlinuz-RELEASE`, `config`, the modules and `release`.
fn fetch(
    into: &Path,
    series: Option<&Series>,
    busybox: &Path,
    stop: &Stop,
    say: Say,
) -> Result<(), Error> {
    let private = into.join("apt");
    let all = into.join("all");
    for dir in [&private, &all] {
        fs::create_dir(dir).map_err(|error| Error::io("make", dir, error))?;
    }
    let mut apt = Apt::of_suite(series.map_or(SUITE, |_| SERIES_SUITE), &private, stop)?;
    let architecture = apt.architecture()?;
    if architecture != "amd64" {
        let what = format!("no host kernel is known for {architecture}");
        return Err(Error::missing(what, "give one by hand: --kernel FILE"));
    }
    apt.update(say)?;
    let packages = match series {
        None => newest_holders(&apt)?,
        Some(series) => holders_of_series(&apt, series)?,
    };
    apt.unpack(&packages, &all, say)?;
    let trees = all.join("usr/lib/modules");
    let release = only_name(&trees)?;
    let tree = trees.join(&release);
    let keep = |from: &Path, name: &str| {
        let target = into.join(name);
        fs::rename(from, &target).map_err(|error| Error::io("move to", target, error))
    };
    // Debian keeps image and configuration beside the modules, and before 2026 in /boot.
    let boot = all.join("boot");
    let either = |plain: &str| {
        let beside = tree.join(plain);
        if beside.is_file() { beside } else { boot.join(format!("{plain}-{release}")) }
    };
    keep(&either("vmlinuz"), &format!("vmlinuz-{release}"))?;
    keep(&either("config"), "config")?;
    unpack_modules(&tree, into, &MODULES, busybox, stop)?;
    let named = into.join("release");
    fs::write(&named, &release).map_err(|error| Error::io("write", named, error))?;
    for dir in [&private, &all] {
        fs::remove_dir_all(dir).map_err(|error| Error::io("remove", dir, error))?;
    }
    Ok(())
}

/// The packages to unpack: those of the image that the meta package names.
fn newest_holders(apt: &Apt) -> Result<Vec<String>, Error> {
    let unknown = || unknown(SUITE, META);
    let first = apt.depends(META)?.ok_or_else(unknown)?;
    holders(
        apt,
        SUITE,
        first.iter().find(|name| name.starts_with("linux-image-")).ok_or_else(unknown)?,
    )
}

/// The same of the newest image of a series.
fn holders_of_series(apt: &Apt, series: &Series) -> Result<Vec<String>, Error> {
    let names = apt.names(&format!("linux-image-{}.", series.0))?;
    let image = series.newest(&names);
    let image = image.ok_or_else(|| unknown(SERIES_SUITE, &format!("kernel {}", series.0)))?;
    holders(apt, SERIES_SUITE, &image)
}

/// An image, and what it depends on of what holds a kernel.
fn holders(apt: &Apt, suite: &str, image: &str) -> Result<Vec<String>, Error> {
    let mut packages = apt.depends(image)?.ok_or_else(|| unknown(suite, image))?;
    packages.retain(|name| HOLDERS.iter().any(|prefix| name.starts_with(prefix)));
    packages.push(image.to_owned());
    Ok(packages)
}

fn unknown(suite: &str, what: &str) -> Error {
    let what = format!("the suite {suite} of this machine's mirror has no {what}");
    Error::missing(what, "give a kernel by hand: --kernel FILE")
}

pub(super) fn only_name(dir: &Path) -> Result<String, Error> {
    let entries = fs::read_dir(dir).map_err(|error| Error::io("list", dir, error))?;
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_by(|a, b| by_version(a, b));
    names.pop().ok_or_else(|| {
        let what = format!("the kernel packages of {SUITE} hold no modules");
        Error::missing(what, "give a kernel by hand: --kernel FILE")
    })
}

/// Unpacks modules from below `tree` into `into`; a module that is not there is built in.
pub(super) fn unpack_modules(
    tree: &Path,
    into: &Path,
    modules: &[&str],
    busybox: &Path,
    stop: &Stop,
) -> Result<Vec<PathBuf>, Error> {
    let mut unpacked = Vec::new();
    for name in modules {
        let Some(found) = find_module(tree, name, 0) else { continue };
        let target = into.join(format!("{name}.ko"));
        let packed = found.extension().and_then(|extension| extension.to_str());
        let made = || fs::File::create(&target).map_err(|e| Error::io("make", &target, e));
        match packed {
            Some(kind @ ("xz" | "gz")) => {
                let mut unpack = Command::new(busybox);
                unpack.arg(if kind == "xz" { "xzcat" } else { "zcat" }).arg(&found);
                command::into_file(&mut unpack, made()?, Duration::from_secs(120), stop)?;
            }
            Some("zst") => {
                let file = fs::File::open(&found).map_err(|e| Error::io("read", &found, e))?;
                let unpacked = zstd::stream::copy_decode(file, made()?);
                unpacked.map_err(|error| Error::io("unpack", &found, error))?;
            }
            _ => {
                fs::copy(&found, &target).map_err(|error| Error::io("copy to", &target, error))?;
            }
        }
        unpacked.push(target);
    }
    Ok(unpacked)
}

/// The file of a module, `NAME.ko`, `.ko.xz`, `.ko.zst` or `.ko.gz`, at most 12 directories deep. Links are not
/// followed: `build` and `source` lead out of the tree.
fn find_module(dir: &Path, name: &str, depth: u32) -> Option<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(dir).ok()?.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in &entries {
        let file = entry.file_name();
        let file = file.to_string_lossy();
        let packed = [".xz", ".zst", ".gz"].iter().find_map(|end| file.strip_suffix(end));
        let stem = packed.unwrap_or(&file);
        // Modules' files and names differ in `-` and `_`.
        if stem.strip_suffix(".ko").is_some_and(|s| s.replace('_', "-") == name) {
            return Some(entry.path());
        }
    }
    if depth == 12 {
        return None;
    }
    entries
        .iter()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .find_map(|entry| find_module(&entry.path(), name, depth + 1))
}

/// The `vmlinuz-VERSION` with the highest version in `dir`.
pub fn newest_in(dir: &Path) -> Option<PathBuf> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("vmlinuz-"))
        .collect();
    names.sort_by(|a, b| by_version(a, b));
    names.pop().map(|name| dir.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_found_by_either_spelling_and_compressed() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("kernel/arch/x86/kvm");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("kvm_amd.ko.xz"), "").unwrap();
        fs::write(deep.join("kvm.ko"), "").unwrap();
        assert_eq!(find_module(dir.path(), "kvm-amd", 0), Some(deep.join("kvm_amd.ko.xz")));
        assert_eq!(find_module(dir.path(), "kvm", 0), Some(deep.join("kvm.ko")));
        assert_eq!(find_module(dir.path(), "irqbypass", 0), None);
    }

    #[test]
    fn what_is_no_kernel_is_refused_with_what_to_give() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("vmlinuz");
        let own = |modules: Option<&Path>| {
            own(&file, modules, dir.path(), Path::new("busybox"), &Stop::never())
        };
        assert!(own(None).unwrap_err().to_string().contains("cannot read"));
        for bad in [b"".as_slice(), b"#!/bin/sh\n", &[0; 4096]] {
            fs::write(&file, bad).unwrap();
            assert!(own(None).unwrap_err().to_string().contains("give a vmlinuz"));
        }
        let mut image = vec![0; 0x300];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        fs::write(&file, image).unwrap();
        assert_eq!(own(None).unwrap().release, "vmlinuz");
        let error = own(Some(&file)).unwrap_err().to_string();
        assert!(error.contains("no directory of modules"), "{error}");
    }

    #[test]
    fn a_series_is_two_numbers_and_its_newest_image_is_taken() {
        let series = |name: &str| Series::named(Path::new(name));
        for other in ["6", "6.", ".18", "6.18.1", "v6.18", "/boot/vmlinuz", "6.1/8", ""] {
            assert_eq!(series(other), None, "{other}");
        }
        let names = [
            "linux-image-6.18.9+deb13-cloud-amd64",
            "linux-image-6.18.15+deb13-cloud-amd64",
            "linux-image-6.18.15+deb13-cloud-amd64-unsigned",
            "linux-image-6.18.15+deb13-amd64",
            "linux-image-6.1.99+deb13-cloud-amd64",
        ]
        .map(str::to_owned);
        let newest = |name: &str| series(name).unwrap().newest(&names);
        assert_eq!(newest("6.18").as_deref(), Some("linux-image-6.18.15+deb13-cloud-amd64"));
        assert_eq!(newest("6.1").as_deref(), Some("linux-image-6.1.99+deb13-cloud-amd64"));
        assert_eq!(newest("6.17"), None);
    }

    #[test]
    fn busybox_that_is_fetched_for_a_kernel_finds_cache_unlocked() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let busybox = |cache: &Cache, _: &Stop, _: Say| {
            let soon = Stop::never();
            soon.raise();
            cache.lock("tools", &soon).map(|_| PathBuf::from("busybox"))
        };
        let fetch = |into: &Path, _: &Path, _: &Stop, _: Say| {
            fs::write(into.join("vmlinuz-7"), "").unwrap();
            fs::write(into.join("release"), "7\n").unwrap();
            Ok(())
        };
        let found =
            obtain_with(&cache, &kernels(None), &Stop::never(), &mut |_| (), busybox, fetch);
        assert_eq!(found.unwrap().release, "7");
    }

    #[test]
    fn the_newest_cached_kernel_is_taken_with_its_modules_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        assert_eq!(cached(&cache), None);
        for release in ["7.2.9", "7.2.13"] {
            let fill = |at: &Path| {
                for file in [&format!("vmlinuz-{release}"), "config", "kvm.ko", "irqbypass.ko"] {
                    fs::write(at.join(file), "").unwrap();
                }
                Ok(())
            };
            cache.fill(&format!("{}/{release}", kernels(None)), fill).unwrap();
        }
        let found = cached(&cache).unwrap();
        assert_eq!(found.release, "7.2.13");
        let names: Vec<_> =
            found.modules.iter().map(|p| p.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["irqbypass.ko", "kvm.ko"]);
        assert!(found.config.is_some());
    }
}
