//! `instep compare`: two results side by side, what differs, and whether the runs show it. Reads
//! JSON that Instep printed; measures nothing.

mod documents;
mod judge;
mod text;

use crate::args::CompareArgs;
use crate::{Outcome, print, print_json, tell};
use documents::Input;
use judge::{Comparison, Verdict};
use schemars::JsonSchema;
use serde::Serialize;

/// What `--json` prints: schema instep.compare/1.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Comparison")]
pub(crate) struct View<'a> {
    #[schemars(extend("const" = "instep.compare/1"))]
    schema: &'static str,
    /// The schema of what is compared.
    of: &'a str,
    a: SideView<'a>,
    b: SideView<'a>,
    tolerance: f64,
    rows: &'a [judge::Row],
    only_in_a: &'a [String],
    only_in_b: &'a [String],
    warnings: &'a [String],
}

#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "ComparedFile")]
struct SideView<'a> {
    file: &'a str,
    runs: usize,
}

/// Compares the two results that the options name.
pub(crate) fn command(args: &CompareArgs) -> anyhow::Result<Outcome> {
    let (a, b) = (Input::read(&args.a)?, Input::read(&args.b)?);
    anyhow::ensure!(
        a.schema == b.schema,
        "{} is {} and {} is {}: only results of one kind can be compared",
        a.file,
        a.schema,
        b.file,
        b.schema
    );
    let tolerance = args.tolerance / 100.0;
    let compared = judge::compare(&a, &b, tolerance);
    anyhow::ensure!(
        !compared.rows.is_empty(),
        "{} and {} have no measure in common: only the first has {}, only the second {}; VMs are told \
         apart by their names (`instep analyze --vm NAME=TID,...` gives them)",
        a.file,
        b.file,
        named(&compared.only_in_a),
        named(&compared.only_in_b)
    );
    if args.json {
        print_json(&View {
            schema: "instep.compare/1",
            of: &a.schema,
            a: SideView { file: &a.file, runs: a.runs.len() },
            b: SideView { file: &b.file, runs: b.runs.len() },
            tolerance,
            rows: &compared.rows,
            only_in_a: &compared.only_in_a,
            only_in_b: &compared.only_in_b,
            warnings: &compared.warnings,
        })?;
    } else {
        compared.warnings.iter().for_each(|warning| tell(&format!("warning: {warning}")));
        print(&text::draw(&a, &b, &compared, args.all, crate::text::width()))?;
    }
    Ok(outcome(&compared))
}

/// Subjects as words.
fn named(subjects: &[String]) -> String {
    if subjects.is_empty() { "nothing".to_owned() } else { subjects.join(", ") }
}

fn outcome(compared: &Comparison) -> Outcome {
    let worse = compared.rows.iter().any(|row| row.verdict == Verdict::Worse);
    if worse { Outcome::Finding } else { Outcome::Fine }
}
