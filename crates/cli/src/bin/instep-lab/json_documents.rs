//! `instep-lab schemas`: the JSON documents of this program.

use crate::{Outcome, print_json};
use instep_cli::schemas::Schemas;

/// Prints the schemas.
pub(crate) fn command() -> anyhow::Result<Outcome> {
    let schemas = Schemas::default();
    print_json(&schemas.document())?;
    Ok(Outcome::Fine)
}
