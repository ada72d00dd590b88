//! Compiles bpf/main.bpf.c for this machine, with the interface of shim/ instead of the kernel's, and
//! tells the crate a hash of the scheduler's sources there.

use std::fs;
use std::path::{Path, PathBuf};

/// FNV-1a (64 bits) over the names and the bytes of all sources but the collector's, by name.
fn hash(dir: &Path) -> std::io::Result<u64> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "c" || ending == "h"));
    files.retain(|path| !name(path).starts_with("collect."));
    files.sort();
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for path in files {
        for byte in [name(&path).as_bytes(), b"\0", &fs::read(&path)?, b"\0"].concat() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Ok(hash)
}

fn main() {
    println!("cargo:rerun-if-changed=../../bpf");
    println!("cargo:rerun-if-changed=shim");
    let hash = hash(Path::new("../../bpf")).expect("bpf/ is beside crates/");
    println!("cargo:rustc-env=INSTEP_BPF_SOURCES={hash:016x}");
    cc::Build::new()
        .file("shim/shim.c")
        .file("shim/policy.c")
        .include("shim")
        .include("../../bpf")
        .flag_if_supported("-std=gnu11")
        // As in the kernel: signed arithmetic wraps, types may be read through others.
        .flag_if_supported("-fwrapv")
        .flag_if_supported("-fno-strict-aliasing")
        .flag_if_supported("-ffunction-sections")
        .opt_level(2)
        .warnings(true)
        .flag_if_supported("-Wno-unused-function")
        .flag_if_supported("-Wno-unused-variable")
        .flag_if_supported("-Wno-unused-parameter")
        .flag_if_supported("-Wno-sign-compare")
        .warnings_into_errors(true)
        .compile("instep_scx");
}
