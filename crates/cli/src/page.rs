//! Pages that need no network: what those of `analyze`, `profile` and `sim` share, and the timeline of
//! vCPUs.
//!
//! Keeps the spans of vCPUs up to a limit; what comes later is in the numbers, not in the timeline,
//! and the page says so.

use instep_core::units::Nanos;
use instep_report::html::STYLE;
use instep_trace::analysis::discover::FoundVm;
use instep_trace::analysis::{SchedState, Sink};
use serde::Serialize;

/// Spans in the timeline: some MB of page.
const MAX_SPANS: usize = 200_000;
const SCRIPT: &str = include_str!("page.js");
/// Where a page takes its data.
const SLOT: &str = "/*DATA*/null";

/// Spans for the timeline.
#[derive(Default)]
pub struct Timeline {
    begin: Nanos,
    rows: Vec<Row>,
    /// The first row of every VM.
    first: Vec<usize>,
    count: usize,
    /// When the limit was reached.
    cut: Option<Nanos>,
}

#[derive(Serialize)]
struct Row {
    vm: usize,
    name: String,
    /// Start and length in microseconds, state, CPU: 0 runs, 1 waits, 2 wakes.
    spans: Vec<(u64, u64, u8, u32)>,
}

#[derive(Serialize)]
struct Data<'a, R> {
    title: &'a str,
    report: &'a R,
    rows: &'a [Row],
    /// Where the timeline ends, in microseconds, when not with the report.
    cut_us: Option<u64>,
}

impl Sink for Timeline {
    fn begin(&mut self, vms: &[FoundVm], begin: Nanos) {
        self.begin = begin;
        for (vm, found) in vms.iter().enumerate() {
            self.first.push(self.rows.len());
            for (index, _) in &found.vcpus {
                let name = format!("{} {index}", found.name);
                self.rows.push(Row { vm, name, spans: Vec::new() });
            }
        }
    }

    fn span(&mut self, vm: usize, vcpu: usize, place: SchedState, since: Nanos, until: Nanos) {
        let (state, cpu) = match place {
            SchedState::Running(cpu) => (0, cpu.0),
            SchedState::Waiting(cpu) => (1, cpu.0),
            SchedState::Waking => (2, 0),
            SchedState::Blocked | SchedState::Unknown => return,
        };
        if self.count >= MAX_SPANS {
            self.cut.get_or_insert(since);
            return;
        }
        self.count += 1;
        let start = since.since(self.begin).0 / 1000;
        let length = until.since(since).0 / 1000;
        if let Some(row) = self.first.get(vm).and_then(|first| self.rows.get_mut(first + vcpu)) {
            row.spans.push((start, length, state, cpu));
        }
    }
}

impl Timeline {
    /// The page `template` with this timeline and a report in it.
    pub fn page<R: Serialize>(
        &self,
        template: &str,
        title: &str,
        report: &R,
    ) -> anyhow::Result<String> {
        let cut_us = self.cut.map(|cut| cut.since(self.begin).0 / 1000);
        filled(template, &Data { title, report, rows: &self.rows, cut_us })
    }
}

/// The page `template` with the common style and script, and these data.
pub fn filled(template: &str, data: &impl Serialize) -> anyhow::Result<String> {
    // Nothing in the data may end the script that holds it.
    let data = serde_json::to_string(data)?.replace('<', "\\u003c");
    let page = template.replacen("/*STYLE*/", STYLE, 1).replacen("/*SCRIPT*/", SCRIPT, 1);
    Ok(page.replacen(SLOT, &data, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeline_is_bounded_and_says_where_it_ends() {
        let mut timeline = Timeline::default();
        let vm = FoundVm { name: "a".to_owned(), pid: None, vcpus: vec![(0, 1)] };
        timeline.begin(&[vm], Nanos(0));
        for span in 0..MAX_SPANS as u64 + 5 {
            timeline.span(0, 0, SchedState::Waking, Nanos(span * 1000), Nanos(span * 1000 + 500));
        }
        assert_eq!(timeline.rows[0].spans.len(), MAX_SPANS);
        assert_eq!(timeline.cut, Some(Nanos(MAX_SPANS as u64 * 1000)));
    }

    #[test]
    fn every_page_has_its_slots_once_and_asks_for_nothing() {
        for template in [
            include_str!("analyze/page.html"),
            include_str!("profile/page.html"),
            include_str!("bin/instep-lab/sim/page.html"),
        ] {
            for slot in [SLOT, "/*STYLE*/", "/*SCRIPT*/"] {
                assert_eq!(template.matches(slot).count(), 1, "{slot}");
            }
            let page = Timeline::default().page(template, "t", &()).unwrap();
            let page = page.replace("http://www.w3.org/2000/svg", "the name of SVG");
            for asks in ["http://", "https://", "src=", "@import", "/*DATA*/"] {
                assert!(!page.contains(asks), "{asks}");
            }
        }
    }
}
