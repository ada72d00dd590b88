//! Golden renders of the page in `tests/golden`: what a browser shows of a made profile, in words and in
//! shapes. `INSTEP_GOLDEN=write cargo test -p instep-cli page` writes them anew; look at what changed.

#[allow(dead_code, reason = "other tests look at timelines and heat maps, too")]
#[path = "../../tests/common/browser.rs"]
mod browser;

use super::super::report::{self, Place, Point};
use super::super::watch::Seen;
use super::*;
use crate::golden::golden;
use browser::rendered;
use instep_core::profile::placing::Run;
use instep_core::profile::{Interval, Profile, ThreadSum, Watched};
use instep_core::units::{Milli, Nanos};

const MS: u64 = 1_000_000;
const PERIOD: Nanos = Nanos(24 * MS);

/// 960 ms in which one thread and then both, by turns of 24 ms, work on two CPUs, as the second CPU allows.
fn seen(second: u64) -> Seen {
    let interval = |turn: u64| Interval {
        length: PERIOD,
        run: Nanos(if turn.is_multiple_of(2) { 24 * MS } else { 24 * MS + second * MS }),
        wait: Nanos(0),
    };
    let watched = Watched {
        cpus: 2,
        intervals: (0..40).map(interval).collect(),
        threads: [960 * MS, 20 * second * MS]
            .map(|run| ThreadSum { seen: (0, 39), run: Nanos(run) })
            .into(),
        voluntary: 500,
        busy_waiting: Some(Milli(20)),
        levels: [30, 460, 470].map(|ms| Nanos(ms * MS)).into(),
        others: Some(Nanos(0)),
        ..Watched::default()
    };
    Seen { watched, traced: true, guest: false, warnings: Vec::new(), ended: None }
}

/// A profile with all that a page can show.
pub(in super::super) fn full() -> ProfileReport {
    let mut report =
        report::new("a program <with> & its arguments".to_owned(), &seen(24), Milli(500), PERIOD);
    let profile = |run: u64| Profile::of(&seen(run).watched, Milli(500), PERIOD);
    let alone = Point { elapsed_ns: 1700 * MS, ..Point::new(1, &profile(1)) };
    report.set_curve(vec![alone, Point::new(2, &profile(24))]);
    let run = Run { threads: 2, cores: 1, nodes: 1, elapsed: Nanos(960 * MS), taken: Milli(0) };
    let place = |cpus: &str, busy| Place::new(cpus, &profile(busy), &run);
    report.places = vec![place("0-1", 24), place("0,2", 20)];
    report.warnings.push("a made warning".to_owned());
    report
}

fn held(name: &str, report: &ProfileReport) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p.html");
    std::fs::write(&file, page(report).unwrap()).unwrap();
    let Some(seen) = rendered(&file) else { return };
    golden(&format!("tests/golden/{name}"), &format!("{}\n{}", seen.text, seen.shapes));
}

#[test]
fn a_page_with_all_its_parts_is_as_it_was() {
    held("profile-page.txt", &full());
}

#[test]
fn a_page_without_type_and_advice_hides_what_it_has_not() {
    let mut idle = seen(0);
    idle.watched.intervals.iter_mut().for_each(|interval| interval.run = Nanos(MS / 10));
    idle.watched.threads.truncate(1);
    idle.watched.levels.clear();
    (idle.traced, idle.watched.busy_waiting) = (false, None);
    let report = report::new("a program that sleeps".to_owned(), &idle, Milli(500), PERIOD);
    held("profile-page-idle.txt", &report);
}
