//! What the lab measured and what was simulated, measure by measure, and whether they agree: medians
//! of the lab's runs and of the simulated seeds not further apart than the scenario says.

use super::file::{AgreedQuantity, Both, Measure};
use instep_bench::case::Case;
use instep_bench::cell::BenchCell;
use instep_bench::gather::gather;
use instep_bench::plan::Scheduler;
use instep_bench::report::{CaseReport, DILUTED, Spread};
use instep_kernel::settings::MECHANISMS;
use instep_report::table::{Side, Spacing, aligned};
use instep_sim::report::SimulationReport;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The schema's name.
pub(super) const SCHEMA: &str = "instep.agreement/1";

/// Everything.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "LabAndSimulation")]
pub(crate) struct Agreement {
    #[schemars(extend("const" = "instep.agreement/1"))]
    pub(super) schema: &'static str,
    /// The release of the lab's kernel.
    pub(super) kernel: String,
    pub(super) machine: String,
    /// A hash of the sources of the lab's kernel scheduler (bpf/); none if it is not known.
    pub(super) bpf: Option<String>,
    pub(super) boots: u32,
    /// Seeds simulated.
    pub(super) seeds: u64,
    pub(super) scenarios: Vec<Compared>,
    pub(super) warnings: Vec<String>,
    /// What the lab gave, for `--from`.
    pub(super) cells: Vec<BenchCell>,
}

/// One scenario.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "AgreedScenario")]
pub(crate) struct Compared {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) rows: Vec<Row>,
}

/// One measure. Fractions, 1 a whole; over runs of the lab and over seeds.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "AgreedMeasure")]
pub(crate) struct Row {
    pub(super) measure: AgreedQuantity,
    pub(super) guest: String,
    pub(super) under: String,
    pub(super) lab: Option<Spread>,
    /// Whether that is worth little, as the lab's CPUs had to wait for this machine's.
    pub(super) is_diluted: bool,
    pub(super) simulated: Option<Spread>,
    /// How far the medians may be apart, and why so far.
    pub(super) within: f64,
    pub(super) why: String,
    /// False, too, when one of them is missing.
    pub(super) holds: bool,
    /// Why it is known not to hold.
    pub(super) differs: Option<String>,
    /// How far apart they may be all the same.
    pub(super) at_most: Option<f64>,
}

impl Row {
    /// How far the medians are apart; nothing when one is missing.
    fn distance(&self) -> Option<f64> {
        self.lab
            .as_ref()
            .zip(self.simulated.as_ref())
            .map(|(lab, sim)| (lab.median - sim.median).abs())
    }

    /// Whether it differs no more than is known.
    fn known(&self) -> bool {
        self.distance().zip(self.at_most).is_some_and(|(apart, most)| apart <= most)
    }
}

impl Agreement {
    /// Whether all agrees that is not known to differ, and that no more than known.
    pub(super) fn holds(&self) -> bool {
        self.scenarios.iter().flat_map(|one| &one.rows).all(|row| row.holds || row.known())
    }
}

impl Compared {
    pub(super) fn new(
        both: &Both,
        all: &[Both],
        cells: &[BenchCell],
        simulated: &BTreeMap<String, Vec<SimulationReport>>,
    ) -> Self {
        let names = both.plans.keys();
        let schedulers: Vec<Scheduler> =
            names.filter_map(|name| Scheduler::of(name, &MECHANISMS).ok()).collect();
        // Of all scenarios: what several do alone is measured once, for the first of them.
        let cases: Vec<Case> = all.iter().map(|one| one.case.clone()).collect();
        let gathered = gather(&cases, &schedulers, cells);
        let gathered = gathered.iter().find(|report| report.name == both.case.name);
        let row = |measure: &Measure| {
            let at = both.guests.iter().position(|name| Some(name) == measure.guest.as_ref());
            let at = at.unwrap_or(0);
            let own = cells.iter().filter(|cell| {
                cell.case == both.case.name
                    && cell.scheduler == measure.under
                    && cell.failed.is_none()
            });
            let own: Vec<&BenchCell> = own.collect();
            let lab = in_lab(measure, at, &own, gathered);
            let reports = simulated.get(&measure.under).map_or(&[][..], Vec::as_slice);
            let of = |report| in_simulator(measure.what, at, report, both);
            let simulated = Spread::of(reports.iter().filter_map(of));
            let row = Row {
                measure: measure.what,
                guest: both.guests.get(at).cloned().unwrap_or_default(),
                under: measure.under.clone(),
                lab,
                is_diluted: Spread::of(own.iter().filter_map(|cell| cell.diluted))
                    .is_some_and(|waited| waited.is_diluted()),
                simulated,
                within: measure.within,
                why: measure.why.clone(),
                holds: false,
                differs: measure.differs.clone(),
                at_most: measure.at_most,
            };
            let holds = row.distance().is_some_and(|apart| apart <= row.within);
            Row { holds, ..row }
        };
        Self {
            name: both.case.name.clone(),
            about: both.case.about.clone(),
            rows: both.measures.iter().map(row).collect(),
        }
    }
}

