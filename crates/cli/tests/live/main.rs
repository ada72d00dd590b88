//! The `instep` binary beside real QEMU guests under software emulation.
//!
//! What Instep decides depends on all VMs of the machine, so the tests take turns, and those that
//! speak of the whole population skip when another VM runs here. Loads of other processes are not
//! in a test's hands: nothing here fails because the machine is busy.
#![cfg(test)]

mod collecting;
#[path = "../common/mod.rs"]
mod common;
mod definitions;
mod endings;
mod killed;
mod libvirt;
mod numad;
mod placing;
mod profiling;
mod quota;
mod recording;
mod stage;
mod status;
mod three;
mod unprivileged;
