//! Builds the BPF object and its skeleton when the feature `kernel` is on; else does nothing.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "kernel")]
    build();
}

#[cfg(feature = "kernel")]
fn build() {
    println!("cargo:rerun-if-changed=../../bpf");
    println!("cargo:rerun-if-env-changed=BPF_CLANG");
    let hint = "clang 16 or newer; name it in BPF_CLANG (apt-get install clang-19 libelf-dev \
                zlib1g-dev pkg-config)";
    let mut builder = scx_cargo::BpfBuilder::new().expect(hint);
    builder.enable_skel("../../bpf/main.bpf.c", "bpf").build().expect("bpf/main.bpf.c compiles");
    let mut collector = scx_cargo::BpfBuilder::new().expect(hint);
    collector
        .enable_skel("../../bpf/collect.bpf.c", "collect")
        .build()
        .expect("bpf/collect.bpf.c compiles");
}
