//! `instep sim FILE --sweep PLACE=VALUES`: the scenario with each combination of values, side by side.

use super::rows::{self, Point};
use super::{bar, ended, name, sweep_page, untuned};
use crate::args::SimArgs;
use crate::pending::{Pending, ensure_apart};
use crate::scenario_file::{Reader, built_in};
use crate::{Outcome, Stamped, print, print_json, tell};
use instep_lab::Stop;
use instep_report::stats::estimate;
use instep_report::table::{Side, Spacing, aligned};
use instep_sim::report::{SimulatedVm, SimulationReport};
use instep_sim::scenario::Overrides;
use instep_sim::scenario::sweep::Sweep;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A measure of a VM, with its name.
pub(super) type Measure = (&'static str, fn(&SimulatedVm) -> Option<f64>);

/// The columns of each VM. `p99 ms` is the 99th percentile of its waits for a CPU.
pub(super) const MEASURES: [Measure; 4] = [
    ("speed", |vm| vm.fair_share_speed),
    ("CPUs", |vm| Some(vm.cpus)),
    ("stacking", |vm| Some(vm.stacking)),
    ("p99 ms", |vm| Some(vm.wait.p99_ns as f64 / 1e6)),
];

/// Makes all combinations, simulates them and prints or writes what came of them.
pub(super) fn command(
    args: &SimArgs,
    file: &Path,
    overrides: &Overrides,
) -> anyhow::Result<Outcome> {
    let sweep = match built_in(file, Reader::Sim) {
        Some(text) => Sweep::of(file, text, overrides, &args.sweep)?,
        None => Sweep::load(file, overrides, &args.sweep)?,
    };
    let seeds = args.seeds.unwrap_or(1);
    let told: BTreeSet<String> =
        sweep.points.iter().filter_map(|point| untuned(&point.plan)).collect();
    told.iter().for_each(|words| tell(words));
    let read = sweep.points.iter().filter_map(|point| point.plan.topology_file.as_deref()).take(1);
    let written: Vec<&Path> = args.csv.iter().chain(&args.html).map(PathBuf::as_path).collect();
    ensure_apart(&std::iter::once(file).chain(read).collect::<Vec<_>>(), &written)?;
    let csv = args.csv.as_deref().map(Pending::new).transpose()?;
    let html = args.html.as_deref().map(Pending::new).transpose()?;
    let stop = Stop::on_signals()?;
    let bar = bar(sweep.points.iter().map(|point| point.plan.work(seeds)).sum());
    let reports = sweep.reports(seeds, &|more| bar.inc(more), &|| stop.raised());
    bar.finish_and_clear();
    let finished: Vec<Point<'_>> = sweep
        .points
        .iter()
        .zip(&reports)
        .filter(|(_, reports)| !reports.is_empty())
        .map(|(point, reports)| (point.values.as_slice(), reports.as_slice()))
        .collect();
    if let Some(pending) = csv {
        rows::keep(pending, &sweep.places, &finished, "a row for each VM, seed and combination")?;
    }
    if let Some(html) = html {
        let page = sweep_page::page(&sweep.places, &finished);
        html.write(page.as_bytes(), "open it in a browser")?;
    }
    if args.json {
        print_json(&Stamped::new(&as_json(&sweep.places, &finished), Some(&name(file))))?;
    } else {
        print(&table(&sweep.places, &finished))?;
    }
    Ok(ended(&stop))
}

/// What `--sweep --json` prints: schema instep.sweep/1.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Sweep")]
pub(crate) struct SweepJson<'a> {
    #[schemars(extend("const" = "instep.sweep/1"))]
    schema: &'static str,
    /// What is varied: places in the scenario.
    places: &'a [String],
    points: Vec<SweepPoint<'a>>,
}

/// A combination.
#[derive(JsonSchema, Serialize)]
struct SweepPoint<'a> {
    /// In the order of the places.
    values: &'a [String],
    /// One for each seed.
    runs: &'a [SimulationReport],
}

fn as_json<'a>(places: &'a [String], points: &[Point<'a>]) -> SweepJson<'a> {
    let points = points.iter().map(|&(values, runs)| SweepPoint { values, runs }).collect();
    SweepJson { schema: "instep.sweep/1", places, points }
}

/// A line for each VM of each combination: means of its seeds with the half of their 95 % interval.
fn table(places: &[String], points: &[Point<'_>]) -> String {
    let mut lines: Vec<Vec<String>> = Vec::new();
    for (values, reports) in points {
        let vms = reports.first().map_or(0, |report| report.vms.len());
        for vm in 0..vms {
            let measures = MEASURES.iter().map(|measure| mean(reports, vm, &measure.1));
            let name = std::iter::once(reports[0].vms[vm].name.clone());
            lines.push(values.iter().cloned().chain(name).chain(measures).collect());
        }
    }
    let head: Vec<(&str, Side)> = (places.iter().map(String::as_str))
        .chain(std::iter::once("VM"))
        .chain(MEASURES.iter().map(|measure| measure.0))
        .map(|title| (title, Side::Left))
        .collect();
    aligned(&head, &lines, Spacing { indent: 0, gap: 2 })
}

fn mean(
    reports: &[SimulationReport],
    vm: usize,
    measure: &dyn Fn(&SimulatedVm) -> Option<f64>,
) -> String {
    let values: Vec<f64> =
        reports.iter().filter_map(|report| measure(report.vms.get(vm)?)).collect();
    match estimate(&values) {
        None => "-".to_owned(),
        Some(found) if values.len() == 1 => format!("{:.2}", found.mean),
        Some(found) => format!("{:.2} ±{:.2}", found.mean, found.high - found.mean),
    }
}
