//! CPUs that the host keeps from its scheduler.

use super::files::Reader;
use crate::root::Root;
use instep_core::idset::CpuSet;

/// `isolcpus=`, and isolated cpuset partitions (of the root cgroup, since Linux 6.7).
const FILES: [&str; 2] = ["sys/devices/system/cpu/isolated", "sys/fs/cgroup/cpuset.cpus.isolated"];

/// The CPUs that the host keeps from its scheduler, by `isolcpus=` and by isolated cpuset partitions. What cannot be read
/// counts as none.
pub fn isolated_cpus(root: &Root) -> CpuSet {
    read(root, &mut Reader::new(root))
}

/// The same with the reader of a scan.
pub(super) fn read(root: &Root, reader: &mut Reader) -> CpuSet {
    let mut set = |file| {
        let text = reader.text(&root.join(file), 64 << 10).unwrap_or_default();
        CpuSet::parse_list(text.trim()).unwrap_or_default()
    };
    FILES.into_iter().fold(CpuSet::default(), |all, file| all.or(&set(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn isolated(files: [&str; 2]) -> CpuSet {
        let dir = instep_madehost::scratch_dir().unwrap();
        for (file, text) in FILES.into_iter().zip(files) {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        isolated_cpus(&Root::at(dir.path()))
    }

    #[test]
    fn cpus_are_isolated_at_boot_or_by_a_partition() {
        assert_eq!(isolated(["2-3\n", "6\n"]).to_string(), "2-3,6");
        assert!(isolated(["\n", "x"]).is_empty());
        let none = instep_madehost::scratch_dir().unwrap();
        assert!(isolated_cpus(&Root::at(none.path())).is_empty());
    }
}
