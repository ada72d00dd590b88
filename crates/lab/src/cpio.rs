//! Writes an initramfs: an archive in the `newc` format that the kernel unpacks at boot.
//!
//! Pure: entries in, bytes out, the same for the same entries. Format: the kernel's
//! Documentation/driver-api/early-userspace/buffer-format.rst (Linux 6.1). It knows directories,
//! files, symbolic links and devices, all owned by root; no hard links.

/// One entry's kind and content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node<'a> {
    /// A directory.
    Directory,
    /// A file with these bytes.
    File(&'a [u8]),
    /// A symbolic link to this path.
    Link(&'a str),
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
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry; `path` has no leading slash and its directory was added before;
    /// `permissions` are the lower 12 bits of the mode.
    #[must_use]
    pub fn add(mut self, path: &str, permissions: u32, node: &Node<'_>) -> Self {
        let (kind, content, device): (u32, &[u8], (u32, u32)) = match node {
            Node::Directory => (0o040_000, &[], (0, 0)),
            Node::File(bytes) => (0o100_000, bytes, (0, 0)),
            Node::Link(target) => (0o120_000, target.as_bytes(), (0, 0)),
            Node::Device { major, minor } => (0o020_000, &[], (*major, *minor)),
        };
        self.entries += 1;
        let inode = self.entries;
        self.append(path, inode, kind | (permissions & 0o7777), content, device);
        self
    }

    /// The finished archive.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.append("TRAILER!!!", 0, 0, &[], (0, 0));
        self.bytes
    }

    fn append(&mut self, path: &str, inode: u32, mode: u32, content: &[u8], device: (u32, u32)) {
        let fields = [
            inode,
            mode,
            0, // uid
            0, // gid
            1, // links
            0, // modification time: the same entries give the same bytes
            content.len() as u32,
            0, // device the archive was made on, major and minor
            0,
            device.0,
            device.1,
            path.len() as u32 + 1,
            0, // checksum: none in this variant
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
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
            .add("init", 0o777, &Node::Link("bin/tool"))
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
        assert_eq!(std::fs::read(dir.path().join("init")).unwrap(), b"#!/bin/sh\n");
    }
}
