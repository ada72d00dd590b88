//! Instructions for each scheduling event, by size of the host: simulates the cases `cost/...` under valgrind's
//! callgrind, all at once, and compares the largest host with the smallest.

use crate::built::{built, done};
use crate::scale::callgrind::{Cost, Profile};
use crate::scale::cases::Case;
use crate::scale::table::{Line, Table};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// What begins the names of these cases.
pub(crate) const PREFIX: &str = "cost/";
/// How much more an event may cost on the largest host than on the smallest: must, aim.
const RATIO: [f64; 2] = [1.5, 1.1];
/// Sizes between which the ratio is asked.
const SIZES: [i64; 2] = [8, 384];

/// Costs by operation.
type Costs = BTreeMap<String, Cost>;

/// Measures the cases of this name and adds their lines; a note says why where that is not possible.
pub(crate) fn add_lines(root: &Path, cases: &[Case], earlier: &Earlier, table: &mut Table) {
    let cases: Vec<&Case> = cases.iter().filter(|case| case.name.starts_with(PREFIX)).collect();
    if cases.is_empty() {
        return;
    }
    match measure_costs(root, &cases) {
        Ok(costs) => {
            let sizes: Vec<i64> = cases.iter().map(|case| case.cpus).collect();
            for mut line in make_lines(&sizes, &costs) {
                let key = (line.case.clone(), line.measure.clone());
                line.peers = table.peers.iter().map(|_| None).collect();
                if let Some(last) = line.peers.last_mut() {
                    *last = earlier.get(&key).copied();
                }
                table.push(line);
            }
        }
        Err(reason) => table.notes.push(format!("Cost of an event: skipped: {reason:#}")),
    }
}

/// Values of an earlier table.
type Earlier = BTreeMap<(String, String), f64>;

fn measure_costs(root: &Path, cases: &[&Case]) -> Result<Vec<Costs>> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        bail!("valgrind is not installed (apt-get install valgrind)");
    }
    let program = built(root, &["-p", "instep-sim", "--example", "events"], "events")?;
    let dir = tempfile::tempdir().context("cannot make a scratch directory")?;
    let one = |number: usize, case: &Case| -> Result<Costs> {
        let scenario = dir.path().join(format!("{number}.toml"));
        let profile = dir.path().join(format!("{number}.callgrind"));
        std::fs::write(&scenario, &case.toml).context("cannot write a scenario")?;
        done(
            Command::new("valgrind")
                .args(["-q", "--tool=callgrind"])
                .arg(format!("--callgrind-out-file={}", profile.display()))
                .arg(&program)
                .arg(&scenario),
        )?;
        let text = std::fs::read_to_string(&profile).context("callgrind wrote no profile")?;
        let costs = Profile::parse(&text).context("callgrind's profile")?.costs_by_operation();
        if costs.is_empty() {
            bail!(
                "no operation of bpf/ is in callgrind's profile: is the debug information there?"
            );
        }
        Ok(costs)
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = cases
            .iter()
            .enumerate()
            .map(|(number, case)| scope.spawn(move || one(number, case)))
            .collect();
        all.into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("a measurement panicked")))
            .collect()
    })
}

/// A line for each size and operation, and the ratio between the sizes.
fn make_lines(sizes: &[i64], costs: &[Costs]) -> Vec<Line> {
    let names: BTreeSet<&String> = costs.iter().flat_map(Costs::keys).collect();
    let mut lines = Vec::new();
    for (size, costs) in sizes.iter().zip(costs) {
        let case = format!("{PREFIX}P{size}");
        lines.push(Line::of_count(&case, "instructions an event", per_event(costs)));
        for name in &names {
            let value = costs.get(*name).and_then(Cost::per_event);
            lines.push(Line::of_count(&case, &format!("instructions an event: {name}"), value));
        }
    }
    let at = |size: i64| sizes.iter().position(|own| *own == size).map(|at| &costs[at]);
    let [Some(small), Some(large)] = SIZES.map(at) else { return lines };
    let measure = format!("instructions an event, {} CPUs / {}", SIZES[1], SIZES[0]);
    let ratio = |small: Option<f64>, large: Option<f64>| Some(large? / small?);
    for name in names {
        let [small, large] = [small, large].map(|costs| costs.get(name).and_then(Cost::per_event));
        let of_one = format!("{measure}: {name}");
        lines.push(Line::of_ratio("cost", &of_one, ratio(small, large), None));
    }
    lines.push(Line::of_ratio(
        "cost",
        &measure,
        ratio(per_event(small), per_event(large)),
        Some(RATIO),
    ));
    lines
}

/// Instructions for each event of all operations.
fn per_event(costs: &Costs) -> Option<f64> {
    let events = costs.values().map(|cost| cost.events).sum();
    Cost { events, instructions: costs.values().map(|cost| cost.instructions).sum() }.per_event()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::measure::Verdict;

    #[test]
    fn the_largest_host_is_compared_with_the_smallest() {
        let costs = |each: f64| -> Costs {
            let cost = |events: u64| Cost { events, instructions: events as f64 * each };
            [("dispatch".to_owned(), cost(3)), ("enqueue".to_owned(), cost(1))].into()
        };
        let found = make_lines(&[8, 384], &[costs(100.0), costs(140.0)]);
        assert_eq!(found.len(), 2 * 3 + 3);
        let ratio = found.last().unwrap();
        assert_eq!((ratio.value, ratio.verdict), (Some(1.4), Verdict::Ok));
        assert_eq!(make_lines(&[8, 32], &[costs(1.0), costs(2.0)]).len(), 6);
    }
}
