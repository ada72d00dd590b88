//! Whether a host runs Xen and this is its control domain (dom0).
//!
//! A Linux guest of Xen (domU) has the same `/sys/hypervisor/type`, but rules no domains: it is read as any Linux
//! host.

use std::fs;
use std::path::Path;

/// What is under a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XenPresence {
    /// The control domain of a Xen host, or a copy of its outputs.
    Control,
    /// A guest of Xen, or a control domain whose xenfs is not mounted.
    Guest,
    /// No Xen.
    Nothing,
}

/// Looks under `root`, which is `/` or a copy of a host.
pub fn detect_xen(root: &Path) -> XenPresence {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let is_copy = root != Path::new("/") && root.join("xen").is_dir();
    // xenfs tells the control domain so; the UUID of dom0 is all zeros.
    let is_control = read("proc/xen/capabilities").contains("control_d");
    let is_xen = read("sys/hypervisor/type").trim() == "xen";
    let is_dom0 = is_xen && read("sys/hypervisor/uuid").trim().starts_with("00000000-0000-");
    if is_copy || is_control || is_dom0 {
        XenPresence::Control
    } else if is_xen || root.join("proc/xen").is_dir() {
        XenPresence::Guest
    } else {
        XenPresence::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> XenPresence {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        detect_xen(dir.path())
    }

    #[test]
    fn control_domain_is_distinguished_from_a_guest() {
        assert_eq!(found(&[]), XenPresence::Nothing);
        assert_eq!(found(&[("sys/hypervisor/type", "kvm\n")]), XenPresence::Nothing);
        assert_eq!(found(&[("proc/xen/capabilities", "control_d\n")]), XenPresence::Control);
        assert_eq!(found(&[("proc/xen/capabilities", "\n")]), XenPresence::Guest);
        let xen = ("sys/hypervisor/type", "xen\n");
        let uuid = "sys/hypervisor/uuid";
        assert_eq!(
            found(&[xen, (uuid, "00000000-0000-0000-0000-000000000000\n")]),
            XenPresence::Control
        );
        assert_eq!(
            found(&[xen, (uuid, "5ea1dd67-6c68-463e-b32d-d2f5b1dbad2c\n")]),
            XenPresence::Guest
        );
    }

    #[test]
    fn copy_is_known_by_its_folder() {
        assert_eq!(found(&[("xen/xl-info-n", "")]), XenPresence::Control);
    }
}
