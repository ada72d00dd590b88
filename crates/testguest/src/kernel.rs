//! A Linux kernel for guests, without installing one: the distribution's own cloud kernel,
//! unpacked into the cache and found there the next time.
//!
//! Where there is no apt, a readable kernel of the machine itself (/boot) does as well: guests
//! need only a serial console and an initramfs. It does not look into the kernel's configuration.

use instep_lab::apt::Apt;
use instep_lab::cache::Cache;
use instep_lab::host::kernel::newest_in;
use instep_lab::{Error, Stop};
use std::fs;
use std::path::{Path, PathBuf};

/// Packages that depend on the newest kernel, the smallest first (Debian, then Ubuntu).
const METAS: [&str; 4] =
    ["linux-image-cloud-amd64", "linux-image-amd64", "linux-image-virtual", "linux-image-generic"];

/// The prefixes of packages that hold, or depend on what holds, the image itself.
const HOLDERS: [&str; 2] = ["linux-image-", "linux-binary-"];

/// The directory of the cache for the machine's own suite.
const KERNELS: &str = "kernels/own";

/// The cached kernel; else one fetched by apt; else one of this machine's own.
///
/// # Errors
/// When none of these is to be had: with what to run.
pub fn obtain(cache: &Cache, stop: &Stop, say: &mut dyn FnMut(&str)) -> Result<PathBuf, Error> {
    if let Some(found) = cached(cache) {
        return Ok(found);
    }
    let _lock = cache.lock(KERNELS, stop)?;
    if let Some(found) = cached(cache) {
        return Ok(found);
    }
    fetch(cache, stop, say).or_else(|error| {
        stop.check()?;
        let own = newest_in(Path::new("/boot")).filter(|path| fs::File::open(path).is_ok());
        if let Some(path) = &own {
            say(&format!("no kernel package ({error}): using {}", path.display()));
        }
        own.ok_or(error)
    })
}

fn cached(cache: &Cache) -> Option<PathBuf> {
    cache.newest_first(KERNELS).iter().find_map(|name| newest_in(&cache.path(KERNELS).join(name)))
}

fn fetch(cache: &Cache, stop: &Stop, say: &mut dyn FnMut(&str)) -> Result<PathBuf, Error> {
    let mut apt = Apt::own(stop)?;
    let architecture = apt.architecture()?;
    if architecture != "amd64" {
        let what = format!("no guest kernel is known for {architecture}");
        return Err(Error::missing(what, "give one by hand: instep demo --kernel FILE"));
    }
    let packages = match holders(&apt)? {
        packages if packages.is_empty() => {
            apt.update(say)?;
            holders(&apt)?
        }
        packages => packages,
    };
    let Some(name) = packages.first().cloned() else {
        let what = format!("apt knows none of {}", METAS.join(", "));
        return Err(Error::missing(what, "give a kernel by hand: instep demo --kernel FILE"));
    };
    let dir = cache.fill(&format!("{KERNELS}/{name}"), |into| {
        let all = into.join("all");
        fs::create_dir(&all).map_err(|error| Error::io("make", &all, error))?;
        apt.unpack(&packages, &all, say)?;
        keep_images(&all, into)?;
        // The modules and the documentation of a kernel are ten times the image.
        fs::remove_dir_all(&all).map_err(|error| Error::io("remove", all, error))
    })?;
    newest_in(&dir).ok_or_else(|| {
        let what = format!("package {name} holds no /boot/vmlinuz");
        Error::missing(what, "give a kernel by hand: instep demo --kernel FILE")
    })
}

/// The packages to unpack: from the first meta package that apt knows, down two levels.
fn holders(apt: &Apt) -> Result<Vec<String>, Error> {
    for meta in METAS {
        let Some(mut level) = apt.depends(meta)? else { continue };
        let mut all: Vec<String> = Vec::new();
        for _ in 0..2 {
            level.retain(|name| HOLDERS.iter().any(|prefix| name.starts_with(prefix)));
            level.retain(|name| !all.contains(name));
            all.extend(level.iter().cloned());
            let mut next = Vec::new();
            for name in &level {
                next.extend(apt.depends(name)?.unwrap_or_default());
            }
            level = next;
        }
        if !all.is_empty() {
            return Ok(all);
        }
    }
    Ok(Vec::new())
}

/// Moves what lies in `tree`/boot to `into`.
fn keep_images(tree: &Path, into: &Path) -> Result<(), Error> {
    let boot = tree.join("boot");
    let Ok(entries) = fs::read_dir(&boot) else { return Ok(()) };
    for entry in entries.flatten() {
        let target = into.join(entry.file_name());
        fs::rename(entry.path(), &target).map_err(|error| Error::io("move to", target, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_kernel_is_found_without_apt() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        assert_eq!(cached(&cache), None);
        for version in ["6.1.0-9", "6.1.0-56"] {
            let write = |at: &Path| {
                fs::write(at.join(format!("vmlinuz-{version}")), "kernel").unwrap();
                Ok(())
            };
            cache.fill(&format!("{KERNELS}/linux-image-{version}"), write).unwrap();
        }
        let found = obtain(&cache, &Stop::never(), &mut |said| panic!("{said}")).unwrap();
        assert!(found.ends_with("linux-image-6.1.0-56/vmlinuz-6.1.0-56"), "{found:?}");
    }
}
