//! Results as CSV: a row for each VM of each run, with the columns of Parquet ([`parquet`]) and before them the values of
//! a sweep. What is null there is empty here. Numbers are written so that they are read back as they were.

use super::parquet::{self, Values};
use crate::pending::Pending;
use anyhow::Context as _;
use instep_sim::report::SimulationReport;
use std::io::Write;

/// A point of a sweep: its values, and what came of each seed.
pub(super) type Point<'a> = (&'a [String], &'a [SimulationReport]);

/// Writes them into this file, and moves it to its place; `what` is what it has.
pub(super) fn keep(
    mut file: Pending,
    places: &[String],
    points: &[Point<'_>],
    what: &str,
) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", file.to.display());
    write(file.file.as_file_mut(), places, points).with_context(cannot)?;
    file.keep(what)
}

/// Writes the VMs of these runs; `places` names the values of the points.
fn write(out: impl Write, places: &[String], points: &[Point<'_>]) -> csv::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    let empty = parquet::columns(&[]);
    // What is a column already, such as the scheduler, is not written twice.
    let own: Vec<usize> =
        (0..places.len()).filter(|at| empty.iter().all(|(name, _)| *name != places[*at])).collect();
    let names = empty.iter().map(|(name, _)| *name);
    writer.write_record(own.iter().map(|at| places[*at].as_str()).chain(names))?;
    for (values, reports) in points {
        let columns = parquet::columns(reports);
        for row in 0..reports.iter().map(|report| report.vms.len()).sum() {
            let swept = own.iter().map(|at| values[*at].clone());
            writer.write_record(swept.chain(columns.iter().map(|(_, of)| text(of, row))))?;
        }
    }
    Ok(writer.flush()?)
}

fn text(values: &Values, row: usize) -> String {
    match values {
        Values::Text(all) => all[row].clone(),
        Values::Count(all) => all[row].map_or_else(String::new, |value| value.to_string()),
        Values::Real(all) => all[row].map_or_else(String::new, |value| value.to_string()),
    }
}
