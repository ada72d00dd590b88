//! What later scans may do, and a scan for VMs alone, as the kernel scheduler is told of them.

use super::Scanner;
use crate::discover::facts::Scan;
use crate::discover::options::ScanOptions;
use crate::error::Error;

impl Scanner {
    /// What later scans may do.
    pub fn set_options(&mut self, options: ScanOptions) {
        self.options = options;
    }

    /// Whether later scans read the definitions of VMs.
    pub fn read_definitions(&mut self, whether: bool) {
        self.options.definitions = whether;
    }

    /// Looks for VMs alone: for no memory, and not at what other threads waited. What [`scan`](Self::scan) warns of once is left to it.
    ///
    /// # Errors
    /// As those of a scan.
    pub fn scan_vms(&mut self) -> Result<Scan, Error> {
        let warned = (self.warned, self.rivals.clone(), self.aside.left_undone);
        let options = self.options.clone();
        self.options.memory.enabled = false;
        self.options.waits = false;
        let scan = self.scan();
        self.options = options;
        (self.warned, self.rivals, self.aside.left_undone) = warned;
        scan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Root;
    use instep_core::units::{Bytes, NodeId};
    use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm, scratch_dir};

    #[test]
    fn scan_for_vms_alone_leaves_single_notices_to_the_next_scan() {
        let dir = scratch_dir().unwrap();
        let mut made = MadeHost::new(HostSpec::new(2, 4));
        let vm = VmSpec::new("a", Vmm::QemuKvm, 2, NodeId(1), Bytes::from_mib(64));
        made.push(VmSpec { numa_stat: false, ..vm });
        made.write(dir.path()).unwrap();
        let maps = dir.path().join(format!("proc/{}/numa_maps", made.vms[0].pid));
        std::fs::remove_file(maps).unwrap();
        let mut scanner = Scanner::new(Root::at(dir.path()), ScanOptions::once());
        let about_memory = |scan: &Scan| {
            scan.warnings.iter().filter(|warning| warning.starts_with("memory of ")).count()
        };
        let alone = scanner.scan_vms().unwrap();
        assert_eq!((alone.vms.len(), about_memory(&alone)), (1, 0));
        assert!(alone.vms[0].memory.is_none());
        assert_eq!(about_memory(&scanner.scan().unwrap()), 1);
        assert_eq!(about_memory(&scanner.scan().unwrap()), 0, "told once");
    }

    #[test]
    fn scan_for_vms_alone_leaves_work_that_did_not_end_to_next_scan() {
        let dir = scratch_dir().unwrap();
        MadeHost::new(HostSpec::new(1, 2)).write(dir.path()).unwrap();
        let mut scanner = Scanner::new(Root::at(dir.path()), ScanOptions::once());
        scanner.aside.left_undone = [false, true];
        scanner.scan_vms().unwrap();
        assert_eq!(scanner.aside.left_undone, [false, true]);
    }
}
