//! Where the frames of `instep top` come from: looks at this host again and again, or once at a copy.

use super::frame::{Extra, Frame};
use crate::args::TopArgs;
use crate::observe::{observe, root};
use instep_agent::config::Config;
use instep_agent::observe::{Observation, Observer};
use instep_core::snapshot::Snapshot;
use instep_core::units::{Nanos, Tid, VmId};
use instep_host::Root;
use instep_host::discover::ScanOptions;
use instep_host::profile::{Tracer, watch};
use std::collections::BTreeMap;

/// With more vCPUs than this, blocks are counted of none: a file a vCPU would have to be read.
const MAX_COUNTED: u64 = 4096;

/// The host that is looked at.
pub(super) struct Live {
    root: Root,
    source: Source,
    warnings: Vec<String>,
    blocks: BTreeMap<Tid, u64>,
    traced: Option<(VmId, Tracer)>,
}

enum Source {
    Host(Box<Observer>),
    Copy(Box<Snapshot>, Extra),
}

impl Live {
    /// Looks for the first time; a live host for the time of the window.
    pub(super) fn new(args: &TopArgs) -> anyhow::Result<Self> {
        let root = root(args.host.root.as_deref())?;
        let mut config = Config::default();
        config.window = args.host.window.unwrap_or(config.window);
        let new = |source, warnings| Self {
            root: root.clone(),
            source,
            warnings,
            blocks: BTreeMap::new(),
            traced: None,
        };
        if !root.is_live() {
            let observed = observe(&args.host, &config)?;
            let extra = match &args.host.before {
                Some(before) => copied(&observed.snapshot, &Root::at(before), &root),
                None => Extra::default(),
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

    /// Whether a later frame can differ.
    pub(super) fn changes(&self) -> bool {
        matches!(self.source, Source::Host(_))
    }

    /// What should be said of the first look.
    pub(super) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The next frame; `chosen` is traced, where that is allowed, for its co-run.
    pub(super) fn frame(&mut self, chosen: Option<VmId>) -> anyhow::Result<Frame> {
        let snapshot = match &mut self.source {
            Source::Copy(snapshot, extra) => return Ok(Frame::new(snapshot, extra)),
            Source::Host(observer) => {
                let Observation { snapshot, scan } = observer.look(None, None)?;
                observer.continue_from(scan);
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
        let Some(vm) = chosen.and_then(|id| snapshot.vm(id)) else { return };
        if let Some((id, tracer)) = self.traced.as_mut().filter(|(id, _)| *id == vm.id) {
            tracer.look();
            // Both are of the time since the frame before.
            let waited = Nanos(vm.vcpus.iter().map(|vcpu| vcpu.steal.0).sum());
            extra.co_run.extend(tracer.co_run(waited).map(|co_run| (*id, co_run)));
            return;
        }
        let tids: Vec<Tid> = vm.vcpus.iter().map(|vcpu| vcpu.tid).collect();
        // Without the privilege co-run stays unknown, and is shown so.
        self.traced = Tracer::of_threads(&tids, true).ok().map(|tracer| (vm.id, tracer));
    }
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
