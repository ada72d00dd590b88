//! The files that `instep sim` writes beside its table: a Perfetto trace, a page, Parquet, CSV.
//!
//! What cannot be written is known before anything is simulated ([`Pending`]).

use crate::args::SimArgs;
use crate::page::Timeline;
use crate::pending::{Pending, ensure_apart};
use crate::sim::{parquet, rows};
use anyhow::Context as _;
use instep_core::units::{CpuId, Nanos};
use instep_sim::report::SimulationReport;
use instep_sim::scenario::build::SimulationPlan;
use instep_sim::schedule::Spans;
use instep_trace::analysis::discover::FoundVm;
use instep_trace::analysis::{SchedState, Sink as _};
use instep_trace::perfetto::PerfettoWriter;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

const PAGE: &str = include_str!("page.html");

/// The files that are wished for.
pub(super) struct Files {
    title: String,
    perfetto: Option<(PathBuf, PerfettoWriter<BufWriter<NamedTempFile>>)>,
    html: Option<(Pending, Timeline)>,
    parquet: Option<Pending>,
    csv: Option<Pending>,
}

impl Files {
    /// Opens them all.
    pub(super) fn open(args: &SimArgs, plan: &SimulationPlan, title: &str) -> anyhow::Result<Self> {
        let mut next = 0;
        let vms = plan.setup.vms.iter().filter(|vm| !vm.hidden).map(|vm| {
            let tasks = 0..vm.affinity.len() as u32;
            let vcpus = tasks.map(|index| (index, next + index)).collect();
            next += vm.affinity.len() as u32;
            FoundVm { name: vm.name.clone(), pid: None, vcpus }
        });
        let vms: Vec<FoundVm> = vms.collect();
        let outputs = [&args.html, &args.parquet, &args.csv, &args.perfetto];
        let written: Vec<&Path> = outputs.into_iter().flatten().map(PathBuf::as_path).collect();
        let read = args.file.iter().chain(&plan.topology_file);
        ensure_apart(&read.map(PathBuf::as_path).collect::<Vec<_>>(), &written)?;
        let html = args.html.as_deref().map(Pending::new).transpose()?;
        let parquet = args.parquet.as_deref().map(Pending::new).transpose()?;
        let csv = args.csv.as_deref().map(Pending::new).transpose()?;
        let perfetto = args.perfetto.as_deref().map(Pending::new).transpose()?.map(|pending| {
            let mut writer = PerfettoWriter::new(BufWriter::new(pending.file));
            writer.begin(&vms, Nanos(0));
            (pending.to, writer)
        });
        let html = html.map(|pending| {
            let mut timeline = Timeline::default();
            timeline.begin(&vms, Nanos(0));
            (pending, timeline)
        });
        Ok(Self { title: title.to_owned(), perfetto, html, parquet, csv })
    }

    /// Writes what they were opened for and moves them to their places.
    pub(super) fn keep(self, reports: &[SimulationReport]) -> anyhow::Result<()> {
        if let Some((to, writer)) = self.perfetto {
            let file = writer
                .finish()
                .with_context(|| format!("cannot write {}", to.display()))?
                .into_inner()
                .map_err(|error| error.into_error())
                .with_context(|| format!("cannot write {}", to.display()))?;
            Pending { to, file }.keep("open it on ui.perfetto.dev")?;
        }
        if let (Some((pending, timeline)), Some(report)) = (self.html, reports.first()) {
            let page = timeline.page(PAGE, &self.title, report)?;
            pending.write(page.as_bytes(), "open it in a browser")?;
        }
        if let Some(mut pending) = self.parquet {
            let cannot = || format!("cannot write {}", pending.to.display());
            parquet::write(pending.file.as_file_mut(), reports).with_context(cannot)?;
            pending.keep("a row for each VM and seed")?;
        }
        if let Some(pending) = self.csv {
            rows::keep(pending, &[], &[(&[], reports)], "a row for each VM and seed")?;
        }
        Ok(())
    }
}

impl Spans for Files {
    fn span(&mut self, vm: usize, vcpu: usize, ran: bool, cpu: usize, since: u64, until: u64) {
        let cpu = CpuId(cpu as u32);
        let place = if ran { SchedState::Running(cpu) } else { SchedState::Waiting(cpu) };
        let (since, until) = (Nanos(since), Nanos(until));
        if let Some((_, writer)) = &mut self.perfetto {
            writer.span(vm, vcpu, place, since, until);
        }
        if let Some((_, timeline)) = &mut self.html {
            timeline.span(vm, vcpu, place, since, until);
        }
    }
}
