//! Samples which memory a VM's threads touch, so that hot pages come home first: where the CPU can
//! tell (systems.md 4 (iv): PEBS on Intel, IBS on AMD).
//!
//! [`source`] finds the CPU's sampling event, [`sampler`] opens it and drains its buffers,
//! [`records`] decodes them, [`hot`] makes ranges of them for
//! [`Homecoming::prefer`](crate::apply::Homecoming::prefer).
//!
//! What it cannot see: memory that a KVM guest touches while it runs as a guest. The kernel turns
//! PEBS off on guest entry (arch/x86/events/intel/core.c, `intel_guest_get_msrs`, 6.18), and an
//! IBS sample of a guest carries the guest's own virtual address, which is dropped and counted.
//! Under KVM the samples are those of the monitor; they tell the whole story of VMs that run in
//! software (TCG) and of containers.

pub mod hot;
pub mod records;
pub mod sampler;
pub mod source;

pub use hot::HotPages;
pub use sampler::MemorySampler;
pub use source::Source;
