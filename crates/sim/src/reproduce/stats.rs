//! Means and their 95 % confidence intervals, by Student's t: seeds are independent runs, and their
//! number is small. The same numbers always give the same interval. Knows no experiment.

/// A mean and the interval that holds the true one with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
}

/// Student's t for 97.5 % by degrees of freedom, from 1.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// The factor for this many degrees of freedom; past the table within 0.002 of the true one.
fn t(freedom: usize) -> f64 {
    T.get(freedom.wrapping_sub(1)).copied().unwrap_or(1.96 + 2.5 / freedom.max(1) as f64)
}

/// The estimate from these values; nothing without values, the value itself from one.
#[must_use]
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let count = values.len();
    if count == 0 || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mean = values.iter().sum::<f64>() / count as f64;
    if count == 1 {
        return Some(Estimate { mean, low: mean, high: mean });
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let half = t(count - 1) * (squares / (count - 1) as f64 / count as f64).sqrt();
    Some(Estimate { mean, low: mean - half, high: mean + half })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        let found = estimate(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        // s = sqrt(2.5), t(4) = 2.776: 2.776 * sqrt(2.5 / 5) = 1.963.
        assert!((found.mean - 3.0).abs() < 1e-12 && (found.high - 4.963).abs() < 1e-3);
        assert!((found.low + found.high - 6.0).abs() < 1e-12);
    }

    #[test]
    fn equal_values_have_no_width_and_no_values_no_estimate() {
        assert_eq!(estimate(&[2.0; 3]), Some(Estimate { mean: 2.0, low: 2.0, high: 2.0 }));
        assert_eq!(estimate(&[2.0]), Some(Estimate { mean: 2.0, low: 2.0, high: 2.0 }));
        assert_eq!((estimate(&[]), estimate(&[1.0, f64::NAN])), (None, None));
    }

    #[test]
    fn past_the_table_t_stays_near_the_normal_one() {
        assert!((t(60) - 2.0).abs() < 0.002 && (t(120) - 1.98).abs() < 0.002);
        assert!(t(31) < t(30));
    }
}
