//! Scribbles over the memory that the loaded scheduler works on, as anything with root's rights may.
//!
//! For the lab's fault tests: whatever is in its tables, the worst that the scheduler does is to be thrown
//! out. Never run it on a host that matters.
//!
//! * `spoil [SEED]`: random bytes everywhere. What follows is not certain.
//! * `spoil error`: one lie, for which the kernel itself throws the scheduler out, each time: all CPUs are in a
//!   scheduling domain that there is not. The next thread that must wait is sent to that domain's queue, and
//!   scx_bpf_dsq_insert_vtime() takes none that was not created (find_dsq_for_dispatch(), kernel/sched/ext.c,
//!   Linux 6.12 to 7.2).

use anyhow::{Context as _, ensure};
use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use std::mem::size_of;
use std::os::fd::{AsFd as _, AsRawFd as _};

// As in the library, which keeps the layout of the scheduler's memory to itself.
#[allow(
    missing_docs,
    dead_code,
    unreachable_pub,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used
)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/bpf_skel.rs"));
}
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use skeleton::types;

/// The last scheduling domain that there is room for; hosts of the lab have a few.
const NO_SUCH_DOMAIN: u32 = 63;

fn main() -> anyhow::Result<()> {
    let name = |info: &libbpf_rs::query::MapInfo| info.name.to_string_lossy().into_owned();
    let state = MapInfoIter::default()
        .find(|info| name(info) == "bpf_bpf.bss")
        .context("Instep's scheduler is not loaded here")?;
    let map = MapHandle::from_map_id(state.id)?;
    match std::env::args().nth(1).as_deref() {
        Some("error") => lie(&map, state.value_size as usize),
        seed => scribble(&map, state.value_size as usize, seed.map_or(Ok(1), str::parse)?),
    }
}

/// Random bytes over all of it.
fn scribble(map: &MapHandle, size: usize, seed: u64) -> anyhow::Result<()> {
    let mut bytes = vec![0; size];
    SplitMix64::seed_from_u64(seed).fill_bytes(&mut bytes);
    map.update(&0u32.to_ne_bytes(), &bytes, MapFlags::ANY)?;
    println!("{size} bytes spoilt");
    Ok(())
}

/// All CPUs in a scheduling domain that has no queue.
fn lie(map: &MapHandle, size: usize) -> anyhow::Result<()> {
    ensure!(size >= size_of::<types::bss>(), "this is not the scheduler of this build");
    // SAFETY: a new mapping of a file descriptor that is open; nothing else is at an address of the kernel's choice.
    let memory = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_SHARED, map.as_fd().as_raw_fd(), 0)
    };
    ensure!(memory != libc::MAP_FAILED, std::io::Error::last_os_error());
    // SAFETY: the mapping is as long as the type, which is integers only but for a pointer that is not read, is
    // aligned to pages and stays to the end of this program. The kernel writes to it at the same time: so there
    // are no references to it, and each field is read and written once by raw pointer.
    unsafe {
        let host = &raw mut (*memory.cast::<types::bss>()).instep;
        let domains = (&raw const (*host).set.nr_domains).read_volatile();
        ensure!(domains <= NO_SUCH_DOMAIN, "there is a scheduling domain {NO_SUCH_DOMAIN}");
        let cpus = &raw mut (*host).cpus;
        for cpu in 0..(*cpus).len() {
            (&raw mut (*cpus)[cpu].domain).write_volatile(NO_SUCH_DOMAIN);
        }
        println!("all CPUs are said to be in scheduling domain {NO_SUCH_DOMAIN}");
    }
    Ok(())
}
