//! On which NUMA nodes the devices of a VM are: passthrough devices (VFIO), vDPA devices, and the network
//! cards behind its tap interfaces.
//!
//! `/proc/PID/fd` tells what a monitor has open, sysfs where that is. A device whose node the firmware does
//! not tell counts for nothing, as does one that is no longer there.

use super::files::Reader;
use instep_core::units::NodeId;
use std::collections::BTreeSet;
use std::path::Path;

/// The most devices of one kind that are looked at.
const MOST: usize = 256;

/// What a monitor has open of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Open {
    /// An IOMMU group (`/dev/vfio/N`), by its number.
    Group(String),
    /// A device of VFIO without groups (`/dev/vfio/devices/vfioN`), by its name.
    Device(String),
    /// A vDPA device (`/dev/vhost-vdpa-N`), by its name.
    Vdpa(String),
    /// A tap interface, by its name.
    Tap(String),
}

impl Open {
    /// By the target of a descriptor's link; `iff` reads the name of a tap interface.
    pub(super) fn of(target: &Path, iff: impl FnOnce() -> Option<String>) -> Option<Self> {
        let path = target.to_str()?;
        let name = |text: &str| is_name(text).then(|| text.to_owned());
        if let Some(device) = path.strip_prefix("/dev/vfio/devices/") {
            return name(device).map(Open::Device);
        }
        if let Some(group) = path.strip_prefix("/dev/vfio/") {
            return name(group).filter(|group| group.parse::<u32>().is_ok()).map(Open::Group);
        }
        if path == "/dev/net/tun" {
            return iff().filter(|iff| is_name(iff)).map(Open::Tap);
        }
        let device = path.strip_prefix("/dev/")?;
        device.starts_with("vhost-vdpa-").then(|| name(device).map(Open::Vdpa))?
    }
}

/// The name of the tap interface that a descriptor's `fdinfo` tells.
pub(super) fn interface(fdinfo: &str) -> Option<String> {
    let iff = fdinfo.lines().find_map(|line| line.strip_prefix("iff:"))?;
    Some(iff.trim().to_owned())
}

/// Whether a text names one entry of a directory.
fn is_name(text: &str) -> bool {
    let usual = |c: u8| c.is_ascii_alphanumeric() || b"-_.:@".contains(&c);
    !text.is_empty() && text.len() < 64 && !text.starts_with('.') && text.bytes().all(usual)
}

/// The node of each device behind what is open, ascending; `root` holds the host's `sys`.
pub(super) fn nodes(root: &Path, open: &BTreeSet<Open>, reader: &mut Reader) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    for one in open.iter().take(MOST) {
        let dirs: Vec<_> = match one {
            Open::Group(group) => {
                let dir = root.join("sys/kernel/iommu_groups").join(group).join("devices");
                let devices = entries(&dir, reader).into_iter();
                devices.map(|address| root.join("sys/bus/pci/devices").join(address)).collect()
            }
            Open::Device(name) => vec![root.join("sys/class/vfio-dev").join(name).join("device")],
            Open::Vdpa(name) => {
                // The device in the list that has this character device; its parent is on the bus.
                let all = root.join("sys/bus/vdpa/devices");
                let own = entries(&all, reader).into_iter().filter(|device| {
                    let node = all.join(device).join(name);
                    let is_there = node.exists();
                    if is_there {
                        reader.keep_dir(&node);
                    }
                    is_there
                });
                own.map(|device| all.join(device).join("..")).collect()
            }
            Open::Tap(name) => {
                let net = root.join("sys/class/net");
                let ports = entries(&net.join(name).join("master/brif"), reader).into_iter();
                ports.map(|port| net.join(port).join("device")).collect()
            }
        };
        for dir in dirs {
            let text = reader.text(&dir.join("numa_node"), 64);
            nodes.extend(text.and_then(|text| text.trim().parse().ok()).map(NodeId));
        }
    }
    nodes.sort_unstable();
    nodes
}

fn entries(dir: &Path, reader: &Reader) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let names = entries.take(MOST).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_name(name)).collect();
    names.sort_unstable();
    names.iter().for_each(|name| reader.keep_dir(&dir.join(name)));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_devices_are_recognised() {
        let of = |target: &str| Open::of(Path::new(target), || Some("vnet0".into()));
        assert_eq!(of("/dev/vfio/12"), Some(Open::Group("12".into())));
        assert_eq!(of("/dev/vfio/devices/vfio3"), Some(Open::Device("vfio3".into())));
        assert_eq!(of("/dev/vhost-vdpa-0"), Some(Open::Vdpa("vhost-vdpa-0".into())));
        assert_eq!(of("/dev/net/tun"), Some(Open::Tap("vnet0".into())));
        for other in [
            "/dev/vfio/vfio",
            "/dev/vhost-net",
            "/dev/kvm",
            "/dev/vfio/../kvm",
            "x",
            "/dev/vfio/devices/",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(Open::of(Path::new("/dev/net/tun"), || Some("../x".into())), None);
        assert_eq!(interface("pos:\t0\niff:\ttap7\n"), Some("tap7".into()));
    }
}
