//! What a run keeps of the past for `instep serve` and `instep top --replay`: the last hour, the last day, and what the host was at
//! each moment.
//!
//! ```text
//! a cycle ends --+--> the hour ---once a minute----------> history.json in the state directory
//!                +--> the day ----every ten minutes--+
//!                +--> a moment, changes in it or     +--> Recorder (another thread) --> the history's directory
//!                     ten seconds after the last *---+
//! ```
//! \* Or later, so that a day of moments has room. After a change both documents are written. What cannot be written is
//! told once, and placement goes on.

use crate::config::HistoryConfig;
use crate::dispatch::in_force::InForce;
use crate::metrics::HistoryMetrics;
use crate::observe::Observation;
use crate::published::history::{History, PlacementChange};
use crate::published::recorder::{Recorder, State};
use crate::published::{DAY, HISTORY, HOST, PublishedHost, RunState, history_dir};
use crate::record::Record;
use crate::sink::Sink;
use crate::state_file;
use schemars::JsonSchema;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The least time between two moments in which nothing was changed, so that short cycles do not shorten the history.
const APART: Duration = Duration::from_secs(10);
/// How long the end of a run waits for what is still being written.
const PATIENCE: Duration = Duration::from_secs(5);

/// Keeps the past.
#[derive(Debug)]
pub(crate) struct Keeper {
    state: PathBuf,
    hour: History,
    /// `None` where no history is kept.
    past: Option<Past>,
    /// Together and apart times of VMs when last asked, by name.
    co_run: BTreeMap<String, (u64, u64)>,
}

/// The history on disk.
#[derive(Debug)]
struct Past {
    config: HistoryConfig,
    day: History,
    recorder: Recorder,
    /// When the last moment was handed over.
    last: Option<Instant>,
    /// Whether it was told that it cannot be written.
    is_failing: bool,
}

impl Keeper {
    /// Goes on with what an earlier run left.
    pub(crate) fn begin(state: &Path, config: &HistoryConfig, sink: &mut dyn Sink) -> Self {
        let hour = History::hour(&state.join(HISTORY));
        let mut keeper =
            Self { state: state.to_owned(), hour, past: None, co_run: BTreeMap::new() };
        keeper.configure(config, sink);
        keeper
    }

    /// Keeps the history as this configuration says from now on.
    pub(crate) fn configure(&mut self, config: &HistoryConfig, sink: &mut dyn Sink) {
        let mut config = config.clone();
        if config.dir.as_os_str().is_empty() {
            config.dir = history_dir(&self.state);
        }
        if self.past.as_ref().is_none_or(|past| past.config != config) {
            self.end_past();
            self.past = config.is_kept().then(|| Past::begin(config, sink)).flatten();
        }
    }

    /// Tells everybody of a cycle, and keeps it.
    pub(crate) fn note_cycle(
        &mut self,
        observation: &Observation,
        record: &Record<'_>,
        (run, in_force): (&RunState, Option<&InForce>),
        sink: &mut dyn Sink,
    ) {
        let now = SystemTime::now();
        let co_run = self.take_co_run(in_force);
        let host = PublishedHost::of(observation, record, run, (in_force, &co_run));
        let Ok(host) = serde_json::to_vec(&host) else { return };
        state_file::publish_bytes(&self.state, HOST, &host);
        let noted = self.hour.note_cycle(now, observation, record, &co_run);
        if noted.is_news() {
            self.publish_hour();
        }
        let Some(past) = &mut self.past else { return };
        let of_day = past.day.note_cycle(now, observation, record, &co_run);
        let changes = self.hour.last_changes(noted.changes);
        past.keep(now, &host, changes);
        if of_day.is_news() {
            past.keep_day();
        }
        past.tell(sink);
    }

    /// The history on disk, for metrics; `None` where none is kept.
    pub(crate) fn metrics(&self) -> Option<HistoryMetrics> {
        let state = self.past.as_ref()?.recorder.state();
        Some(HistoryMetrics { bytes: state.bytes, written: state.written, lost: state.lost })
    }

