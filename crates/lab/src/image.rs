//! What guests run: a static busybox and one script, [`init.sh`](INIT).

use crate::apt::Apt;
use crate::cache::Cache;
use crate::error::Error;
use crate::stop::Stop;
use std::fs;
use std::path::{Path, PathBuf};

/// The directory of the cache for built images, filled under its lock only.
pub const IMAGES: &str = "images";

/// The guests' first program.
pub const INIT: &str = include_str!("init.sh");

/// What the guest prints on its console when its load runs.
pub const READY: &str = "instep-guest: ready";

/// A static busybox: the machine's own, else from the package busybox-static.
///
/// # Errors
/// When there is none and it cannot be fetched.
pub fn busybox(cache: &Cache, stop: &Stop, say: &mut dyn FnMut(&str)) -> Result<PathBuf, Error> {
    if let Some(path) = present_busybox(cache) {
        return Ok(path);
    }
    let _lock = cache.lock("tools", stop)?;
    cache
        .fill(BUSYBOX, |into| Apt::own(stop)?.unpack(&["busybox-static".to_owned()], into, say))?;
    present_busybox(cache).ok_or_else(|| {
        Error::missing("no static busybox found", "install one: apt-get install busybox-static")
    })
}

/// The directory of the cache for a fetched busybox.
const BUSYBOX: &str = "tools/busybox";

/// A static busybox that needs no fetching: the machine's own, else the cached one.
pub fn present_busybox(cache: &Cache) -> Option<PathBuf> {
    let root = cache.path(BUSYBOX);
    let cached = || first_static(&[root.join("bin/busybox"), root.join("usr/bin/busybox")]);
    first_static_busybox().or_else(cached)
}

/// The machine's own static busybox.
pub fn first_static_busybox() -> Option<PathBuf> {
    first_static(&[PathBuf::from("/bin/busybox"), PathBuf::from("/usr/bin/busybox")])
}

fn first_static(paths: &[PathBuf]) -> Option<PathBuf> {
    let is_static = |path: &&PathBuf| fs::read(path).is_ok_and(|bytes| is_static_elf(&bytes));
    paths.iter().find(is_static).cloned()
}

/// Whether these are a 64-bit x86 program that needs no dynamic loader: an ELF file without a
/// PT_INTERP program header (System V ABI, chapter 5).
pub fn is_static_elf(bytes: &[u8]) -> bool {
    const X86_64: usize = 62;
    const PT_INTERP: usize = 3;
    let at = |offset: usize, width: usize| -> Option<usize> {
        let field = bytes.get(offset..offset.checked_add(width)?)?;
        Some(field.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
    };
    // Magic, then class 2 (64 bits) and encoding 1 (little endian).
    if !bytes.starts_with(b"\x7fELF\x02\x01") || at(18, 2) != Some(X86_64) {
        return false;
    }
    let (Some(table), Some(size), Some(count)) = (at(32, 8), at(54, 2), at(56, 2)) else {
        return false;
    };
    let kind = |n: usize| at(table.checked_add(n.checked_mul(size)?)?, 4);
    (0..count).all(|n| kind(n).is_some_and(|kind| kind != PT_INTERP))
}

/// Refuses a workload that cannot run in guests, which have no libraries.
pub(crate) fn check_load(path: &Path) -> Result<(), Error> {
    let bytes = fs::read(path).map_err(|error| Error::io("read", path, error))?;
    if is_static_elf(&bytes) {
        return Ok(());
    }
    let what = format!("{} is no static x86-64 program, as instep-load is", path.display());
    let next = "run `cargo xtask load`, or give another --load FILE".to_owned();
    Err(Error::Refused { what, next })
}

/// FNV-1a: tells images apart by content; no protection against forgery is needed here.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_and_rubbish_are_not_static() {
        let this_test = fs::read("/proc/self/exe").unwrap();
        assert!(!is_static_elf(&this_test));
        assert!(!is_static_elf(b""));
        assert!(!is_static_elf(b"\x7fELF\x02\x01"));
        assert!(!is_static_elf(&[0xff; 64]));
    }

    #[test]
    fn a_header_whose_table_lies_outside_the_file_is_refused() {
        let mut elf = vec![0u8; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[18] = 62;
        assert!(is_static_elf(&elf), "no program headers, so no loader");
        elf[56] = 1;
        elf[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        elf[54] = 56;
        assert!(!is_static_elf(&elf));
    }
}
