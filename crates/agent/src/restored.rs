//! Messages about the outcome of a restore.

use instep_core::units::Tid;
use instep_core::wording::Count;
use instep_host::apply::RestoreReport;

/// A restore in words: one line, one for each thread that is not as it was found, and one for DAMON's monitor.
#[must_use]
pub fn describe_restore(report: &RestoreReport) -> Vec<String> {
    let mut lines = vec![summarize_restore(report)];
    lines.extend(report.left_alone.iter().map(ToString::to_string));
    let failed = |(tid, error): &(Tid, _)| format!("thread {tid} could not be restored: {error}");
    lines.extend(report.failed.iter().map(failed));
    lines.extend(report.monitor_told());
    lines
}

/// A restore in one line.
#[must_use]
pub fn summarize_restore(report: &RestoreReport) -> String {
    let mut text = match report.restored {
        0 => "there was no affinity to put back".to_owned(),
        1 => "1 thread has its original affinity again".to_owned(),
        more => format!("{more} threads have their original affinity again"),
    };
    for (number, before, after) in [
        (report.gone, "", " ended before"),
        (report.left_alone.len(), "left ", " alone that someone else changed since"),
        (report.failed.len(), "could not restore ", ""),
    ] {
        if number != 0 {
            text.push_str(&format!("; {before}{}{after}", Count::of(number, "thread")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_of_nothing_counts_no_threads() {
        let nothing = RestoreReport::default();
        assert_eq!(summarize_restore(&nothing), "there was no affinity to put back");
        let gone = RestoreReport { gone: 2, ..RestoreReport::default() };
        assert_eq!(
            summarize_restore(&gone),
            "there was no affinity to put back; 2 threads ended before"
        );
        let one = RestoreReport { restored: 1, ..RestoreReport::default() };
        assert_eq!(summarize_restore(&one), "1 thread has its original affinity again");
    }
}
