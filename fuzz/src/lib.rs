//! What is fed to every parser, by libFuzzer (fuzz_targets/) and by a plain test that includes
//! this file (crates/agent/tests/parsers.rs): nothing may panic, hang or break its promise.
//!
//! To add a parser: a function in one of the modules, its line in [`TARGETS`], a `[[bin]]` of the
//! same name in Cargo.toml, and its seeds in seeds.rs. The test tells what is missing.

mod apply;
mod documents;
mod process;
mod rest;
mod topology;
mod trace;
mod xen;

/// A parser under test: fed any bytes, it must return.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("cgroup_files", rest::cgroup_files),
    ("cgroup_values", rest::cgroup_values),
    ("command_lines", process::command_lines),
    ("config", rest::config),
    ("damon_regions", apply::damon_regions),
    ("guest_ranges", apply::guest_ranges),
    ("history", rest::history),
    ("http_requests", rest::http_requests),
    ("id_lists", topology::id_lists),
    ("journal", apply::journal),
    ("memory_ranges", apply::memory_ranges),
    ("moments", rest::moments),
    ("mounts", rest::mounts),
    ("numa_maps", process::numa_maps),
    ("numa_stat", rest::numa_stat),
    ("perf_data", trace::perf_data),
    ("proc_files", process::proc_files),
    ("qmp_answers", rest::qmp_answers),
    ("recording", trace::recording),
    ("ring_pages", trace::ring_pages),
    ("results", documents::results),
    ("switches", apply::switches),
    ("thread_names", process::thread_names),
    ("topology_build", topology::topology_build),
    ("topology_files", topology::topology_files),
    ("topology_json", documents::topology_json),
    ("trace_dat", trace::trace_dat),
    ("vm_definitions", rest::vm_definitions),
    ("xen_configs", xen::configs),
    ("xen_cpupools", xen::cpupools),
    ("xen_info", xen::info),
    ("xen_journal", xen::journal),
    ("xen_list", xen::list),
    ("xen_node_memory", xen::node_memory),
    ("xen_sched", xen::sched),
    ("xen_uptime", xen::uptime),
    ("xen_vcpu_list", xen::vcpu_list),
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
