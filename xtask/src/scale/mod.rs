//! `cargo xtask bench scale`: what the kernel scheduler reaches on hosts of 2 to 384 CPUs, simulated, beside what
//! it must reach and beside other schedulers. Cases and targets: scenarios/scale/targets.toml.
//!
//! The column `before` has the values of scenarios/scale/before.json, an earlier `--json`.

mod callgrind;
mod cases;
mod cost;
mod jobs;
mod measure;
mod mechanisms;
mod options;
pub(crate) mod page;
mod table;

use anyhow::{Context, Result, bail};
use cases::Case;
use instep_report::stats;
use jobs::Job;
use measure::Verdict;
pub(crate) use options::Options;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;
use table::Table;

/// The name of the column with earlier values.
const BEFORE: &str = "before";

/// Values by case, row and column.
type Values = BTreeMap<(usize, usize), BTreeMap<String, f64>>;

/// Simulates, prints; whether everything that must be reached is.
pub(crate) fn run(root: &Path, options: &Options) -> Result<bool> {
    options.check()?;
    let known = instep_abi::MECHANISMS.map(str::to_owned);
    mechanisms::check_names(&options.without, &known)?;
    let dir = root.join("scenarios/scale");
    let mut cases = cases::read_cases(&dir)?;
    cases.retain(|case| options.wants(case));
    if cases.is_empty() {
        bail!("no case is of that name; scenarios/scale/targets.toml has the names");
    }
    if let Some(to) = &options.write {
        return write_scenarios(to, &cases).map(|()| true);
    }
    for path in [&options.json, &options.html].into_iter().flatten() {
        check_writable(path)?;
    }
    if options.mechanisms {
        cases.retain(|case| mechanisms::is_of_size(options, case));
        let names = if options.without.is_empty() { &known[..] } else { &options.without };
        return mechanisms::run(root, &cases, options, names);
    }
    let mut table = Table {
        judged: options.schedulers.first().cloned().unwrap_or_default(),
        peers: options.schedulers.iter().skip(1).cloned().collect(),
        ..Table::default()
    };
    table.notes.push(note_seeds(options));
    let mut values = simulate_cases(root, &cases, options, &mut table.notes)?;
    let earlier = read_earlier(&dir.join("before.json"))?;
    if !earlier.is_empty() {
        add_earlier(&mut values, &cases, &earlier);
        table.peers.push(BEFORE.to_owned());
    }
    for (at, case) in cases.iter().enumerate() {
        for (number, row) in case.rows.iter().enumerate() {
            table.add(case, row, values.get(&(at, number)).unwrap_or(&BTreeMap::new()));
        }
    }
    if table.judged == "instep" && options.without.is_empty() {
        cost::add_lines(root, &cases, &earlier, &mut table);
    }
    publish(root, options, &table)
}

/// Fails where a file cannot be written, before minutes are spent on what it is to hold.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file that was asked for.
pub(crate) fn write_wanted(path: Option<&Path>, text: String) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Prints the table and writes the files that were asked for.
fn publish(root: &Path, options: &Options, table: &Table) -> Result<bool> {
    println!("{}", table.markdown());
    if table.count(Verdict::Informs) < table.lines.len() {
        println!("{}", table.markdown_of_groups());
    }
    println!("{}.", table.summary());
    table.notes.iter().for_each(|note| println!("{note}."));
    let commit = read_commit(root);
    write_wanted(options.json.as_deref(), table.json(&commit))?;
    write_wanted(options.html.as_deref(), page::render(table, &commit))?;
    Ok(table.count(Verdict::Missed) == 0)
}

