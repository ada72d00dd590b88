//! A profile as one page that needs no network: parallelism over time, speedup curve, potential.

use super::report::ProfileReport;
use super::text;
use serde::Serialize;

const PAGE: &str = include_str!("page.html");

#[derive(Serialize)]
struct Data<'a> {
    report: &'a ProfileReport,
    kind: String,
    advice: Vec<String>,
}

/// The page.
pub(super) fn page(report: &ProfileReport) -> anyhow::Result<String> {
    let data = Data { report, kind: text::kind(report), advice: text::advice(report) };
    crate::page::filled(PAGE, &data)
}

#[cfg(test)]
#[path = "html_tests.rs"]
pub(super) mod tests;
