//! The loop of Instep: observe, decide, apply, record.
//!
//! Joins the host adapter and the policies; holds what one cycle must know of the one before
//! (loads, journal, homes). It knows no file format of the kernel and draws nothing.
#![forbid(unsafe_code)]

pub mod config;
mod cycle;
mod decide;
pub mod dispatch;
pub mod error;
pub mod guard;
mod holding;
mod left_alone;
mod locks;
mod memory;
mod metrics;
mod noise;
pub mod observe;
pub mod published;
pub mod record;
mod reload;
mod restored;
pub mod run;
mod service;
mod signals;
mod sink;
mod soft;
mod state_file;
#[cfg(test)]
mod testing;
pub mod view;
mod vm_key;
pub mod vm_settings;
mod watch;
pub mod xen;

pub use decide::decide;
pub use error::Error;
