//! The guests: programs of threads, what they wait for, and the guest kernel that puts threads on
//! vCPUs. Knows vCPUs as tasks, not how the hypervisor runs them.

pub mod kernel;
pub mod objects;
pub mod program;
