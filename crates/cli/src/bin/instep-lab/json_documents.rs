//! `instep-lab schemas`: the JSON documents of this program.

use crate::bench::BenchListJson;
use crate::bench::agree::Agreement as AgreementJson;
use crate::lab::{LabDoctorJson, LabListJson};
use crate::sim::{CheckedJson, SwarmJson, SweepJson};
use crate::{Outcome, Stamped, print_json};
use instep_bench::report::BenchReport as BenchJson;
use instep_cli::schemas::Schemas;
use instep_lab::scenario::report::LabReport as LabJson;
use instep_sim::report::SimulationReport as SimulationJson;
use instep_sim::reproduce::Reproduced;

/// Prints the schemas.
pub(crate) fn command() -> anyhow::Result<Outcome> {
    let schemas = Schemas::default()
        .with::<Stamped<'_, SimulationJson>>("instep sim --json")
        .with::<Vec<Stamped<'_, SimulationJson>>>("instep sim --seeds N --json")
        .with::<Stamped<'_, SweepJson<'_>>>("instep sim --sweep --json")
        .with::<Stamped<'_, CheckedJson<'_>>>("instep sim --check --json")
        .with::<Stamped<'_, SwarmJson<'_>>>("instep sim --swarm N --json")
        .with::<Stamped<'_, Reproduced>>("instep reproduce --json")
        .with::<Stamped<'_, AgreementJson>>("instep agree --json")
        .with::<Stamped<'_, BenchJson>>("instep bench --json")
        .with::<BenchListJson<'_>>("instep bench --list --json")
        .with::<Stamped<'_, LabJson>>("instep lab run --json")
        .with::<LabListJson<'_>>("instep lab list --json")
        .with::<LabDoctorJson<'_>>("instep lab doctor --json");
    print_json(&schemas.document())?;
    Ok(Outcome::Fine)
}
