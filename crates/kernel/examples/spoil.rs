//! Scribbles over the memory that the loaded scheduler works on, as anything with root's rights may.
//!
//! `spoil [SEED]`. For the lab's fault tests: whatever is in its tables, the worst that the
//! scheduler does is to be thrown out. Never run it on a host that matters.

use anyhow::Context as _;
use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

fn main() -> anyhow::Result<()> {
    let seed = std::env::args().nth(1).map_or(Ok(1), |text| text.parse::<u64>())?;
    let name = |info: &libbpf_rs::query::MapInfo| info.name.to_string_lossy().into_owned();
    let state = MapInfoIter::default()
        .find(|info| name(info) == "bpf_bpf.bss")
        .context("Instep's scheduler is not loaded here")?;
    let map = MapHandle::from_map_id(state.id)?;
    // xorshift64*: every byte is about as likely.
    let mut random = seed.max(1);
    let mut next = || {
        random ^= random >> 12;
        random ^= random << 25;
        random ^= random >> 27;
        random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let mut bytes: Vec<u8> = Vec::new();
    while bytes.len() < state.value_size as usize {
        bytes.extend(next().to_ne_bytes());
    }
    bytes.truncate(state.value_size as usize);
    map.update(&0u32.to_ne_bytes(), &bytes, MapFlags::ANY)?;
    println!("{} bytes spoilt", bytes.len());
    Ok(())
}
