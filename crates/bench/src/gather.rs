//! Cells to figures: medians and spreads by case and scheduler, each cell's speed against the work
//! alone in the same boot.

use crate::case::Case;
use crate::cell::{ALONE, BenchCell};
use crate::plan::{DEFAULT, Scheduler};
use crate::report::{BenchOutcome, CaseReport, Spread};
use std::collections::BTreeMap;

/// The figures of all cases that have cells, in the order of `cases`.
pub fn gather(cases: &[Case], schedulers: &[Scheduler], cells: &[BenchCell]) -> Vec<CaseReport> {
    let reports = cases.iter().map(|case| {
        // The work alone is measured once for all cases that have it.
        let same: Vec<&str> = cases
            .iter()
            .filter(|other| other.is_same_alone(case))
            .map(|other| other.name.as_str())
            .collect();
        let is_own = |cell: &&BenchCell| {
            cell.case == case.name
                || (cell.scheduler == ALONE && same.contains(&cell.case.as_str()))
        };
        let own: Vec<&BenchCell> = cells.iter().filter(is_own).collect();
        one(case, schedulers, &own)
    });
    reports.filter(|report| report.alone.is_some() || !report.results.is_empty()).collect()
}

fn one(case: &Case, schedulers: &[Scheduler], cells: &[&BenchCell]) -> CaseReport {
    let cpus = case.host.cpus();
    let share = case.share(cpus);
    let alone = alone_by_boot(cells);
    let mut results: BTreeMap<String, BenchOutcome> = BTreeMap::new();
    for scheduler in schedulers {
        let own: Vec<&&BenchCell> =
            cells.iter().filter(|cell| cell.scheduler == scheduler.name).collect();
        if !own.is_empty() {
            results.insert(scheduler.name.clone(), outcome(&own, share, &alone));
        }
    }
    if let Some(default) = results.get(DEFAULT).cloned() {
        for outcome in results.values_mut() {
            outcome.beside_default = beside(outcome, &default);
        }
    }
    let of_alone = cells.iter().filter(|cell| cell.scheduler == ALONE);
    let unit = cells.iter().find(|cell| !cell.unit.is_empty());
    CaseReport {
        name: case.name.clone(),
        about: case.about.clone(),
        kind: case.work.kind,
        cpus,
        vcpus: case.work.vcpus,
        share,
        unit: unit.map(|cell| cell.unit.clone()).unwrap_or_default(),
        alone: Spread::of(of_alone.filter_map(|cell| cell.rate)),
        results,
    }
}

/// The median speed beside the default's. Of rates where there are no speeds: machines of several
/// boots differ, and the work alone takes that out.
fn beside(outcome: &BenchOutcome, default: &BenchOutcome) -> Option<f64> {
    let by = |of: fn(&BenchOutcome) -> Option<&Spread>| {
        let default = of(default)?.median;
        Some(of(outcome)?.median / default).filter(|_| default > 0.0)
    };
    by(|outcome| outcome.fair_share_speed.as_ref()).or_else(|| by(|outcome| outcome.rate.as_ref()))
}

/// The median rate alone, by boot.
fn alone_by_boot(cells: &[&BenchCell]) -> BTreeMap<u32, f64> {
    let mut rates: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.scheduler == ALONE) {
        rates.entry(cell.boot).or_default().extend(cell.rate);
    }
    let median = |(boot, rates): (u32, Vec<f64>)| Some((boot, Spread::of(rates)?.median));
    rates.into_iter().filter_map(median).filter(|(_, rate)| *rate > 0.0).collect()
}

fn outcome(cells: &[&&BenchCell], share: f64, alone: &BTreeMap<u32, f64>) -> BenchOutcome {
    let spread =
        |of: &dyn Fn(&BenchCell) -> Option<f64>| Spread::of(cells.iter().filter_map(|c| of(c)));
    let speed = |cell: &BenchCell| Some(cell.rate? / (share * alone.get(&cell.boot)?));
    let mut failed: Vec<String> = cells.iter().filter_map(|cell| cell.failed.clone()).collect();
    failed.dedup();
    let vms = cells.iter().map(|cell| cell.share_errors.len()).max().unwrap_or(0);
    let stacking = spread(&|cell| cell.stacking);
    let competing = spread(&|cell| cell.competing_modules);
    BenchOutcome {
        fair_share_speed: spread(&speed),
        beside_default: None,
        rate: spread(&|cell| cell.rate),
        stacking: stacking.as_ref().map(|spread| spread.median),
        stacking_samples: stacking.map(|spread| spread.samples).unwrap_or_default(),
        competing_modules: competing.as_ref().map(|spread| spread.median),
        competing_modules_samples: competing.map(|spread| spread.samples).unwrap_or_default(),
        share_error: spread(&|cell| cell.share_error),
        share_error_by_vm: (0..vms)
            .map_while(|vm| spread(&|cell| cell.share_errors.get(vm).copied()))
            .collect(),
        wake_p50_ns: spread(&|cell| cell.late_p50_ns.map(|ns| ns as f64)),
        wake_p99_ns: spread(&|cell| cell.late_p99_ns.map(|ns| ns as f64)),
        bpf_ns_per_switch: spread(&|cell| cell.bpf_ns_per_switch),
        bpf_ns_per_call: spread(&|cell| cell.bpf_ns_per_call),
        bpf_cpu: spread(&|cell| cell.bpf_cpu),
        switches_per_s: spread(&|cell| cell.switches_per_s),
        diluted: spread(&|cell| cell.diluted),
        failed,
    }
}

