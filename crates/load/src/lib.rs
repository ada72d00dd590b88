//! `instep-load`: the load that guests of the lab run. A program of modes, each of which models a
//! workload that virtual machine schedulers are judged by, and prints its progress as JSON.
//!
//! It runs as a child of process 1 in a bare initramfs: it needs no file, no /proc and no library.
//! It does not know whether it runs in a guest, and nothing of Instep.

pub mod args;
pub mod clock;
mod command;
pub mod cpu;
pub mod error;
pub mod frame;
mod futex;
pub mod histogram;
pub mod json;
pub mod mode;
pub mod rendezvous;
mod report;
pub mod rng;
pub mod unit;

pub use command::{execute, help};
