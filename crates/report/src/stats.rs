//! Medians, and means with their 95 % confidence intervals, by Student's t: seeds are independent runs, and
//! their number is small. The same numbers always give the same interval. Knows no experiment.

use puruspe::{invbetai, invgammp};

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

/// The factor for this many degrees of freedom, of which there is one at least.
fn t(freedom: usize) -> f64 {
    let freedom = freedom.max(1) as f64;
    let x = invbetai(0.05, freedom / 2.0, 0.5);
    (freedom * (1.0 - x) / x).sqrt()
}

/// The estimate from these values; nothing without values, the value itself from one.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    if let [mean] = *values {
        return mean.is_finite().then_some(Estimate { mean, low: mean, high: mean });
    }
    let (mean, variance) = spread(values)?;
    let count = values.len();
    let half = t(count - 1) * (variance / count as f64).sqrt();
    Some(Estimate { mean, low: mean - half, high: mean + half })
}

/// The value in the middle, or of an even number the mean of the two there; nothing without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (half, odd) = (sorted.len() / 2, sorted.len() % 2 == 1);
    let upper = *sorted.get(half)?;
    Some(if odd { upper } else { f64::midpoint(sorted[half - 1], upper) })
}

/// The mean of `b` minus that of `a`, by Welch's t: neither the number of runs nor their scatter
/// need be the same. Nothing where a side has fewer than two.
pub fn difference(a: &[f64], b: &[f64]) -> Option<Estimate> {
    let (of_a, of_b) = (spread(a)?, spread(b)?);
    let mean = of_b.0 - of_a.0;
    let (part_a, part_b) = (of_a.1 / a.len() as f64, of_b.1 / b.len() as f64);
    let sum = part_a + part_b;
    let freedom = sum.powi(2)
        / (part_a.powi(2) / (a.len() - 1) as f64 + part_b.powi(2) / (b.len() - 1) as f64);
    // Rounded down: the interval is rather too wide.
    let freedom = if freedom.is_finite() { (freedom as usize).max(1) } else { 1 };
    let half = t(freedom) * sum.sqrt();
    Some(Estimate { mean, low: mean - half, high: mean + half })
}

/// The standard deviation of these values, per cent of their mean, and its interval for values that
/// are normally distributed (by the quantiles of chi squared).
/// Nothing from fewer than two values or where their mean is zero.
pub fn spread_percent(values: &[f64]) -> Option<Estimate> {
    let (mean, variance) = spread(values)?;
    let found = variance.sqrt() / mean.abs() * 100.0;
    let freedom = (values.len() - 1) as f64;
    let quantile = |part: f64| 2.0 * invgammp(part, freedom / 2.0);
    let end = |part: f64| found * (freedom / quantile(part)).sqrt();
    let estimate = Estimate { mean: found, low: end(0.975), high: end(0.025) };
    [estimate.mean, estimate.high].iter().all(|value| value.is_finite()).then_some(estimate)
}

/// Mean and variance of two values or more.
fn spread(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < 2 || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((mean, squares / (values.len() - 1) as f64))
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
    fn median_of_even_number_lies_between_the_middle_two() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_difference_has_welchs_interval() {
        // Variances 1 and 4 of 3 each: freedom (5/3)^2 / (1/18 + 16/18) = 2.94, taken as 2.
        let found = difference(&[1.0, 2.0, 3.0], &[4.0, 6.0, 8.0]).unwrap();
        assert!((found.mean - 4.0).abs() < 1e-12);
        assert!((found.high - 4.0 - 4.30265 * (5.0f64 / 3.0).sqrt()).abs() < 1e-4, "{found:?}");
        assert_eq!(difference(&[1.0], &[4.0, 6.0]), None);
        let equal = difference(&[1.0, 1.0], &[2.0, 2.0]).unwrap();
        assert_eq!((equal.low, equal.high), (1.0, 1.0));
    }

    #[test]
    fn a_spread_has_the_interval_of_chi_squared() {
        // s = sqrt(2.5) of a mean of 3; chi squared of 4: 0.484 and 11.143.
        let found = spread_percent(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((found.mean - 52.705).abs() < 1e-3, "{found:?}");
        assert!((found.low / found.mean - (4.0f64 / 11.1433).sqrt()).abs() < 1e-4, "{found:?}");
        assert!((found.high / found.mean - (4.0f64 / 0.484419).sqrt()).abs() < 1e-4, "{found:?}");
        let equal = spread_percent(&[2.0; 5]).unwrap();
        assert_eq!((equal.low, equal.mean, equal.high), (0.0, 0.0, 0.0));
        assert_eq!((spread_percent(&[1.0]), spread_percent(&[-1.0, 1.0])), (None, None));
    }

    #[test]
    fn t_is_that_of_printed_tables() {
        for (freedom, printed) in [(1, 12.706), (2, 4.303), (10, 2.228), (30, 2.042), (120, 1.980)]
        {
            assert!((t(freedom) - printed).abs() < 5e-4, "{freedom}: {}", t(freedom));
        }
    }
}
