//! What may go wrong around a run that places VMs: readers, disks, signals, other users, other hands.
//!
//! The VMs are real QEMU processes whose guests never start: they have all their threads, and use no
//! CPU time. Each test touches only the VM that it starts.
#![cfg(test)]

mod arrival;
mod clock;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../common/mod.rs"]
mod common;
mod disk;
mod held;
mod history;
mod journal;
mod locks;
mod metrics;
mod namespaces;
mod output;
mod owners;
mod prometheus;
mod signals;
mod terminal;
mod vm;
