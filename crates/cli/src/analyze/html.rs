//! An analysis as one page that needs no network: findings, a timeline to zoom into, the heat map
//! of stacking and the culprit matrix.

use crate::page::Timeline;
use instep_trace::analysis::report::AnalysisReport;

const PAGE: &str = include_str!("page.html");

/// The page.
pub(super) fn page(
    timeline: &Timeline,
    title: &str,
    report: &AnalysisReport,
) -> anyhow::Result<String> {
    timeline.page(PAGE, title, report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::Nanos;
    use instep_trace::analysis::Sink as _;
    use instep_trace::analysis::discover::FoundVm;

    #[test]
    fn a_hostile_name_cannot_leave_the_script() {
        let mut timeline = Timeline::default();
        let name = "</script><script>alert(1)".to_owned();
        timeline.begin(&[FoundVm { name, pid: None, vcpus: vec![(0, 1)] }], Nanos(0));
        let host = Default::default();
        let report = AnalysisReport {
            schema: "instep.analysis/1",
            duration_ns: 0,
            events: 0,
            lost: 0,
            trace: Default::default(),
            vms: Vec::new(),
            findings: Vec::new(),
            host,
            warnings: Vec::new(),
            unseen: Vec::new(),
            strangers: Vec::new(),
        };
        let page = page(&timeline, "t", &report).unwrap();
        assert!(!page.contains("</script><script>alert"), "{page}");
        assert!(page.contains("\\u003c/script>"));
    }
}
