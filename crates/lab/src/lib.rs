//! Images, QEMU and consoles: small real VMs for the demo and the tests.
//!
//! The pieces, from the bottom: a [`cache`] of fetched packages, a [`kernel`] and an [`image`]
//! unpacked from them without installing anything, a [`guest`] that runs them and never outlives
//! its owner, an emulated [`host`] with its
//! [`scenario`]s, a [`page`] that draws a scenario's report, and the [`demo`] that tells the story
//! on a machine without VMs. It knows nothing of policies and of how Instep finds VMs:
//! the demo runs the `instep` binary as a user would.

pub mod affinity;
pub mod apt;
pub mod cache;
pub mod command;
pub mod cpio;
pub mod demo;
pub mod doctor;
pub mod error;
pub mod guest;
pub mod host;
pub mod image;
pub mod kernel;
pub mod page;
pub mod process;
pub mod prompt;
pub mod qmp;
pub mod records;
pub mod scenario;
pub mod spec;
pub mod stop;
pub mod workdir;

pub use error::Error;
pub use guest::Guest;
pub use spec::{GuestSpec, Load};
pub use stop::Stop;

use std::path::PathBuf;

/// What every guest boots from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assets {
    /// A Linux kernel image (bzImage).
    pub kernel: PathBuf,
    /// The initramfs of [`image`].
    pub initrd: PathBuf,
}

impl Assets {
    /// Finds or fetches kernel and initramfs into the user's cache; `say` hears what takes long.
    ///
    /// # Errors
    /// When QEMU, the kernel or busybox can neither be found nor fetched: each error names the
    /// next command.
    pub fn obtain(say: &mut dyn FnMut(&str)) -> Result<Self, Error> {
        guest::qemu_present()?;
        let cache = cache::Cache::open()?;
        let stop = Stop::never();
        let kernel = kernel::obtain(&cache, &stop, say)?;
        let initrd = image::obtain(&cache, &stop, say)?;
        Ok(Self { kernel, initrd })
    }
}
