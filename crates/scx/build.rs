//! Compiles bpf/main.bpf.c for this machine, with the interface of shim/ instead of the kernel's.

fn main() {
    println!("cargo:rerun-if-changed=../../bpf");
    println!("cargo:rerun-if-changed=shim");
    cc::Build::new()
        .file("shim/shim.c")
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