/// What is to be said when the machine below was busy: with the work of others every time is longer, and
/// not for all schedulers alike.
pub fn dilution(cells: &[BenchCell]) -> Option<String> {
    let all = Spread::of(cells.iter().filter_map(|cell| cell.diluted))?;
    all.is_diluted().then(|| {
        format!(
            "this machine was busy with other work: emulated CPUs waited {:.0} % of the time they wanted \
             to run (median of all cells; {:.0} to {:.0} %): measure again when it is quiet",
            all.median * 100.0,
            all.min * 100.0,
            all.max * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn case() -> Vec<Case> {
        let text = "[[case]]\nname = 'a'\nabout = 'x'\nwork = { load = 'x', vcpus = 2 }\n\
                    beside = [{ load = 'x', vcpus = 2 }]\n";
        crate::case::parse(text, Path::new("x")).unwrap()
    }

    fn cell(scheduler: &str, boot: u32, rate: Option<f64>) -> BenchCell {
        let failed = rate.is_none().then(|| "it died".to_owned());
        let (case, scheduler) = ("a".to_owned(), scheduler.to_owned());
        BenchCell { case, scheduler, boot, rate, failed, ..BenchCell::default() }
    }

    fn schedulers() -> Vec<Scheduler> {
        ["default", "instep", "scx_a"].map(|name| Scheduler::of(name, &[]).unwrap()).to_vec()
    }

    #[test]
    fn speed_is_against_the_work_alone_in_the_same_boot() {
        let cells = [
            cell("alone", 0, Some(100.0)),
            cell("alone", 1, Some(200.0)),
            cell("default", 0, Some(25.0)),
            cell("default", 1, Some(25.0)),
            cell("instep", 0, Some(50.0)),
        ];
        let report = &gather(&case(), &schedulers(), &cells)[0];
        let speed = |name: &str| report.results[name].fair_share_speed.clone().unwrap();
        assert_eq!((speed("default").min, speed("default").max), (0.25, 0.5));
        assert_eq!(speed("instep").median, 1.0);
        // Of speeds 0.25 and 0.5, and 1 beside them: not of rates of two boots.
        let beside = report.results["instep"].beside_default.unwrap();
        assert!((beside - 1.0 / 0.375).abs() < 1e-9, "{beside}");
        assert!(!report.results.contains_key("scx_a"));
    }

    #[test]
    fn without_alone_in_its_boot_a_cell_has_a_rate_and_no_speed() {
        let cells = [cell("alone", 0, Some(100.0)), cell("instep", 1, Some(50.0))];
        let report = &gather(&case(), &schedulers(), &cells)[0];
        assert_eq!(report.results["instep"].fair_share_speed, None);
        assert_eq!(report.results["instep"].rate.as_ref().unwrap().median, 50.0);
    }

    #[test]
    fn work_alone_is_shared_by_cases_with_the_same_work() {
        let mut cases = case();
        cases.push(Case { name: "b".to_owned(), beside: Vec::new(), ..cases[0].clone() });
        let mut other = Case { name: "c".to_owned(), ..cases[0].clone() };
        other.work.vcpus = 1;
        cases.push(other);
        let of = |case: &str, scheduler: &str, rate: f64| BenchCell {
            case: case.to_owned(),
            ..cell(scheduler, 0, Some(rate))
        };
        let cells = [of("a", "alone", 100.0), of("b", "instep", 80.0), of("c", "instep", 80.0)];
        let reports = gather(&cases, &schedulers(), &cells);
        let speed = |name: &str| {
            let report = reports.iter().find(|report| report.name == name).unwrap();
            report.results["instep"].fair_share_speed.as_ref().map(|speed| speed.median)
        };
        assert_eq!((speed("b"), speed("c")), (Some(0.8), None));
    }

    #[test]
    fn a_vms_worst_error_of_its_share_is_its_own() {
        let errors = |errors: &[f64]| BenchCell {
            share_error: errors.iter().copied().reduce(f64::max),
            share_errors: errors.to_vec(),
            ..cell("instep", 0, Some(1.0))
        };
        let cells = [errors(&[0.1, 0.3]), errors(&[0.2, 0.1]), cell("instep", 0, None)];
        let outcome = &gather(&case(), &schedulers(), &cells)[0].results["instep"];
        let most: Vec<f64> = outcome.share_error_by_vm.iter().map(|spread| spread.max).collect();
        assert_eq!((most, outcome.share_error.as_ref().unwrap().max), (vec![0.2, 0.3], 0.3));
    }

    #[test]
    fn failures_are_reported_beside_the_runs_that_went_well() {
        let cells =
            [cell("alone", 0, Some(1.0)), cell("instep", 0, None), cell("instep", 0, Some(0.5))];
        let outcome = &gather(&case(), &schedulers(), &cells)[0].results["instep"];
        assert_eq!((outcome.failed.len(), outcome.fair_share_speed.as_ref().unwrap().runs), (1, 1));
    }

    #[test]
    fn busy_machine_is_reported_and_a_quiet_one_is_not() {
        let cells = |all: &[f64]| -> Vec<BenchCell> {
            let of = |diluted: &f64| BenchCell { diluted: Some(*diluted), ..BenchCell::default() };
            all.iter().map(of).collect()
        };
        assert_eq!(dilution(&cells(&[0.01, 0.02, 0.1])), None);
        assert_eq!(dilution(&[BenchCell::default()]), None);
        let said = dilution(&cells(&[0.3, 0.4, 0.5])).unwrap();
        assert!(said.contains("waited 40 %") && said.contains("30 to 50 %"), "{said}");
        assert!(dilution(&cells(&[0.0, 0.0, 0.5])).is_some(), "one cell was spoilt");
    }

    #[test]
    fn a_case_without_cells_is_not_reported() {
        assert!(gather(&case(), &schedulers(), &[]).is_empty());
    }
}
