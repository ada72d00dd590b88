//! Samples which memory a VM's threads touch, so that hot pages come home first: where the CPU can
//! tell (systems.md 4 (iv): PEBS on Intel, IBS on AMD).
//!
//! [`source`] finds the CPU's sampling event, [`sampler`] opens it and drains its buffers,
//! [`records`] decodes them, [`hot`] makes ranges of them for
//! [`Homecoming::prefer`](crate::apply::Homecoming::prefer).
//!
//! What it cannot see: memory that a KVM guest touches while it runs as a guest. The kernel turns
//! PEBS off on guest entry (arch/x86/events/intel/core.c, `intel_guest_get_msrs`, which says why),
//! and the linear address of an IBS sample in a guest is the guest's own: such samples are marked as
//! a guest's, dropped and counted. Under KVM what remains is the monitor's own accesses; VMs that
//! run in software (TCG) are seen whole. Neither PMU was at hand when this was written: opening
//! PEBS and IBS events is not tried on hardware, the rest is by the event of page faults.

pub mod hot;
pub mod records;
pub mod sampler;
pub mod source;

pub use hot::HotPages;
pub use sampler::MemorySampler;
pub use source::Source;
