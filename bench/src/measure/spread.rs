//! One figure over several trials. Scope: plain values.
//! Invariants: made of at least one trial, all of them finite.
//! Not here: what two of them say beside each other (`judge`).

use super::median;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub trials: usize,
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Of the finite ones among `values`; `None` without any.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        if values.is_empty() {
            return None;
        }
        let (min, max) = values
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), value| (min.min(*value), max.max(*value)));
        Some(Spread { trials: values.len(), median: median(&values), min, max })
    }

    /// Half of the range between the trials over their median, percent; 0 of a median of 0.
    #[must_use]
    pub fn percent(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { 50.0 * (self.max - self.min) / self.median.abs() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_half_the_range_over_the_median() {
        let spread = Spread::of([90.0, 110.0, 100.0]).unwrap();
        assert_eq!((spread.trials, spread.median, spread.min, spread.max), (3, 100.0, 90.0, 110.0));
        assert!((spread.percent() - 10.0).abs() < 1e-9);
        assert_eq!(Spread::of([5.0]).unwrap().percent(), 0.0);
        assert_eq!(Spread::of([0.0, 0.0]).unwrap().percent(), 0.0);
    }

    #[test]
    fn what_is_no_number_is_no_trial() {
        assert_eq!(Spread::of([f64::NAN, f64::INFINITY]), None);
        assert_eq!(Spread::of([f64::NAN, 2.0]).unwrap().trials, 1);
    }
}
