//! `instep analyze --check`: recorded schedules held against rules.

use super::{IDLE, ONE, OTHER, TWO, analyze, events, made, schedule};
use crate::common::{instep, list, text};
use instep_madehost::trace::{TracepointFields, perf_file};

#[test]
fn recorded_schedules_are_checked_and_each_breach_is_found() {
    use TracepointFields::{Switch, Wakeup};
    let tell = "--vm=a=11,12";
    let sleeps = 1;
    let sound = vec![
        (0, 0, Switch(ONE, TWO, 0)),
        (0, 1, Switch(IDLE, OTHER, 0)),
        (5, 0, Switch(TWO, ONE, 0)),
        (9, 1, Switch(OTHER, IDLE, sleeps)),
        (12, 1, Wakeup(OTHER, 1)),
        (13, 1, Switch(IDLE, OTHER, 0)),
        (300, 0, Switch(ONE, IDLE, sleeps)),
    ];
    let with = |at: usize, moment: (u64, u32, TracepointFields)| {
        let mut broken = sound.clone();
        broken[at] = moment;
        broken
    };
    // For 1 ms on both CPUs.
    let twice = vec![
        (0, 0, Switch(ONE, TWO, 0)),
        (0, 1, Switch(IDLE, OTHER, 0)),
        (5, 1, Switch(OTHER, TWO, 0)),
        (6, 0, Switch(TWO, ONE, 0)),
        (9, 1, Switch(TWO, OTHER, 0)),
    ];
    let starved = (0..200).flat_map(|turn| {
        let at = turn * 5;
        [(at, 0, Switch(OTHER, TWO, 0)), (at + 2, 0, Switch(TWO, OTHER, 0))]
    });
    let starved: Vec<_> = [(0, 0, Switch(ONE, OTHER, 0))].into_iter().chain(starved).collect();
    let cases: [(&str, Vec<_>, &[&str]); 7] = [
        ("no finding", sound.clone(), &["--check=woken,wait"]),
        ("conserved", twice, &["--check"]),
        ("affinity", sound.clone(), &["--check", "--allowed=a=1"]),
        ("woken", with(5, (100, 1, Switch(IDLE, OTHER, 0))), &["--check"]),
        ("idle", with(5, (250, 1, Switch(IDLE, OTHER, 0))), &["--check=idle", "--allowed=a=0-1"]),
        ("wait", starved.clone(), &["--check=wait"]),
        ("apart", sound.clone(), &["--check=apart", "--allowed=a=0-1"]),
    ];
    for (rule, moments, options) in cases {
        let (_dir, path) = schedule(&moments);
        let ran = analyze(&path, &[&[tell, "--vm=b=21"], options].concat());
        let ran = ran.expect(if rule == "no finding" { 0 } else { 1 });
        assert!(ran.stdout.contains(&format!(": {rule}")), "{rule}: {}", ran.stdout);
    }
    let (_dir, path) = schedule(&starved);
    let ran = analyze(&path, &[tell, "--vm=b=21", "--check=wait", "--json"]).expect(1);
    let finding = &ran.json()["files"][0]["finding"];
    assert!(text(finding, "rule") == "wait" && finding["at_ns"].as_u64() > Some(0), "{finding}");
    // 11 had nothing, 12 two fifths.
    let (_dir, path) = schedule(&starved);
    let ran = analyze(&path, &["--vm=a=11", "--vm=b=12", "--vm=c=21", "--check=share"]).expect(1);
    assert!(
        ran.stdout.contains("share at ") && ran.stdout.contains("VM a had 0 ms"),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_sound_schedule_of_which_a_switch_is_missing_is_not_accused() {
    use TracepointFields::{Switch, Wakeup};
    let sleeps = 1;
    let whole = vec![
        (0, 0, Switch(ONE, TWO, 0)),
        (1, 1, Switch(IDLE, OTHER, 0)),
        (5, 0, Switch(TWO, ONE, 0)),
        (9, 0, Switch(ONE, TWO, 0)),
        (20, 1, Switch(OTHER, IDLE, sleeps)),
        (21, 1, Wakeup(OTHER, 1)),
        (22, 1, Switch(IDLE, OTHER, 0)),
        (30, 0, Switch(TWO, ONE, 0)),
    ];
    let ran = |moments: &[(u64, u32, TracepointFields)]| {
        let (_dir, path) = schedule(moments);
        analyze(&path, &["--vm=a=11,12", "--vm=b=21", "--check"])
    };
    assert!(!ran(&whole).expect(0).stderr.contains("missing"));
    for left_out in [0, 2, 3, 4, 6] {
        let mut moments = whole.clone();
        moments.remove(left_out);
        let ran = ran(&moments).expect(0);
        // Of what is first or last on a CPU nobody knows.
        let is_told = ran.stderr.contains("switches are missing at 1 place ");
        assert_eq!(is_told, ![0, 6].contains(&left_out), "{left_out}: {}", ran.stderr);
    }
    // Nor where it would have been the only event between two.
    let near = [
        (0, 0, Switch(ONE, TWO, 0)),
        (1, 1, Switch(IDLE, OTHER, 0)),
        (5, 0, Switch(TWO, ONE, 0)),
        (12, 0, Switch(TWO, ONE, 0)),
        (15, 0, Switch(ONE, TWO, 0)),
    ];
    assert!(ran(&near).expect(0).stderr.contains("missing at 1 place "));
    // What is wrong behind the gap is found, and when, of the whole trace: OTHER waits for 98 ms on a
    // CPU that idles.
    let mut moments = whole.clone();
    moments.remove(2);
    moments[5] = (119, 1, Switch(IDLE, OTHER, 0));
    moments[6] = (130, 0, Switch(TWO, ONE, 0));
    let ran = ran(&moments).expect(1);
    assert!(ran.stdout.contains(": woken at 119000 us"), "{}", ran.stdout);
}

#[test]
fn what_cannot_be_checked_is_refused() {
    let (_dir, path) = made("perf.data", &perf_file(&events(), 20));
    for (options, said) in [
        (&["--check=luck"][..], "known are woken, idle"),
        (&["--check", "--allowed=x=0"], "no such VM; it has vm-10"),
        (&["--check", "--allowed=vm-10=x"], "takes NAME=CPUS"),
    ] {
        let ran = analyze(&path, options).expect(2);
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
    let ran = instep(&["analyze", "-", "--check"]).expect(2);
    assert!(ran.stderr.contains("not a pipe"), "{}", ran.stderr);
    // Beside others only that one is left out.
    let path = path.to_str().unwrap();
    let ran = instep(&["analyze", "/nowhere", path, "--check", "--json"]).expect(2);
    assert!(
        ran.stderr.contains("1 of 2 files") && ran.stderr.contains("/nowhere"),
        "{}",
        ran.stderr
    );
    let judged = ran.json();
    assert_eq!((&judged["schema"], list(&judged, "files").len()), (&"instep.check/1".into(), 1));
    let file = &judged["files"][0];
    assert_eq!((text(file, "file"), file["finding"].is_null()), (path, true));
    assert_eq!(
        file["rules"],
        serde_json::json!(["conserved", "affinity", "woken", "idle", "wait"])
    );
    let ran = instep(&["compare", path, path]).expect(2);
    ran.says(&["is no JSON; wanted is"]);
}
