//! What is fed to every parser, by libFuzzer (fuzz_targets/) and by a plain test that includes
//! this file (crates/agent/tests/parsers.rs): nothing may panic, hang or break its promise.
//!
//! To add a parser: a function here, its line in [`TARGETS`], a `[[bin]]` in Cargo.toml of the
//! same name, and its seeds in seeds.rs.

mod apply;
mod topology;

/// A parser under test: fed any bytes, it must return.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("id_lists", topology::id_lists),
    ("topology_files", topology::topology_files),
    ("topology_build", topology::topology_build),
    ("memory_ranges", apply::memory_ranges),
    ("journal", apply::journal),
    ("samples", apply::samples),
    ("sampling_source", apply::sampling_source),
];

/// Feeds `data` to the target called `name`.
///
/// # Panics
/// When there is no such target, or the target found a fault.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    let (_, feed) = target.unwrap_or_else(|| panic!("no target is called {name}"));
    feed(data);
}
