//! When the VMs of a scenario come and go: `from` and `until`, or `churn_per_minute`, for which such times are drawn.

use super::{Fault, Guest, load};
use crate::engine::Life;
use crate::rng::Rng;
use std::collections::VecDeque;
use toml::Spanned;

/// The most VMs that one guest's churn makes.
const MAX_CHURN: u64 = 10_000;

/// The lives of a guest's VMs in the order of their numbers: those of its `count`, then with `churn_per_minute` those that
/// come later. `end` is the simulation's, nanoseconds.
///
/// # Errors
/// Impossible times.
pub(super) fn of(guest: &Guest, seed: u64, end: u64) -> Result<Vec<Life>, Fault> {
    let count = guest.count.unwrap_or(1) as usize;
    let moment = |given: &Option<Spanned<String>>, name: &str, otherwise: u64| {
        let Some(text) = given else { return Ok(otherwise) };
        let time = load::duration(text.get_ref())
            .map_err(|what| Fault::at(text.span(), format!("{name}: {what}")))?;
        Ok(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    };
    let from = moment(&guest.from, "from", 0)?;
    let until = moment(&guest.until, "until", u64::MAX)?;
    if from >= until.min(end) {
        let span = guest.from.as_ref().or(guest.until.as_ref()).map_or(0..0, Spanned::span);
        let what = "from, until: it goes before it comes, or comes after the end of the simulation";
        return Err(Fault::at(span, what));
    }
    let Some(churn) = &guest.churn_per_minute else {
        return Ok(vec![Life { from, until }; count]);
    };
    let wrong = |what: &str| Fault::at(churn.span(), format!("churn_per_minute: {what}"));
    if guest.from.is_some() || guest.until.is_some() || guest.count.is_none() {
        return Err(wrong("it needs count, and neither from nor until"));
    }
    let each = 60_000_000_000_u64.checked_div(u64::from(*churn.get_ref()));
    let Some(each) = each.filter(|each| end / each <= MAX_CHURN) else {
        return Err(wrong("1 or more, and 10,000 in the whole simulation at most"));
    };
    Ok(drawn(count, each, end, &mut Rng::new(seed ^ hash(&guest.name))))
}

/// Once in each time of `each` nanoseconds, at a moment that is drawn, the oldest VM goes and another comes.
fn drawn(count: usize, each: u64, end: u64, rng: &mut Rng) -> Vec<Life> {
    let mut lives = vec![Life::WHOLE; count];
    let mut there: VecDeque<usize> = (0..count).collect();
    for begin in (0..end).step_by(usize::try_from(each).unwrap_or(usize::MAX)) {
        let at = begin + 1 + rng.below(each);
        if at >= end {
            break;
        }
        if let Some(oldest) = there.pop_front() {
            lives[oldest].until = at;
        }
        there.push_back(lives.len());
        lives.push(Life { from: at, until: u64::MAX });
    }
    lives
}

/// Guests of different names draw different times.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_vms_are_there_at_any_time() {
        const SECOND: u64 = 1_000_000_000;
        let lives = drawn(4, SECOND, 60 * SECOND, &mut Rng::new(7));
        assert!((62..=64).contains(&lives.len()), "{}", lives.len());
        for at in (0..600).map(|tenth| tenth * SECOND / 10) {
            let there = lives.iter().filter(|life| life.from <= at && at < life.until).count();
            assert_eq!(there, 4, "{at}");
        }
        assert_eq!(lives, drawn(4, SECOND, 60 * SECOND, &mut Rng::new(7)));
    }
}
