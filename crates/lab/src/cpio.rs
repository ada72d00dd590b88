//! Writes an initramfs: an archive in the `newc` format that the kernel unpacks at boot.
//!
//! Pure: entries in, bytes out, the same for the same entries. It knows directories, files and
//! devices, all owned by root; no links.

use cpio::newc::{Builder, ModeFileType, trailer};
use std::io::Write as _;

/// Why writing does not fail.
const IN_MEMORY: &str = "a vector takes all bytes, and each entry has as many as it says";

/// One entry's kind and content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node<'a> {
    /// A directory.
    Directory,
    /// A file with these bytes.
    File(&'a [u8]),
    /// A character device.
    Device {
        /// Its major number.
        major: u32,
        /// Its minor number.
        minor: u32,
    },
}

/// An archive under construction.
#[derive(Clone, Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry; `path` has no leading slash and its directory was added before;
    /// `permissions` are the lower 12 bits of the mode.
    #[must_use]
    pub fn add(mut self, path: &str, permissions: u32, node: &Node<'_>) -> Self {
        let (kind, content, device): (_, &[u8], (u32, u32)) = match node {
            Node::Directory => (ModeFileType::Directory, &[], (0, 0)),
            Node::File(bytes) => (ModeFileType::Regular, bytes, (0, 0)),
            Node::Device { major, minor } => (ModeFileType::Char, &[], (*major, *minor)),
        };
        self.entries += 1;
        // The time of change stays 0: the same entries give the same bytes.
        let entry = Builder::new(path).ino(self.entries).mode(permissions & 0o7777);
        let entry = entry.set_mode_file_type(kind).rdev_major(device.0).rdev_minor(device.1);
        let mut writer = entry.write(&mut self.bytes, content.len() as u32);
        writer.write_all(content).and_then(|()| writer.finish()).expect(IN_MEMORY);
        self
    }

    /// The finished archive.
    pub fn finish(self) -> Vec<u8> {
        trailer(self.bytes).expect(IN_MEMORY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn sample() -> Vec<u8> {
        Archive::new()
            .add("bin", 0o755, &Node::Directory)
            .add("bin/tool", 0o755, &Node::File(b"#!/bin/sh\n"))
            .add("odd", 0o600, &Node::File(b"12345"))
            .finish()
    }

    #[test]
    fn every_part_is_aligned_and_the_trailer_comes_last() {
        let bytes = sample();
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.starts_with(b"070701"));
        assert!(String::from_utf8_lossy(&bytes).trim_end_matches('\0').ends_with("TRAILER!!!"));
    }

    #[test]
    fn cpio_unpacks_what_was_put_in() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.cpio"), sample()).unwrap();
        let ran = Command::new("busybox")
            .args(["cpio", "-i", "-F", "a.cpio"])
            .current_dir(dir.path())
            .stderr(Stdio::null())
            .status();
        let Ok(status) = ran else {
            instep_madehost::skip::note("no busybox to unpack the archive with");
            return;
        };
        assert!(status.success());
        assert_eq!(std::fs::read(dir.path().join("odd")).unwrap(), b"12345");
        assert_eq!(std::fs::read(dir.path().join("bin/tool")).unwrap(), b"#!/bin/sh\n");
    }
}