fn in_lab(
    measure: &Measure,
    at: usize,
    cells: &[&BenchCell],
    gathered: Option<&CaseReport>,
) -> Option<Spread> {
    let share = |cell: &BenchCell| part(&cell.cpus, at);
    let of =
        |of: &dyn Fn(&BenchCell) -> Option<f64>| Spread::of(cells.iter().filter_map(|c| of(c)));
    match measure.what {
        AgreedQuantity::Speed => gathered?.results.get(&measure.under)?.fair_share_speed.clone(),
        AgreedQuantity::Share => of(&share),
        AgreedQuantity::Stacking => of(&|cell| cell.stacking),
        AgreedQuantity::CoRun => of(&|cell| cell.co_run),
    }
}

fn in_simulator(
    what: AgreedQuantity,
    at: usize,
    report: &SimulationReport,
    both: &Both,
) -> Option<f64> {
    let vm = report.vms.get(at)?;
    match what {
        // The lab's fair share, by what vCPUs could use, not by what they used alone.
        AgreedQuantity::Speed => {
            let share = both.case.share(both.case.host.cpus());
            Some(vm.throughput / (share * vm.alone.filter(|alone| *alone > 0.0)?))
        }
        AgreedQuantity::Share => {
            part(&report.vms.iter().map(|vm| vm.cpus).collect::<Vec<f64>>(), at)
        }
        AgreedQuantity::Stacking => Some(vm.stacking),
        AgreedQuantity::CoRun => Some(vm.co_run),
    }
}

/// The part of the sum that is at this place.
fn part(all: &[f64], at: usize) -> Option<f64> {
    let sum: f64 = all.iter().sum();
    Some(all.get(at)? / sum).filter(|part| part.is_finite())
}

fn shown(spread: Option<&Spread>) -> String {
    spread.map_or_else(
        || "none".to_owned(),
        |s| format!("{:.2} ({:.2}-{:.2})", s.median, s.min, s.max),
    )
}

fn shown_in_lab(row: &Row) -> String {
    let text = shown(row.lab.as_ref());
    if row.is_diluted { format!("{text}{DILUTED}") } else { text }
}