    /// The run ends: writes what is not written yet, and waits a while for it.
    pub(crate) fn end(&mut self) {
        self.publish_hour();
        self.end_past();
    }

    fn end_past(&mut self) {
        if let Some(mut past) = self.past.take() {
            past.keep_day();
            past.recorder.finish(PATIENCE);
        }
    }

    fn publish_hour(&self) {
        if let Ok(bytes) = serde_json::to_vec(&self.hour) {
            state_file::publish_bytes(&self.state, HISTORY, &bytes);
        }
    }

    /// Co-run of VMs since it was asked for last, in thousandths, by name.
    fn take_co_run(&mut self, in_force: Option<&InForce>) -> BTreeMap<String, u64> {
        let Some(in_force) = in_force else { return BTreeMap::new() };
        let before = std::mem::take(&mut self.co_run);
        let mut found = BTreeMap::new();
        for vm in &in_force.vms {
            let now = (vm.together_ns, vm.apart_ns);
            let then = before.get(&vm.name).copied().unwrap_or_default();
            let (together, apart) = (now.0.saturating_sub(then.0), now.1.saturating_sub(then.1));
            if let Some(part) =
                (u128::from(together) * 1000).checked_div(u128::from(together) + u128::from(apart))
            {
                found.insert(vm.name.clone(), part as u64);
            }
            self.co_run.insert(vm.name.clone(), now);
        }
        found
    }
}

/// A line of the history: schema `instep.moment/1`. [`Past::keep`] puts it together from parts that are JSON already.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Moment")]
#[expect(dead_code, reason = "its schema is all that is used")]
pub struct WrittenMoment<'a> {
    #[schemars(extend("const" = "instep.moment/1"))]
    schema: &'static str,
    /// In milliseconds since 1970.
    at_ms: u64,
    /// What was changed since the moment before.
    changes: Vec<PlacementChange>,
    /// The host after the cycle.
    host: PublishedHost<'a>,
}

impl Past {
    fn begin(config: HistoryConfig, sink: &mut dyn Sink) -> Option<Self> {
        match Recorder::start(&config.dir, config.size.0) {
            Ok(recorder) => {
                let day = History::day(&config.dir.join(DAY));
                Some(Self { config, day, recorder, last: None, is_failing: false })
            }
            Err(error) => {
                sink.notice(&format!(
                    "no history is kept: cannot start the thread that writes it: {error}; placement goes on"
                ));
                None
            }
        }
    }

    /// Hands a moment to the thread that writes: the host, and what was changed.
    fn keep(&mut self, now: SystemTime, host: &[u8], changes: &[PlacementChange]) {
        let apart = APART.max(self.recorder.spacing());
        let is_due = self.last.is_none_or(|last| last.elapsed() >= apart);
        if !is_due && changes.is_empty() {
            return;
        }
        self.last = Some(Instant::now());
        let at_ms = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let mut line = instep_history::opening(at_ms).into_bytes();
        line.extend(b"\"changes\":");
        if serde_json::to_writer(&mut line, changes).is_err() {
            return;
        }
        line.extend(b",\"host\":");
        line.extend(host);
        line.push(b'}');
        self.recorder.offer_moment(at_ms, line);
    }

    fn keep_day(&mut self) {
        if let Ok(bytes) = serde_json::to_vec(&self.day) {
            self.recorder.offer_day(bytes);
        }
    }

