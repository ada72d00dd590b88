//! The families of metrics that have one sample for each VM: name, kind, help, and the value of a VM.

use super::exposition::MetricKind::{self, Counter, Gauge};
use super::{VmMetrics, seconds};
use crate::dispatch::in_force::VmInForce;
use instep_core::units::Nanos;

/// A family of `T`s. What has no value has no sample.
type Family<T> = (&'static str, MetricKind, &'static str, fn(&T) -> Option<f64>);

/// What every run knows.
pub(super) const OF_VMS: [Family<VmMetrics>; 9] = [
    ("instep_vm_run_seconds_total", Counter, "CPU time of the VM's vCPUs.", |vm| {
        Some(seconds(vm.run))
    }),
    (
        "instep_vm_steal_seconds_total",
        Counter,
        "Time in which vCPUs of the VM were runnable and others ran (steal).",
        |vm| Some(seconds(vm.steal)),
    ),
    (
        "instep_vm_throttled_seconds_total",
        Counter,
        "Time in which a CPU quota stopped vCPUs of the VM; it is no steal.",
        |vm| Some(seconds(vm.throttled)),
    ),
    (
        "instep_vm_affinity_changes_total",
        Counter,
        "Affinities of the VM's threads that were set.",
        |vm| Some(vm.changes as f64),
    ),
    (
        "instep_vm_memory_moved_bytes_total",
        Counter,
        "Memory of the VM that was brought to its home.",
        |vm| Some(vm.moved.0 as f64),
    ),
    ("instep_vm_vcpus", Gauge, "vCPUs of the VM.", |vm| Some(vm.vcpus as f64)),
    (
        "instep_vm_stacked_vcpus",
        Gauge,
        "Busy vCPUs of the VM last seen on a CPU with a busy sibling.",
        |vm| Some(vm.stacked as f64),
    ),
    ("instep_vm_quota_cpus", Gauge, "CPUs that the VM may use at most.", |vm| {
        vm.quota_milli.map(|milli| milli as f64 / 1000.0)
    }),
    (
        "instep_vm_locality_ratio",
        Gauge,
        "Part of the VM's memory that is on its home nodes.",
        |vm| vm.locality,
    ),
];

/// What Instep's kernel scheduler knows.
pub(super) const OF_SCHEDULER: [Family<VmInForce>; 12] = [
    (
        "instep_vm_together_seconds_total",
        Counter,
        "Time in which several vCPUs of the VM ran at once.",
        |vm| Some(seconds(Nanos(vm.together_ns))),
    ),
    (
        "instep_vm_apart_seconds_total",
        Counter,
        "Time in which a vCPU of the VM ran while another waited for a CPU.",
        |vm| Some(seconds(Nanos(vm.apart_ns))),
    ),
    (
        "instep_vm_held_seconds_total",
        Counter,
        "Time for which CPU limits of cgroups held threads of the VM.",
        |vm| Some(seconds(Nanos(vm.held_ns))),
    ),
    ("instep_vm_gang_slots_total", Counter, "Gang slots that the VM had.", |vm| {
        Some(vm.gang_slots as f64)
    }),
    (
        "instep_vm_gang_tears_total",
        Counter,
        "Times that a CPU was taken from the VM's gang in its slot.",
        |vm| Some(vm.gang_tears as f64),
    ),
    (
        "instep_vm_wait_p50_seconds",
        Gauge,
        "Half of the waits of the VM's vCPUs for a CPU took at most so long, since it is known.",
        |vm| Some(vm.waits.p50_us as f64 / 1e6),
    ),
    (
        "instep_vm_wait_p99_seconds",
        Gauge,
        "99 % of the waits of the VM's vCPUs for a CPU took at most so long, since it is known.",
        |vm| Some(vm.waits.p99_us as f64 / 1e6),
    ),
    (
        "instep_vm_wait_longest_seconds",
        Gauge,
        "The longest wait of a vCPU of the VM for a CPU since it is known.",
        |vm| Some(vm.waits.longest_us as f64 / 1e6),
    ),
    (
        "instep_vm_lag_seconds",
        Gauge,
        "Virtual time by which the VM is behind its domain's clock; negative when it is ahead.",
        |vm| Some(vm.lag_ns as f64 / 1e9),
    ),
    ("instep_vm_gang_vcpus", Gauge, "vCPUs of the VM's gang.", |vm| Some(vm.gang_vcpus.into())),
    ("instep_vm_gang_cpus", Gauge, "CPUs of the VM's gang set, which has gang slots.", |vm| {
        Some(vm.gang_cpus.into())
    }),
    ("instep_vm_share_cpus", Gauge, "CPUs that the VM is entitled to.", |vm| {
        Some(f64::from(vm.share_milli) / 1000.0)
    }),
];
