//! The guests' initramfs: a static busybox and one script, [`INIT`], as a cpio archive.
//!
//! It is not compressed: under software emulation unpacking costs more than reading.

use instep_lab::cache::Cache;
use instep_lab::cpio::{Archive, Node};
use instep_lab::image::{IMAGES, INIT, busybox, fingerprint};
use instep_lab::{Error, Stop};
use std::fs;
use std::path::PathBuf;

/// The initramfs in the cache, built when the script or busybox changed.
///
/// # Errors
/// When no static busybox is found or fetched, or the cache cannot be written.
pub fn obtain(cache: &Cache, stop: &Stop, say: &mut dyn FnMut(&str)) -> Result<PathBuf, Error> {
    let busybox = busybox(cache, stop, say)?;
    let image = build(&fs::read(&busybox).map_err(|e| Error::io("read", busybox, e))?);
    let entry = format!("{IMAGES}/{:016x}", fingerprint(&image));
    let path = cache.path(&entry).join("initrd.cpio");
    if !path.exists() {
        let _lock = cache.lock(IMAGES, stop)?;
        cache.fill(&entry, |into| {
            let file = into.join("initrd.cpio");
            fs::write(&file, &image).map_err(|error| Error::io("write", file, error))
        })?;
    }
    Ok(path)
}

/// The archive around a busybox binary.
fn build(busybox: &[u8]) -> Vec<u8> {
    let mut archive = Archive::new();
    for dir in ["bin", "dev", "proc", "sys", "tmp"] {
        archive = archive.add(dir, 0o755, &Node::Directory);
    }
    archive
        .add("dev/console", 0o600, &Node::Device { major: 5, minor: 1 })
        .add("dev/null", 0o666, &Node::Device { major: 1, minor: 3 })
        .add("bin/busybox", 0o755, &Node::File(busybox))
        .add("init", 0o755, &Node::File(INIT.as_bytes()))
        .finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_lab::image::first_static_busybox;

    #[test]
    fn an_image_that_is_built_removes_what_a_killed_build_left() {
        if first_static_busybox().is_none() {
            return instep_madehost::skip::note("no static busybox here");
        }
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        fs::create_dir_all(cache.path("images/.filling-x")).unwrap();
        obtain(&cache, &Stop::never(), &mut |_| ()).unwrap();
        assert_eq!(cache.list("images").len(), 1);
    }

    #[test]
    fn the_image_holds_the_script() {
        let image = build(b"busybox");
        assert!(image.windows(INIT.len()).any(|window| window == INIT.as_bytes()));
    }
}