    /// Tells once that it cannot be written, and once that it can again.
    fn tell(&mut self, sink: &mut dyn Sink) {
        let State { trouble, lost, .. } = self.recorder.state();
        match (&trouble, self.is_failing) {
            (Some(why), false) => sink.notice(&format!(
                "the history cannot be written: {why}; make room there, or name another directory with --history or under \
                 [history]; placement goes on"
            )),
            (None, true) => sink.notice(&format!(
                "the history is written to {} again; records lost so far: {lost}",
                self.config.dir.display()
            )),
            _ => return,
        }
        self.is_failing = trouble.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Heard;
    use instep_core::units::Bytes;
    use instep_history::Cursor;

    fn keeper(state: &Path, dir: &Path) -> (Keeper, Heard) {
        let config = HistoryConfig { dir: dir.to_owned(), size: Bytes::from_mib(16) };
        let mut heard = Heard::default();
        (Keeper::begin(state, &config, &mut heard), heard)
    }

    #[test]
    fn co_run_is_that_of_the_time_between_two_cycles() {
        let vm = |together_ns, apart_ns| crate::dispatch::in_force::VmInForce {
            name: "a".to_owned(),
            together_ns,
            apart_ns,
            ..Default::default()
        };
        let dir = instep_madehost::scratch_dir().unwrap();
        let (mut keeper, _) = keeper(dir.path(), &dir.path().join("h"));
        let mut ask = |vms| keeper.take_co_run(Some(&InForce { vms, ..InForce::default() }));
        assert_eq!(ask(vec![vm(30, 10)]).get("a"), Some(&750));
        assert_eq!(ask(vec![vm(40, 40)]).get("a"), Some(&250));
        assert_eq!(ask(vec![vm(40, 40)]).get("a"), None, "neither ran");
    }

    #[test]
    fn moments_are_apart_unless_something_was_changed() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let (mut keeper, _) = keeper(dir.path(), &dir.path().join("h"));
        let change: PlacementChange =
            serde_json::from_value(serde_json::json!({"at": "", "vm": "a\u{1b}[2J",
            "uuid": "", "kind": "soft_home", "threads": 0, "to": "1", "why": "", "outcome": ""}))
            .unwrap();
        let past = keeper.past.as_mut().unwrap();
        let time = |ms| UNIX_EPOCH + Duration::from_millis(ms);
        past.keep(time(1000), b"{}", &[]);
        past.keep(time(2000), b"{}", &[]);
        past.keep(time(3000), b"{}", std::slice::from_ref(&change));
        keeper.end();
        let mut cursor = Cursor::open(&dir.path().join("h")).unwrap();
        let newest = cursor.moment().unwrap();
        let line: serde_json::Value = serde_json::from_slice(newest.line).unwrap();
        assert_eq!((newest.at_ms, &line["changes"][0]["vm"]), (3000, &"a\u{1b}[2J".into()));
        assert!(cursor.back().unwrap() && cursor.moment().unwrap().at_ms == 1000);
        assert!(!cursor.back().unwrap());
    }

    #[test]
    fn unwritable_history_is_reported_once_and_its_end_too() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let in_the_way = dir.path().join("h");
        std::fs::write(&in_the_way, "a file where the directory should be").unwrap();
        let (mut keeper, mut heard) = keeper(dir.path(), &in_the_way);
        let mut cycle = |heard: &mut Heard| {
            let past = keeper.past.as_mut().unwrap();
            past.last = None;
            let before = past.recorder.state();
            past.keep(SystemTime::now(), b"{}", &[]);
            let end = Instant::now() + Duration::from_secs(20);
            let done = |state: State| (state.written, state.lost);
            while done(past.recorder.state()) == done(before.clone()) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            past.tell(heard);
        };
        (0..3).for_each(|_| cycle(&mut heard));
        assert!(heard.0.len() == 1 && heard.0[0].contains("placement goes on"), "{:?}", heard.0);
        std::fs::remove_file(&in_the_way).unwrap();
        (0..2).for_each(|_| cycle(&mut heard));
        assert!(heard.0.len() == 2 && heard.0[1].contains("lost so far: 3"), "{:?}", heard.0);
        let metrics = keeper.metrics().unwrap();
        assert_eq!((metrics.written, metrics.lost), (2, 3));
        assert!(metrics.bytes > 0);
    }
}
