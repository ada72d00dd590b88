//! Metrics of a run for Prometheus, by way of node_exporter's textfile collector.
//!
//! Counters of VMs add up the windows of the cycles, so they begin with the run. A VM's labels are its name, which is
//! unique among the VMs of a host, and its UUID. Only VMs that count have samples, and no more than [`MOST_VMS`], so
//! users cannot add labels without end. What is not known has no sample.

mod exposition;
mod families;
mod file;
mod scheduler;

use crate::dispatch::in_force::InForce;
use crate::observe::{Observation, VmKey};
use crate::record::Record;
use exposition::MetricKind::{Counter, Gauge};
use exposition::{Page, cut};
use families::{OF_SCHEDULER, OF_VMS};
use file::TextFile;
use instep_core::snapshot::{Snapshot, Vm};
use instep_core::units::{Bytes, Nanos, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The most VMs with samples, the first by process.
pub(crate) const MOST_VMS: usize = 1024;

/// A vCPU that wants less than this, in thousandths of a CPU, is not counted as stacked.
const BUSY: u64 = 50;

/// What a run has done so far, and how it is now.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    file: TextFile,
    /// The one in the state directory, which `instep serve` reads.
    published: TextFile,
    vms: BTreeMap<VmKey, VmMetrics>,
    cycles_done: u64,
    cycles_failed: u64,
    changes_done: u64,
    changes_failed: u64,
    restored: u64,
    ejections: u64,
    /// Failures of the kernel scheduler when last asked.
    failures: usize,
    host: HostMetrics,
    /// `None` where no history is kept.
    history: Option<HistoryMetrics>,
}

/// The history on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HistoryMetrics {
    pub(crate) bytes: u64,
    /// Records that were written, and those that were not.
    pub(crate) written: u64,
    pub(crate) lost: u64,
}

/// The host after the last cycle that was done.
#[derive(Debug, Default)]
struct HostMetrics {
    busy: Nanos,
    cpus: usize,
    conflicts: usize,
    left_alone: usize,
    duration: Nanos,
    own: Nanos,
    at: Duration,
}

/// One VM.
#[derive(Debug, Default)]
struct VmMetrics {
    name: String,
    uuid: String,
    run: Nanos,
    steal: Nanos,
    throttled: Nanos,
    changes: u64,
    moved: Bytes,
    vcpus: usize,
    stacked: usize,
    quota_milli: Option<u64>,
    memory: BTreeMap<NodeId, Bytes>,
    home: Vec<NodeId>,
    locality: Option<f64>,
}

impl Metrics {
    /// A cycle is done, in which so many threads of VMs that are placed no more were given back.
    pub(crate) fn note_cycle(
        &mut self,
        observation: &Observation,
        record: &Record<'_>,
        (failed, restored): (usize, usize),
    ) {
        let Observation { snapshot, scan } = observation;
        self.cycles_done += 1;
        self.changes_failed += failed as u64;
        self.restored += restored as u64;
        let cost = record.cost;
        self.host = HostMetrics {
            busy: scan.host_busy,
            cpus: snapshot.topology.cpus().len(),
            conflicts: record.conflicts.len(),
            left_alone: snapshot.opaque.len(),
            duration: Nanos(cost.observe_ns.0 + cost.decide_ns.0 + cost.apply_ns.0),
            own: cost.cpu_total_ns,
            at: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
        };
        let mut before = std::mem::take(&mut self.vms);
        for vm in snapshot.vms.iter().take(MOST_VMS) {
            let key = VmKey::from(vm);
            let mut its = before.remove(&key).unwrap_or_default();
            its.uuid = vm.uuid.clone().unwrap_or_default();
            its.note(snapshot, vm, record);
            self.vms.insert(key, its);
        }
        self.changes_done += done(record).count() as u64;
    }

    /// The history on disk is like this now.
    pub(crate) fn note_history(&mut self, history: Option<HistoryMetrics>) {
        self.history = history;
    }

    /// A cycle failed: the host could not be read.
    pub(crate) fn note_failure(&mut self) {
        self.cycles_failed += 1;
    }

