//! Pipes of the perf of this machine, where it may record: whole they are whole, and cut between two records
//! they say so.

#[path = "common/pipe.rs"]
mod pipe;

use instep_madehost::skip;
use pipe::{ROUND, records};
use std::io::Cursor;
use std::process::{Command, Stdio};

/// The type of an event's record, and of one that holds compressed ones.
const EVENTS: [u32; 3] = [9, 81, 83];

/// What perf writes to a pipe about a tenth of a second of this machine.
fn recorded(options: &[&str]) -> Option<Vec<u8>> {
    let perf = Command::new("perf")
        .args(["record", "-o", "-", "-a", "-e", "sched:sched_switch"])
        .args(options)
        .args(["sleep", "0.1"])
        .stdin(Stdio::null())
        .output();
    match perf {
        Ok(output) if output.status.success() => Some(output.stdout),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            skip::note(&format!("perf may not record: {}", said.lines().next().unwrap_or("")));
            None
        }
        Err(error) => {
            skip::note(&format!("perf cannot be run: {error}"));
            None
        }
    }
}

/// How many events there are, and whether it is said that they are not all; an error says so, too.
fn read(data: &[u8]) -> (u64, bool) {
    let Ok(mut stream) = instep_trace::open(Cursor::new(data), "perf", Default::default()) else {
        return (0, true);
    };
    let mut batch = Vec::new();
    while stream.next_batch(&mut batch) {}
    let tally = stream.tally();
    assert_eq!(tally.late, 0, "{tally:?}");
    (tally.records, tally.cut.is_some())
}

#[test]
fn a_real_pipe_is_whole_and_cut_between_two_records_it_says_so() {
    for options in [&[][..], &["-z"]] {
        let Some(data) = recorded(options) else { return };
        let (events, is_cut) = read(&data);
        assert!(events > 0 && !is_cut, "{options:?}: {events} events");
        let inner = records(&data).filter(|record| record.at.end < data.len());
        let (rounds, events): (Vec<_>, Vec<_>) = inner
            .filter(|record| record.kind == ROUND || EVENTS.contains(&record.kind))
            .partition(|record| record.kind == ROUND);
        assert!(!events.is_empty(), "{options:?}");
        // Hundreds of cuts would take long.
        for record in rounds.iter().take(20).chain(events.iter().step_by(1 + events.len() / 50)) {
            let told = read(&data[..record.at.end]).1;
            let expected = record.kind != ROUND;
            assert_eq!(told, expected, "{options:?}: cut at {} of {}", record.at.end, data.len());
        }
    }
}
