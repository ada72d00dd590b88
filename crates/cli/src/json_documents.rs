//! `instep schemas`: the JSON documents of this program.

use crate::advise::AdviceJson;
use crate::analyze::{Checked, Named};
use crate::collect::CollectJson;
use crate::compare::View as ComparisonJson;
use crate::plan::PlanJson;
use crate::profile::ProfileReport as ProfileJson;
use crate::record::View as RecordingJson;
use crate::restore::RestoreJson;
use crate::status::StatusJson;
use crate::topology::View as TopologyJson;
use crate::{Outcome, print_json};
use instep_agent::published::{History, PublishedHost, WrittenMoment};
use instep_agent::record::Record;
use instep_cli::schemas::Schemas;
use instep_trace::analysis::report::AnalysisReport as AnalysisJson;

/// Prints the schemas.
pub(crate) fn command() -> anyhow::Result<Outcome> {
    let schemas = Schemas::default()
        .with::<TopologyJson<'_>>("instep topology --json")
        .with::<StatusJson<'_>>("instep status --json")
        .with::<PlanJson<'_>>("instep plan --json")
        .with::<AdviceJson<'_>>("instep advise --json")
        .with::<CollectJson<'_>>("instep collect --json")
        .with::<Record<'_>>("instep run --json, a line")
        .with::<RestoreJson>("instep restore --json")
        .with::<WrittenMoment<'_>>("instep top --replay --json, a line")
        .with::<RecordingJson<'_>>("instep record --json")
        .with::<AnalysisJson>("instep analyze --json FILE")
        .with::<Vec<Named>>("instep analyze --json FILE FILE...")
        .with::<Checked<'_>>("instep analyze --check --json")
        .with::<ProfileJson>("instep profile --json")
        .with::<ComparisonJson<'_>>("instep compare --json")
        .with::<PublishedHost<'_>>("host.json of a run")
        .with::<History>("history.json and day.json of a run")
        .with::<instep_serve::Document>("instep serve, /state.json");
    print_json(&schemas.document())?;
    Ok(Outcome::Fine)
}