    /// Writes all of it to the file of the configuration, if there is one, and to the one in the state directory; no
    /// `in_force` is no kernel scheduler that was asked for. Returns what is worth telling.
    pub(crate) fn write(
        &mut self,
        [path, published]: [Option<&Path>; 2],
        in_force: Option<&InForce>,
    ) -> Option<String> {
        let failures = in_force.map_or(0, |in_force| in_force.failures);
        self.ejections += failures.saturating_sub(self.failures) as u64;
        self.failures = failures;
        let page = (path.is_some() || published.is_some()).then(|| self.page(in_force));
        if let (Some(path), Some(page)) = (published, &page) {
            // What cannot be published is not shown, and that is all.
            self.published.write(path, page);
        }
        match (path, &page) {
            (Some(path), Some(page)) => self.file.write(path, page),
            _ => {
                self.remove();
                None
            }
        }
    }

    /// The run ends: what was is no longer so. What was published goes with all that was.
    pub(crate) fn remove(&mut self) {
        self.file.remove();
        self.file = TextFile::default();
    }

    fn page(&self, in_force: Option<&InForce>) -> String {
        let mut page = Page::default();
        self.host_families(&mut page);
        self.history_families(&mut page);
        self.scheduler_families(&mut page, in_force);
        self.vm_families(&mut page);
        page.0
    }