/// The medians of all rows; what failed is noted.
fn simulate_cases(
    root: &Path,
    cases: &[Case],
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Values> {
    let contestants = options.list_contestants();
    let mut jobs = Vec::new();
    // The cost of an event is measured in another way.
    for case in (0..cases.len()).filter(|case| !cases[*case].rows.is_empty()) {
        let of = |scheduler| Job { case, scheduler, seeds: options.seeds(scheduler) };
        let is_wanted = |at: &usize| !cases[case].leave_out.contains(&options.schedulers[*at]);
        jobs.extend((0..options.schedulers.len()).filter(is_wanted).map(of));
    }
    let mut values = Values::new();
    if jobs.is_empty() {
        return Ok(values);
    }
    jobs::simulate(root, cases, &contestants, jobs, |job, result| {
        let (case, scheduler) = (&cases[job.case], &options.schedulers[job.scheduler]);
        if let Some(reason) = find_failure(result) {
            let under = &contestants[job.scheduler];
            notes.push(format!("{} {under} has no values: {reason}", case.name));
            return;
        }
        for (number, row) in case.rows.iter().enumerate() {
            if let Some(value) = stats::median(&row.read_values(result)) {
                let columns = values.entry((job.case, number)).or_default();
                columns.insert(scheduler.clone(), value);
            }
        }
    })?;
    // Jobs end in any order.
    notes.sort();
    Ok(values)
}

/// Why a job's result means nothing, if so: it was not simulated, or the host threw the scheduler out.
fn find_failure(result: &serde_json::Value) -> Option<String> {
    if let Some(error) = result["error"].as_str() {
        return Some(error.to_owned());
    }
    let runs = result["reports"].as_array().into_iter().flatten();
    let mut failed = runs.filter_map(|report| Some((&report["seed"], report["failed"].as_str()?)));
    failed
        .next()
        .map(|(seed, what)| format!("with seed {seed} the scheduler was thrown out: {what}"))
}

/// The values of an earlier table; none where there is no such file.
fn read_earlier(path: &Path) -> Result<BTreeMap<(String, String), f64>> {
    if !path.exists() {
        return Ok(BTreeMap::new());
    }
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(table::parse_values(&text))
}

fn add_earlier(values: &mut Values, cases: &[Case], earlier: &BTreeMap<(String, String), f64>) {
    for (at, case) in cases.iter().enumerate() {
        for (number, row) in case.rows.iter().enumerate() {
            if let Some(value) = earlier.get(&(case.name.clone(), row.to_string())) {
                values.entry((at, number)).or_default().insert(BEFORE.to_owned(), *value);
            }
        }
    }
}

fn note_seeds(options: &Options) -> String {
    let (own, peers) = (options.seeds(0), options.seeds(1));
    let judged = options.schedulers.first().map_or("", String::as_str);
    let without = match options.without.is_empty() {
        true => String::new(),
        false => format!(
            ". Under instep these mechanisms are off, for VMs alone, too: {}",
            options.without.join(", ")
        ),
    };
    format!("Medians: {judged} of {own} seeds, the other schedulers of {peers}{without}")
}

/// Writes each case as a file for `instep sim`.
fn write_scenarios(to: &Path, cases: &[Case]) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for case in cases {
        let path = to.join(format!("{}.toml", case.name.replace('/', "-")));
        std::fs::write(&path, &case.toml)
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// The commit that was measured, with `+` if files differ from it.
pub(crate) fn read_commit(root: &Path) -> String {
    let asked = Command::new("git")
        .current_dir(root)
        .args(["describe", "--always", "--exclude=*", "--dirty=+"])
        .output();
    let text = asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok().filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_scheduler_that_was_thrown_out_has_no_values() {
        assert_eq!(find_failure(&json!({ "reports": [{ "seed": 1 }] })), None);
        let thrown_out = json!({ "reports": [{ "seed": 1 }, { "seed": 2, "failed": "stall" }] });
        assert!(
            find_failure(&thrown_out)
                .is_some_and(|what| what.contains("seed 2") && what.contains("stall"))
        );
        assert_eq!(find_failure(&json!({ "error": "no room" })), Some("no room".to_owned()));
    }
}
