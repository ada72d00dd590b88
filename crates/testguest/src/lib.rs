//! Small real guests for tests, booted on this machine itself by QEMU's translator.
//!
//! A kernel of the distribution ([`kernel`]) and one busybox with a script ([`image`]) make a [`Guest`], which never
//! outlives its owner; [`affinity`] is what the kernel says of its threads. The laboratory's emulated hosts are of
//! `instep-lab`, which has no need of these.

pub mod affinity;
mod guest;
pub mod image;
pub mod kernel;
mod spec;

pub use guest::{Beat, Guest};
pub use spec::{GuestLoad, GuestSpec};

use instep_lab::cache::Cache;
use instep_lab::host::emulator;
use instep_lab::{Error, Stop};
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
        let stop = Stop::never();
        emulator::own(&stop).ok_or_else(emulator::no_qemu)?;
        let cache = Cache::open()?;
        let kernel = kernel::obtain(&cache, &stop, say)?;
        let initrd = image::obtain(&cache, &stop, say)?;
        Ok(Self { kernel, initrd })
    }
}