/// The whole as text.
pub(super) fn table(report: &Agreement) -> String {
    let mut out = format!("lab: kernel {}, {}\n", report.kernel, report.machine);
    for warning in &report.warnings {
        let _ = writeln!(out, "warning: {}", crate::text::printable(warning));
    }
    if report.scenarios.iter().flat_map(|one| &one.rows).any(|row| row.is_diluted) {
        let _ = writeln!(out, "{DILUTED} the lab's CPUs had to wait for this machine's: diluted");
    }
    let _ = writeln!(out, "median (least-most) of its runs and of {} seeds\n", report.seeds);
    let mut rows = Vec::new();
    for one in &report.scenarios {
        for row in &one.rows {
            let what = match row.measure {
                AgreedQuantity::Speed => "speed".to_owned(),
                AgreedQuantity::Share => format!("share of {}", row.guest),
                AgreedQuantity::Stacking => "stacking".to_owned(),
                AgreedQuantity::CoRun => "co-run".to_owned(),
            };
            rows.push(vec![
                one.name.clone(),
                what,
                row.under.clone(),
                shown_in_lab(row),
                shown(row.simulated.as_ref()),
                format!("{:.2}", row.within),
                if row.holds { "yes" } else { "no" }.to_owned(),
            ]);
        }
    }
    let head = [
        ("scenario", Side::Left),
        ("measure", Side::Left),
        ("under", Side::Left),
        ("lab", Side::Right),
        ("simulated", Side::Right),
        ("within", Side::Right),
        ("holds", Side::Left),
    ];
    out.push_str(&aligned(&head, &rows, Spacing { indent: 0, gap: 1 }));
    for one in &report.scenarios {
        for row in one.rows.iter().filter(|row| !row.holds) {
            let said = match (&row.differs, row.at_most) {
                (Some(known), Some(_)) if row.known() => format!("known to differ: {known}"),
                (Some(known), Some(most)) => {
                    format!("known to differ, but by {most} at most: {known}")
                }
                _ => format!("the bound was: {}", row.why),
            };
            let _ = writeln!(out, "{} under {}: {said}", one.name, row.under);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::file::parse;
    use super::*;

    const TEXT: &str = "about = 'x'\nscheduler = 'eevdf'\nduration = '500ms'\nwarmup = '0s'\n[host]\n\
        cores = 2\nmemory = '1GiB'\nmachine = 'ideal'\n[[guest]]\nname = 'a'\nvcpus = 2\n\
        memory = '64MiB'\nload = 'instep-load compute'\n[[guest]]\nname = 'b'\nvcpus = 2\n\
        memory = '64MiB'\nload = 'instep-load compute'\n[[measure]]\nwhat = 'speed'\n\
        under = 'default'\nwithin = 0.1\nwhy = 'x'\n[[measure]]\nwhat = 'share'\nguest = 'b'\n\
        under = 'default'\nwithin = 0.1\nwhy = 'x'\n";

    fn cell(scheduler: &str, rate: f64, cpus: &[f64]) -> BenchCell {
        let scheduler = scheduler.to_owned();
        let (rate, cpus) = (Some(rate), cpus.to_vec());
        BenchCell { case: "x".to_owned(), scheduler, rate, cpus, ..BenchCell::default() }
    }

    fn holds(cells: &[BenchCell]) -> Vec<bool> {
        let both = parse("x", TEXT, "x").unwrap();
        let reports = both.plans["default"].reports(1, &mut (), &|_| (), &|| false);
        let simulated = [("default".to_owned(), reports)].into();
        let compared = Compared::new(&both, std::slice::from_ref(&both), cells, &simulated);
        compared.rows.iter().map(|row| row.holds).collect()
    }

    #[test]
    fn warning_stands_on_top_and_diluted_rows_are_marked() {
        let both = parse("x", TEXT, "x").unwrap();
        let diluted = BenchCell { diluted: Some(0.3), ..cell("default", 51.0, &[1.0, 1.0]) };
        let cells = [cell("alone", 100.0, &[2.0]), diluted];
        let one = std::slice::from_ref(&both);
        let report = Agreement {
            schema: SCHEMA,
            kernel: "7".to_owned(),
            machine: "lab".to_owned(),
            bpf: None,
            boots: 1,
            seeds: 1,
            scenarios: vec![Compared::new(&both, one, &cells, &BTreeMap::new())],
            warnings: vec!["busy".to_owned()],
            cells: cells.to_vec(),
        };
        let text = table(&report);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} in\n{text}"));
        assert!(at("warning: busy") < at("* the lab's CPUs had to wait"), "{text}");
        assert!(at("* the lab's CPUs had to wait") < at("scenario"), "{text}");
        assert!(text.contains("1.02 (1.02-1.02)*"), "{text}");
    }

    #[test]
    fn what_is_known_to_differ_has_a_bound_too() {
        let text = TEXT.replacen("why = 'x'", "why = 'x'\ndiffers = 'y'\nat_most = 0.2", 1);
        let both = parse("x", &text, "x").unwrap();
        let reports = both.plans["default"].reports(1, &mut (), &|_| (), &|| false);
        let simulated = [("default".to_owned(), reports)].into();
        let known = |rate: f64| {
            let cells = [cell("alone", 100.0, &[2.0]), cell("default", rate, &[1.0, 1.0])];
            let row =
                &Compared::new(&both, std::slice::from_ref(&both), &cells, &simulated).rows[0];
            (row.holds, row.known())
        };
        assert_eq!(known(51.0), (true, true));
        assert_eq!(known(58.0), (false, true));
        assert_eq!(known(65.0), (false, false));
    }

    #[test]
    fn what_several_do_alone_is_that_of_the_first() {
        let both = parse("x", TEXT, "x").unwrap();
        let first = parse("first", TEXT, "first").unwrap();
        let reports = both.plans["default"].reports(1, &mut (), &|_| (), &|| false);
        let simulated = [("default".to_owned(), reports)].into();
        let alone = BenchCell { case: "first".to_owned(), ..cell("alone", 100.0, &[2.0]) };
        let cells = [alone, cell("default", 51.0, &[1.0, 1.0])];
        let all = [first, both];
        assert!(Compared::new(&all[1], &all, &cells, &simulated).rows[0].holds);
    }

    #[test]
    fn what_is_near_agrees_and_what_is_far_or_missing_does_not() {
        let alone = || cell("alone", 100.0, &[2.0]);
        assert_eq!(holds(&[alone(), cell("default", 51.0, &[1.0, 1.0])]), [true, true]);
        assert_eq!(holds(&[alone(), cell("default", 60.0, &[1.0, 1.0])]), [false, true]);
        assert_eq!(holds(&[alone(), cell("default", 50.0, &[1.5, 0.5])]), [true, false]);
        assert_eq!(holds(&[cell("default", 50.0, &[1.0, 1.0])]), [false, true]);
        let failed = BenchCell { failed: Some("x".into()), ..cell("default", 0.0, &[1.0, 1.0]) };
        assert_eq!(holds(&[failed]), [false, false]);
    }
}
