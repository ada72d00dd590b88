//! An emulated host of any topology, in which KVM runs real guests: its kernel, its image, its
//! machine and the channel to it.

pub mod kernel;
pub mod programs;
