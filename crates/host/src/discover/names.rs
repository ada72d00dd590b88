//! Which vCPU a thread runs, by the name that its monitor gave it.
//!
//! A guest's user cannot set these names but the monitor's owner can, so they are a hint. The
//! kernel cuts names at 15 bytes.

use super::facts::{Accel, Vmm};
use super::smp::MAX_VCPUS;

/// What a thread's name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It runs the vCPU with this index.
    Vcpu {
        /// The guest's CPU number.
        index: u32,
        /// What runs the guest's code, if the name says.
        accel: Accel,
    },
    /// It runs all vCPUs in turn (QEMU's `ALL CPUs/TCG`).
    AllVcpus,
    /// It is no vCPU by its name.
    Other,
}

/// The role of a thread of `vmm` named `name`: QEMU `CPU 0/KVM`, `CPU 0/TCG` (with
/// `-name ...,debug-threads=on`), cloud-hypervisor `vcpu0`, crosvm `crosvm_vcpu0`, Firecracker
/// `fc_vcpu 0`; of another monitor any name that ends in `vcpu`, an optional separator and a
/// number.
pub fn role(vmm: &Vmm, name: &str) -> Role {
    let (digits, accel) = match vmm {
        Vmm::Qemu => return qemu(name),
        Vmm::CloudHypervisor => (name.strip_prefix("vcpu"), Accel::Kvm),
        Vmm::Crosvm => (name.strip_prefix("crosvm_vcpu"), Accel::Unknown),
        Vmm::Firecracker => (name.strip_prefix("fc_vcpu "), Accel::Kvm),
        Vmm::Other(_) => match qemu(name) {
            Role::Other => (generic(name), Accel::Unknown),
            told => return told,
        },
    };
    digits.and_then(index).map_or(Role::Other, |index| Role::Vcpu { index, accel })
}

fn qemu(name: &str) -> Role {
    if name == "ALL CPUs/TCG" {
        return Role::AllVcpus;
    }
    let told = name.strip_prefix("CPU ").and_then(|rest| {
        let (digits, kind) = rest.split_once('/')?;
        let accel = match kind {
            "KVM" => Accel::Kvm,
            "TCG" => Accel::Tcg,
            "HVF" | "MSHV" | "NVMM" | "WHPX" | "HAX" | "DUMMY" => Accel::Unknown,
            _ => return None,
        };
        Some(Role::Vcpu { index: index(digits)?, accel })
    });
    told.unwrap_or(Role::Other)
}

fn generic(name: &str) -> Option<&str> {
    let at = name.to_ascii_lowercase().rfind("vcpu")?;
    Some(name[at + 4..].trim_start_matches([' ', '-', '_', ':', '#']))
}

fn index(digits: &str) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|index| plain && *index < MAX_VCPUS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index_of(vmm: Vmm, name: &str) -> Option<u32> {
        match role(&vmm, name) {
            Role::Vcpu { index, .. } => Some(index),
            Role::AllVcpus | Role::Other => None,
        }
    }

    #[test]
    fn every_monitor_names_its_vcpus_its_own_way() {
        assert_eq!(index_of(Vmm::Qemu, "CPU 3/KVM"), Some(3));
        assert_eq!(index_of(Vmm::Qemu, "CPU 12/TCG"), Some(12));
        assert_eq!(index_of(Vmm::CloudHypervisor, "vcpu7"), Some(7));
        assert_eq!(index_of(Vmm::Crosvm, "crosvm_vcpu11"), Some(11));
        assert_eq!(index_of(Vmm::Firecracker, "fc_vcpu 0"), Some(0));
        for name in ["vcpu-2", "kvm-vcpu-2", "VCPU 2", "libkrun vcpu 2", "CPU 2/KVM"] {
            assert_eq!(index_of(Vmm::Other("x".into()), name), Some(2), "{name}");
        }
    }

    #[test]
    fn like_names_are_no_vcpus() {
        for name in [
            "CPU /KVM",
            "CPU +1/KVM",
            "CPU 1/XYZ",
            "CPU 99999/KVM",
            "IO iothread0",
            "call_rcu",
            "kvm-nx-lpage-re",
            "qemu-system-x86",
            "vcpu0",
            "",
            "worker",
        ] {
            assert_eq!(role(&Vmm::Qemu, name), Role::Other, "{name}");
        }
        assert_eq!(index_of(Vmm::Other("x".into()), "vcpu"), None);
        assert_eq!(role(&Vmm::Qemu, "ALL CPUs/TCG"), Role::AllVcpus);
    }
}
