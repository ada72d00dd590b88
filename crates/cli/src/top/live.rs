//! Where the frames of `instep top` come from: looks at this host again and again, or once at a copy.

use super::Source as Frames;
use super::frame::{Extra, Frame};
use super::state::State;
use crate::args::TopArgs;
use crate::hypervisor;
use crate::observe::{observe, root, state_dir};
use instep_agent::config::Config;
use instep_agent::dispatch::{read, take_held};
use instep_agent::observe::{Observation, Observer};
use instep_agent::xen::{DomainObservation, Memory, PriorScan, observe_domains};
use instep_core::snapshot::{Snapshot, Vm};
use instep_core::units::{Nanos, Tid, VmId};
use instep_host::Root;
use instep_host::discover::ScanOptions;
use instep_host::profile::{Tracer, watch};
use instep_xen::scan::{Depth, scan};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// So many vCPUs are traced at most, but for those of the selected VM: what tracing costs (some microseconds a
/// switch, a descriptor and a ring a thread) is bounded.
const MAX_TRACED: usize = 256;
/// With more vCPUs than this, blocks are counted of none: a file a vCPU would have to be read.
const MAX_COUNTED: u64 = 4096;

/// So many warnings are kept at most.
const MAX_WARNINGS: usize = 32;

/// The host that is looked at.
pub(super) struct Live {
    root: Root,
    /// Where a run of this host says what its kernel scheduler does.
    state: Option<PathBuf>,
    interval: Duration,
    source: Source,
    warnings: Vec<String>,
    blocks: BTreeMap<Tid, u64>,
    traced: BTreeMap<VmId, Traced>,
}

/// A VM that is traced.
struct Traced {
    tids: Vec<Tid>,
    tracer: Tracer,
}

enum Source {
    Host(Box<Observer>),
    /// A Xen host, and the look that the next window begins with.
    Xen(instep_xen::Source, Box<instep_xen::XenScan>),
    Copy(Box<Snapshot>, Extra),
}

impl Live {
    /// Looks for the first time; a live host for the time of the window.
    pub(super) fn new(args: &TopArgs) -> anyhow::Result<Self> {
        let root = root(args.host.root.as_deref())?;
        let mut config = Config::default();
        config.window = args.host.window.unwrap_or(config.window);
        config.memory.home = false;
        let new = |source, warnings| Self {
            root: root.clone(),
            state: state_dir(args.host.state_dir.as_deref()).ok().map(|dir| dir.path().to_owned()),
            interval: args.interval,
            source,
            warnings,
            blocks: BTreeMap::new(),
            traced: BTreeMap::new(),
        };
        let xen = hypervisor::xen(args.host.hypervisor, args.host.root.as_deref())?;
        let is_xen = xen.is_some();
        if let Some(xen) = xen.filter(|_| root.is_live()) {
            let before = scan(&xen, Depth::Times)?;
            std::thread::sleep(config.window);
            return Ok(new(Source::Xen(xen, Box::new(before)), Vec::new()));
        }
        if is_xen || !root.is_live() {
            let observed = observe(&args.host, &config, None)?;
            let extra = match &args.host.before {
                Some(before) if !is_xen => copied(&observed.snapshot, &Root::at(before), &root),
                _ => Extra::default(),
            };
            let source = Source::Copy(Box::new(observed.snapshot), extra);
            return Ok(new(source, observed.warnings));
        }
        let mut observer = Observer::new(root.clone(), ScanOptions::default())?;
        let warnings = observer.topology().warnings().to_vec();
        observer.begin()?;
        let mut live = new(Source::Host(Box::new(observer)), warnings);
        // Blocks are differences, too; who is there is not known before a first frame.
        live.frame(None)?;
        std::thread::sleep(config.window);
        Ok(live)
    }

    /// What should be said of the looks up to now.
    pub(super) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The next frame. VMs are traced, where that is allowed, for their co-run, `chosen` in any case: it is
    /// known from the second frame on.
    pub(super) fn frame(&mut self, chosen: Option<VmId>) -> anyhow::Result<Frame> {
        let snapshot = match &mut self.source {
            Source::Copy(snapshot, extra) => return Ok(Frame::new(snapshot, extra)),
            Source::Xen(xen, before) => {
                let known = PriorScan { before: Some(before), ..PriorScan::default() };
                let DomainObservation { snapshot, scan, .. } =
                    observe_domains(xen, Depth::Full, &known, &mut Memory::new())?;
                scan.warnings.iter().for_each(|warning| note(&mut self.warnings, warning));
                **before = scan;
                return Ok(Frame::new(&snapshot, &Extra::default()));
            }
            Source::Host(observer) => {
                let Observation { mut snapshot, scan } = observer.observe(None, None)?;
                scan.warnings.iter().for_each(|warning| note(&mut self.warnings, warning));
                observer.continue_from(scan);
                if let Some(told) = self.state.as_deref().and_then(read).filter(|told| told.instep)
                {
                    take_held(&mut snapshot.vms, snapshot.window, &told.vms);
                }
                snapshot
            }
        };
        let mut extra = Extra::default();
        if snapshot.vcpu_count() <= MAX_COUNTED {
            let counts = counts(&snapshot, &self.root);
            extra.blocks = differences(&self.blocks, &counts);
            self.blocks = counts;
        }
        self.trace(&snapshot, chosen, &mut extra);
        Ok(Frame::new(&snapshot, &extra))
    }

