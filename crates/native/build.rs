//! Compiles bpf/policy.h for this machine.

fn main() {
    println!("cargo:rerun-if-changed=../../bpf");
    println!("cargo:rerun-if-changed=src/policy.c");
    cc::Build::new()
        .file("src/policy.c")
        .include("../../bpf")
        .flag_if_supported("-std=gnu11")
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .compile("instep_policy");
}