    fn host_families(&self, page: &mut Page) {
        let host = &self.host;
        page.begin("instep_build_info", Gauge, "The version of instep that runs.");
        page.sample("instep_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        page.begin("instep_cycles_total", Counter, "Cycles of the run by outcome.");
        page.sample("instep_cycles_total", &[("outcome", "done")], self.cycles_done as f64);
        page.sample("instep_cycles_total", &[("outcome", "failed")], self.cycles_failed as f64);
        page.begin("instep_changes_total", Counter, "Affinities that were to be set, by outcome.");
        page.sample("instep_changes_total", &[("outcome", "done")], self.changes_done as f64);
        page.sample("instep_changes_total", &[("outcome", "failed")], self.changes_failed as f64);
        let mut single = |name, kind, help, value| page.single(name, kind, help, value);
        let duration = seconds(host.duration);
        single("instep_cycle_duration_seconds", Gauge, "How long the last cycle took.", duration);
        let at = host.at.as_secs_f64();
        single(
            "instep_cycle_end_time_seconds",
            Gauge,
            "When the last cycle ended, since 1970.",
            at,
        );
        let restored = self.restored as f64;
        let help = "Threads of VMs no longer placed that have their first affinity again.";
        single("instep_restored_threads_total", Counter, help, restored);
        let own = seconds(host.own);
        single("instep_own_cpu_seconds_total", Counter, "CPU time that the run itself used.", own);
        let busy = seconds(host.busy);
        single(
            "instep_host_cpu_seconds_total",
            Counter,
            "CPU time used on all CPUs since boot.",
            busy,
        );
        single("instep_host_cpus", Gauge, "CPUs that are online.", host.cpus as f64);
        let conflicts = host.conflicts as f64;
        single("instep_conflicts", Gauge, "Conflicts between affinities of VMs.", conflicts);
        let left_alone = host.left_alone as f64;
        single("instep_left_alone_vms", Gauge, "VMs that are seen and not placed.", left_alone);
    }

    fn history_families(&self, page: &mut Page) {
        let Some(history) = self.history else { return };
        let help = "Bytes of the history's segments on disk.";
        page.single("instep_history_bytes", Gauge, help, history.bytes as f64);
        let name = "instep_history_records_total";
        page.begin(
            name,
            Counter,
            "Records of the history by outcome; lost ones had no room or failed.",
        );
        page.sample(name, &[("outcome", "written")], history.written as f64);
        page.sample(name, &[("outcome", "lost")], history.lost as f64);
    }

    fn scheduler_families(&self, page: &mut Page, in_force: Option<&InForce>) {
        let is_instep = in_force.is_some_and(|in_force| in_force.instep);
        let help = "1 while Instep's scheduler is in force, 0 under the kernel's default.";
        page.single("instep_scheduler_in_force", Gauge, help, f64::from(u8::from(is_instep)));
        let help = "How often Instep's scheduler ended by itself or could not be loaded.";
        page.single("instep_scheduler_ejections_total", Counter, help, self.ejections as f64);
        let Some(in_force) = in_force.filter(|in_force| in_force.instep) else { return };
        scheduler::write_families(page, in_force);
        for (name, kind, help, value) in OF_SCHEDULER {
            page.begin(name, kind, help);
            for (labels, vm) in self.labelled() {
                let seen = in_force.vms.iter().find(|seen| seen.name == vm.name);
                if let Some(value) = seen.and_then(value) {
                    page.sample(name, &labels, value);
                }
            }
        }
    }

    fn vm_families(&self, page: &mut Page) {
        for (name, kind, help, value) in OF_VMS {
            page.begin(name, kind, help);
            for (labels, vm) in self.labelled() {
                if let Some(value) = value(vm) {
                    page.sample(name, &labels, value);
                }
            }
        }
        let name = "instep_vm_memory_bytes";
        page.begin(name, Gauge, "Resident memory of the VM by NUMA node.");
        for ([vm, uuid], its) in self.labelled() {
            for (node, bytes) in &its.memory {
                page.sample(name, &[vm, uuid, ("node", &node.to_string())], bytes.0 as f64);
            }
        }
        page.begin("instep_vm_home", Gauge, "1 for each NUMA node where the VM is placed.");
        for ([vm, uuid], its) in self.labelled() {
            for node in &its.home {
                page.sample("instep_vm_home", &[vm, uuid, ("node", &node.to_string())], 1.0);
            }
        }
    }

    /// The VMs with their labels, no two of which are the same: names may be cut.
    fn labelled(&self) -> impl Iterator<Item = ([(&'static str, &str); 2], &VmMetrics)> {
        let mut seen = BTreeSet::new();
        self.vms.values().filter_map(move |vm| {
            let (name, uuid) = (cut(&vm.name), cut(&vm.uuid));
            seen.insert((name, uuid)).then_some(([("name", name), ("uuid", uuid)], vm))
        })
    }
}

impl VmMetrics {
    fn note(&mut self, snapshot: &Snapshot, vm: &Vm, record: &Record<'_>) {
        self.name.clone_from(&vm.name);
        let add = |sum: &mut Nanos, more: Nanos| sum.0 = sum.0.saturating_add(more.0);
        add(&mut self.run, vm.busy());
        add(&mut self.steal, vm.steal());
        add(&mut self.throttled, vm.throttled);
        self.changes += done(record).filter(|action| action.action.vm() == vm.name).count() as u64;
        let moved = record.memory.iter().filter(|memory| memory.vm == vm.name);
        self.moved.0 += moved.map(|memory| memory.moved_bytes.0).sum::<u64>();
        self.vcpus = vm.vcpus.len();
        self.quota_milli = vm.quota.map(|quota| quota.0);
        let busy = vm.vcpus.iter().filter(|vcpu| vcpu.demand(snapshot.window).0 >= BUSY);
        let mut on: BTreeMap<_, usize> = BTreeMap::new();
        busy.filter_map(|vcpu| vcpu.cpu).for_each(|cpu| *on.entry(cpu).or_default() += 1);
        self.stacked = on.values().filter(|vcpus| **vcpus > 1).sum();
        self.memory.clone_from(&vm.memory);
        let verdict = record.vms.iter().find(|verdict| verdict.name == vm.name);
        self.home = verdict.map(|verdict| verdict.home_nodes.iter().collect()).unwrap_or_default();
        self.locality = locality(vm, &self.home);
    }
}

/// The part of the VM's memory that is on these nodes; `None` without memory or nodes.
pub(crate) fn locality(vm: &Vm, home: &[NodeId]) -> Option<f64> {
    let (all, there) = (vm.memory_total().0, home.iter().map(|node| vm.memory_on(*node).0));
    (all > 0 && !home.is_empty()).then(|| there.sum::<u64>() as f64 / all as f64)
}

/// The affinities that were set.
fn done<'a>(
    record: &'a Record<'_>,
) -> impl Iterator<Item = &'a crate::record::ActionRecord<'a>> + use<'a> {
    record.actions.iter().filter(|action| action.outcome == crate::record::DONE)
}

fn seconds(time: Nanos) -> f64 {
    Duration::from_nanos(time.0).as_secs_f64()
}

#[cfg(test)]
mod tests;
