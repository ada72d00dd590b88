//! `instep top --replay`: the same screen over the history that `instep run` keeps, or its records as JSON lines.
//!
//! One segment of the history is in memory at a time, and one frame.

use super::frame::Frame;
use super::state::{Jump, State};
use super::{Source, draw_once, run_screen};
use crate::args::{HistoryTime, TopArgs};
use crate::text::{escaped_json, printable};
use crate::{Outcome, print, tell};
use anyhow::Context as _;
use instep_agent::published::{PublishedCycle, history_dir};
use instep_history::Cursor;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

const HOUR_MS: u64 = 60 * 60 * 1000;

/// The history and where in it the screen is.
pub(super) struct Replay {
    cursor: Cursor,
}

/// Shows the history, one frame of it, or its records.
pub(super) fn command(args: &TopArgs, named: Option<&Path>) -> anyhow::Result<Outcome> {
    let path = named.map_or_else(|| kept_in(args), |path| Ok(path.to_owned()))?;
    let cursor = Cursor::open(&path).with_context(|| {
        format!(
            "cannot read the history in {}; `instep run` keeps one, or name its directory or a file of it with --replay",
            path.display()
        )
    })?;
    let mut replay = Replay { cursor };
    let newest = replay.at_ms();
    if args.json {
        replay.print_records(
            args.from.map(|from| ms(from, newest)),
            args.to.map(|to| ms(to, newest)),
        )?;
        replay.tell_notes();
        return Ok(Outcome::Fine);
    }
    if let Some(from) = args.from {
        replay.cursor.seek(ms(from, newest))?;
    }
    let first = replay.frame()?;
    if args.once {
        print(&draw_once(&first, crate::text::width())?)?;
    } else {
        run_screen(&mut replay, first)?;
    }
    replay.tell_notes();
    Ok(Outcome::Fine)
}

/// Where the run of this user keeps its history, else that of the host.
fn kept_in(args: &TopArgs) -> anyhow::Result<PathBuf> {
    let state = crate::observe::state_dir(args.host.state_dir.as_deref());
    if args.host.state_dir.is_some() {
        return Ok(history_dir(state?.path()));
    }
    let own = state.ok().map(|state| history_dir(state.path())).filter(|dir| dir.exists());
    Ok(own.unwrap_or_else(|| history_dir(Path::new("/run/instep"))))
}

/// A time in milliseconds since 1970; one that counts back does so from the newest record.
fn ms(when: HistoryTime, newest: u64) -> u64 {
    let whole = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    match when {
        HistoryTime::Ago(ago) => newest.saturating_sub(whole(ago)),
        HistoryTime::At(at) => whole(at.duration_since(UNIX_EPOCH).unwrap_or_default()),
    }
}

impl Replay {
    fn at_ms(&self) -> u64 {
        self.cursor.moment().map_or(0, |moment| moment.at_ms)
    }

    fn frame(&self) -> anyhow::Result<Frame> {
        let moment = self.cursor.moment().context("the history is empty")?;
        let parsed = PublishedCycle::parse(moment.line).map_err(|error| {
            anyhow::anyhow!(
                "a record of the history cannot be read: {}",
                printable(&error.to_string())
            )
        })?;
        Ok(Frame::of_moment(parsed))
    }

    /// Moves; whether it did.
    fn jump(&mut self, jump: Jump) -> anyhow::Result<bool> {
        let before = self.at_ms();
        match jump {
            Jump::Back => return Ok(self.cursor.back()?),
            Jump::Forward => return Ok(self.cursor.forward()?),
            Jump::First => self.cursor.first()?,
            Jump::Last => self.cursor.last()?,
            Jump::HourBack => self.cursor.seek(before.saturating_sub(HOUR_MS))?,
            Jump::HourForward => self.cursor.seek(before.saturating_add(HOUR_MS))?,
        }
        Ok(self.at_ms() != before)
    }

