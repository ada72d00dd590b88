//! Numbers of a profile as people read them.

use instep_core::units::Milli;

/// Thousandths as a number.
pub(super) fn fraction(milli: Milli) -> f64 {
    milli.0 as f64 / 1000.0
}

/// How often one time goes into another.
pub(super) fn times(ratio: Milli) -> String {
    format!("{:.2} times", fraction(ratio))
}

/// A time in the unit that leaves at least one, with up to three digits.
pub(super) fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = if value >= 99.95 { 0 } else { usize::from(value >= 9.995) };
    let text = match digits {
        0 if value >= 99.95 => format!("{value:.0}"),
        1 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_at_most() {
        let shown =
            [999, 1_500, 24_000_000, 12_345_678, 99_960_000, 100_000, 3_050_000_000].map(time);
        assert_eq!(shown, ["999ns", "1.5us", "24ms", "12.3ms", "100ms", "100us", "3.05s"]);
    }
}
