//! Emulated hosts with small real VMs, for the demo and for experiments.
//!
//! The pieces, from the bottom: a [`cache`] of fetched packages, an [`image`] made of them without installing anything, an
//! emulated [`host`] that runs it and never outlives its owner, with its [`scenario`]s, a [`page`] that draws a scenario's
//! report, and the [`demo`] that tells the story on a machine without VMs. It knows nothing of policies and of how Instep finds
//! VMs: the demo runs the `instep` binary as a user would.

pub mod apt;
pub mod cache;
pub mod command;
pub mod cpio;
pub mod demo;
pub mod doctor;
pub mod error;
pub mod host;
pub mod image;
pub mod page;
pub mod process;
pub mod prompt;
pub mod qmp;
pub mod records;
pub mod scenario;
pub mod stop;
pub mod workdir;

pub use error::Error;
pub use stop::Stop;