    fn trace(&mut self, snapshot: &Snapshot, chosen: Option<VmId>, extra: &mut Extra) {
        let traced = &self.traced;
        let wanted = wanted(snapshot, chosen, |vm| traced.contains_key(&vm), MAX_TRACED);
        let at_once = wanted.iter().map(|vm| vm.vcpus.len()).sum();
        self.traced.retain(|id, _| wanted.iter().any(|vm| vm.id == *id));
        for vm in wanted {
            let tids: Vec<Tid> = vm.vcpus.iter().map(|vcpu| vcpu.tid).collect();
            if let Some(traced) = self.traced.get_mut(&vm.id).filter(|traced| traced.tids == tids) {
                traced.tracer.end_interval();
                // Both are of the time since the frame before.
                let waited = Nanos(vm.vcpus.iter().map(|vcpu| vcpu.steal.0).sum());
                extra.co_run.extend(traced.tracer.co_run(waited).map(|co_run| (vm.id, co_run)));
                continue;
            }
            // Without the privilege co-run stays unknown, and is shown so.
            match Tracer::of_vcpus(&tids, at_once) {
                Ok(tracer) => self.traced.insert(vm.id, Traced { tids, tracer }),
                Err(error) => {
                    note(&mut self.warnings, &format!("co-run is not known: {error}"));
                    self.traced.remove(&vm.id)
                }
            };
        }
    }
}

impl Frames for Live {
    fn interval(&self, _: &State) -> Duration {
        self.interval
    }

    fn turn(
        &mut self,
        state: &mut State,
        frame: &Frame,
        is_due: bool,
    ) -> anyhow::Result<Option<Frame>> {
        // A copy never changes.
        if !is_due || state.paused || matches!(self.source, Source::Copy(..)) {
            return Ok(None);
        }
        let rows = state.rows(frame);
        let chosen = rows.get(state.cursor(frame, &rows)).map(|place| frame.vms[*place].id);
        self.frame(chosen).map(Some)
    }
}

/// Keeps what was not said before.
fn note(warnings: &mut Vec<String>, said: &str) {
    if warnings.len() < MAX_WARNINGS && warnings.iter().all(|known| known != said) {
        warnings.push(said.to_owned());
    }
}

/// The VMs that are traced: the selected one, then those that are already, for co-run is told of two looks,
/// then those that use most, as long as they have no more than `most` vCPUs.
fn wanted(
    snapshot: &Snapshot,
    chosen: Option<VmId>,
    is_traced: impl Fn(VmId) -> bool,
    most: usize,
) -> Vec<&Vm> {
    let mut vms: Vec<&Vm> = snapshot.vms.iter().collect();
    let rank = |vm: &Vm| (Some(vm.id) != chosen, !is_traced(vm.id), Reverse(vm.busy()), vm.id);
    vms.sort_by_key(|vm| rank(vm));
    let mut room = most;
    vms.retain(|vm| {
        let fits = vm.vcpus.len() <= room;
        let is_kept = fits || Some(vm.id) == chosen;
        room = room.saturating_sub(if is_kept { vm.vcpus.len() } else { 0 });
        is_kept
    });
    vms
}

/// Blocks of every vCPU since it started.
fn counts(snapshot: &Snapshot, root: &Root) -> BTreeMap<Tid, u64> {
    let threads = snapshot.vms.iter().flat_map(|vm| vm.vcpus.iter().map(|vcpu| (vm.id, vcpu.tid)));
    threads.filter_map(|(vm, tid)| Some((tid, watch::switches(root, vm.0, tid)?.0))).collect()
}

fn differences(before: &BTreeMap<Tid, u64>, now: &BTreeMap<Tid, u64>) -> BTreeMap<Tid, u64> {
    let since = |(tid, count): (&Tid, &u64)| Some((*tid, count.checked_sub(*before.get(tid)?)?));
    now.iter().filter_map(since).collect()
}

/// Blocks between two copies, as in the snapshot's window.
fn copied(snapshot: &Snapshot, before: &Root, after: &Root) -> Extra {
    let blocks = differences(&counts(snapshot, before), &counts(snapshot, after));
    Extra {
        blocks: if snapshot.window > Nanos(0) { blocks } else { BTreeMap::new() },
        ..Extra::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::tests::{snapshot, vm};
    use super::*;
    use instep_madehost::HostSpec;

    #[test]
    fn a_warning_is_kept_once_and_not_without_end() {
        let mut warnings = Vec::new();
        (0..100).for_each(|number| note(&mut warnings, &format!("{}", number / 2)));
        assert_eq!((warnings.len(), warnings[1].as_str()), (MAX_WARNINGS, "1"));
    }

    #[test]
    fn selected_vm_is_traced_and_others_as_far_as_there_is_room() {
        // 2, 3 and 1 vCPUs.
        let vms =
            vec![vm("a", 0, &[0, 1], 100), vm("b", 0, &[0, 1, 2], 900), vm("c", 0, &[3], 500)];
        let snapshot = snapshot(HostSpec::new(1, 4), vms);
        let [a, b, c] = [0, 1, 2].map(|place| snapshot.vms[place].id);
        let of = |chosen, traced: &[VmId], most| -> Vec<VmId> {
            let are = |vm| traced.contains(&vm);
            wanted(&snapshot, chosen, are, most).iter().map(|vm| vm.id).collect()
        };
        assert_eq!(of(None, &[], 256), [b, c, a], "all, who uses most first");
        assert_eq!(of(None, &[], 4), [b, c], "no room for two more");
        assert_eq!(of(None, &[a, c], 4), [c, a], "who is traced stays");
        assert_eq!(of(Some(a), &[c], 5), [a, c]);
        assert_eq!(of(Some(b), &[], 2), [b], "the selected one in any case");
    }
}