    /// The records between two times as JSON lines. A line that is no record is left out, and a message says so.
    fn print_records(&mut self, from: Option<u64>, to: Option<u64>) -> anyhow::Result<()> {
        match from {
            None => self.cursor.first()?,
            Some(from) => {
                self.cursor.seek(from)?;
                if self.at_ms() < from && !self.cursor.forward()? {
                    return Ok(());
                }
            }
        }
        let mut out = io::BufWriter::new(io::stdout().lock());
        let mut wrong = 0usize;
        while let Some(moment) =
            self.cursor.moment().filter(|it| to.is_none_or(|to| it.at_ms <= to))
        {
            match std::str::from_utf8(moment.line) {
                Ok(line) if PublishedCycle::parse(moment.line).is_ok() => {
                    writeln!(out, "{}", escaped_json(line))?
                }
                _ => wrong += 1,
            }
            if !self.cursor.forward()? {
                break;
            }
        }
        out.flush()?;
        if wrong > 0 {
            tell(&format!(
                "warning: left out because they cannot be read: {}",
                crate::text::plural(wrong, "record")
            ));
        }
        Ok(())
    }

    /// Says what of the history could not be read.
    fn tell_notes(&mut self) {
        self.cursor.take_notes().iter().for_each(|note| tell(&format!("warning: {note}")));
    }
}

impl Source for Replay {
    fn interval(&self, state: &State) -> Duration {
        Duration::from_secs(1) / state.replay.map_or(1, |play| play.a_second())
    }

    fn turn(
        &mut self,
        state: &mut State,
        _: &Frame,
        is_due: bool,
    ) -> anyhow::Result<Option<Frame>> {
        let Some(play) = &mut state.replay else { return Ok(None) };
        let wanted = play.wanted.take();
        let next = is_due && play.playing;
        let Some(jump) = wanted.or(next.then_some(Jump::Forward)) else { return Ok(None) };
        let moved = self.jump(jump)?;
        // Played to its end, it waits there.
        play.playing &= moved || wanted.is_some();
        // One that cannot be read is passed over.
        Ok(if moved { self.frame().ok() } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_history::{LEAST_SIZE, Writer, opening};

    fn replay(times: &[u64]) -> (Replay, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(dir.path(), LEAST_SIZE).unwrap();
        for at in times {
            writer.append(*at, format!("{}\"host\":{{}}}}", opening(*at)).as_bytes()).unwrap();
        }
        (Replay { cursor: Cursor::open(dir.path()).unwrap() }, dir)
    }

    #[test]
    fn keys_step_jump_and_play_to_the_end() {
        let minutes: Vec<u64> = (0..200).map(|minute| minute * 60_000).collect();
        let (mut replay, _dir) = replay(&minutes);
        let mut state = State::replaying();
        let empty = Frame::default();
        let mut press = |key, is_due| {
            state.key(key, &empty);
            let frame = replay.turn(&mut state, &empty, is_due).unwrap();
            frame.map(|frame| frame.past.unwrap().at_ms / 60_000)
        };
        use super::super::state::Key::{Char, Left, Right};
        assert_eq!(press(Right, false), None, "nothing is later");
        assert_eq!(press(Left, false), Some(198));
        assert_eq!(press(Char('['), false), Some(138));
        assert_eq!(press(Char('<'), false), Some(0));
        assert_eq!(press(Char(']'), false), Some(60));
        assert_eq!(press(Char(' '), true), Some(61), "it plays");
        assert_eq!(press(Char('+'), true), Some(62));
        assert_eq!(press(Char('>'), false), Some(199));
        assert_eq!(press(Char('-'), true), None);
        let play = state.replay.unwrap();
        assert!(!play.playing && play.a_second() == 1, "it stopped at the end: {play:?}");
    }

    #[test]
    fn times_count_back_from_the_newest_record() {
        assert_eq!(ms(HistoryTime::Ago(Duration::from_secs(2)), 5000), 3000);
        assert_eq!(ms(HistoryTime::Ago(Duration::MAX), 5000), 0);
        assert_eq!(ms(HistoryTime::At(UNIX_EPOCH + Duration::from_secs(7)), 5000), 7000);
    }
}
