//! What the user of `instep top` chose: a pure state machine over keys.
//!
//! ```text
//!            '/'                 Enter, Esc
//!  browse ---------> filter text -----------> browse
//!    |  '?', h            any key
//!    '---------> help ---------------> browse
//! ```

use super::frame::{Frame, VmRow};
use instep_core::units::VmId;
use std::cmp::Reverse;

/// A key, as far as it means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Left,
    Right,
}

/// Where to go in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Jump {
    Back,
    Forward,
    HourBack,
    HourForward,
    First,
    Last,
}

/// How the history is gone through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Play {
    pub(super) playing: bool,
    /// A place in [`SPEEDS`].
    speed: usize,
    /// What was asked for and is not done yet.
    pub(super) wanted: Option<Jump>,
}

/// Records a second.
const SPEEDS: [u32; 5] = [1, 2, 5, 10, 30];

impl Play {
    /// How many records a second are shown while it plays.
    pub(super) fn a_second(self) -> u32 {
        SPEEDS[self.speed.min(SPEEDS.len() - 1)]
    }

    /// Takes a key that means something in the history only; whether it was one.
    fn key(&mut self, key: Key) -> bool {
        let jump = match key {
            Key::Left => Jump::Back,
            Key::Right => Jump::Forward,
            Key::Char('[') => Jump::HourBack,
            Key::Char(']') => Jump::HourForward,
            Key::Char('<') => Jump::First,
            Key::Char('>') => Jump::Last,
            Key::Char('p' | ' ') => {
                self.playing = !self.playing;
                return true;
            }
            Key::Char('+') => {
                self.speed = (self.speed + 1).min(SPEEDS.len() - 1);
                return true;
            }
            Key::Char('-') => {
                self.speed = self.speed.saturating_sub(1);
                return true;
            }
            _ => return false,
        };
        self.wanted = Some(jump);
        true
    }
}

/// By what VMs are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Used,
    Steal,
    CoRun,
    Locality,
    Stacked,
    Type,
    Name,
}

/// What is typed into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Browse,
    Filter,
    Help,
}

/// Everything that was chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) mode: Mode,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) filter: String,
    pub(super) paused: bool,
    /// Whether the vCPUs of the selected VM are listed.
    pub(super) vcpus: bool,
    /// How many of them come before the first that is shown, where not all have room.
    pub(super) vcpus_from: usize,
    /// Whether the map is hidden.
    pub(super) no_map: bool,
    /// The VM that is selected, wherever it is sorted to.
    pub(super) selected: Option<VmId>,
    pub(super) quit: bool,
    /// `None` for the present.
    pub(super) replay: Option<Play>,
}

/// Rows of a page, and of one of vCPUs, as many as a small screen has.
const PAGE: usize = 10;
const VCPUS_PAGE: usize = 5;
/// The longest filter.
const MAX_FILTER: usize = 60;

impl Sort {
    const ALL: [Sort; 7] = [
        Sort::Used,
        Sort::Steal,
        Sort::CoRun,
        Sort::Locality,
        Sort::Stacked,
        Sort::Type,
        Sort::Name,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Used => "used",
            Sort::Steal => "steal",
            Sort::CoRun => "co-run",
            Sort::Locality => "locality",
            Sort::Stacked => "stacked",
            Sort::Type => "type",
            Sort::Name => "name",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// What needs attention comes first.
    fn order(self, rows: &mut [(usize, &VmRow)]) {
        match self {
            Sort::Used => rows.sort_by_key(|(_, vm)| Reverse(vm.used)),
            Sort::Steal => rows.sort_by_key(|(_, vm)| Reverse(vm.steal)),
            Sort::CoRun => rows.sort_by_key(|(_, vm)| vm.co_run.map_or(u64::MAX, |part| part.0)),
            Sort::Locality => rows.sort_by_key(|(_, vm)| vm.locality.map_or(u64::MAX, |l| l.0)),
            Sort::Stacked => rows.sort_by_key(|(_, vm)| Reverse((vm.stacked, vm.sharing))),
            Sort::Type => {
                rows.sort_by_key(|(_, vm)| vm.kind.map_or(u8::MAX, |kind| kind.number()));
            }
            Sort::Name => rows.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name)),
        }
    }
}

impl State {
    /// At the beginning of going through a history.
    pub(super) fn replaying() -> Self {
        Self { replay: Some(Play::default()), ..Self::default() }
    }

    /// Places of the VMs in `frame` that are shown, in their order.
    pub(super) fn rows(&self, frame: &Frame) -> Vec<usize> {
        let wanted = self.filter.to_lowercase();
        let shown = |vm: &VmRow| vm.name.to_lowercase().contains(&wanted);
        let mut rows: Vec<(usize, &VmRow)> =
            frame.vms.iter().enumerate().filter(|(_, vm)| shown(vm)).collect();
        self.sort.order(&mut rows);
        if self.reversed {
            rows.reverse();
        }
        rows.into_iter().map(|(place, _)| place).collect()
    }

    /// Which of `rows` is selected: the first where the selected VM is not shown.
    pub(super) fn cursor(&self, frame: &Frame, rows: &[usize]) -> usize {
        let is = |place: &usize| Some(frame.vms[*place].id) == self.selected;
        rows.iter().position(is).unwrap_or(0)
    }

    /// Takes a key.
    pub(super) fn key(&mut self, key: Key, frame: &Frame) {
        match self.mode {
            Mode::Help => self.mode = Mode::Browse,
            Mode::Filter => self.filter_key(key),
            Mode::Browse if self.replay.as_mut().is_some_and(|play| play.key(key)) => {}
            Mode::Browse => self.browse_key(key, frame),
        }
    }

    fn filter_key(&mut self, key: Key) {
        match key {
            Key::Char(c) if self.filter.chars().count() < MAX_FILTER && !c.is_control() => {
                self.filter.push(c);
            }
            Key::Backspace => _ = self.filter.pop(),
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::Browse;
            }
            Key::Enter => self.mode = Mode::Browse,
            _ => {}
        }
    }

    fn browse_key(&mut self, key: Key, frame: &Frame) {
        match key {
            Key::Char('q') => self.quit = true,
            Key::Escape if self.vcpus => self.vcpus = false,
            Key::Escape if !self.filter.is_empty() => self.filter.clear(),
            Key::Escape => self.quit = true,
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('r') => self.reversed = !self.reversed,
            Key::Char('/') => self.mode = Mode::Filter,
            Key::Char('p' | ' ') => self.paused = !self.paused,
            Key::Char('m') => self.no_map = !self.no_map,
            Key::Char('h' | '?') => self.mode = Mode::Help,
            Key::Enter | Key::Char('v') => (self.vcpus, self.vcpus_from) = (!self.vcpus, 0),
            Key::PageUp if self.vcpus => {
                self.vcpus_from = self.vcpus_from.saturating_sub(VCPUS_PAGE);
            }
            Key::PageDown if self.vcpus => self.vcpus_on(frame),
            Key::Up | Key::Char('k') => self.step(frame, |at, _| at.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.step(frame, |at, _| at + 1),
            Key::PageUp => self.step(frame, |at, _| at.saturating_sub(PAGE)),
            Key::PageDown => self.step(frame, |at, _| at + PAGE),
            Key::Home => self.step(frame, |_, _| 0),
            Key::End => self.step(frame, |_, count| count),
            Key::Char(_) | Key::Backspace | Key::Left | Key::Right => {}
        }
    }

    /// A page of vCPUs on, as long as there are some.
    fn vcpus_on(&mut self, frame: &Frame) {
        let rows = self.rows(frame);
        let chosen = rows.get(self.cursor(frame, &rows)).map(|place| &frame.vms[*place]);
        let next = self.vcpus_from + VCPUS_PAGE;
        if chosen.is_some_and(|vm| next < vm.vcpus.len()) {
            self.vcpus_from = next;
        }
    }

    fn step(&mut self, frame: &Frame, to: impl Fn(usize, usize) -> usize) {
        let rows = self.rows(frame);
        let Some(last) = rows.len().checked_sub(1) else { return };
        let at = to(self.cursor(frame, &rows), last).min(last);
        self.selected = Some(frame.vms[rows[at]].id);
        self.vcpus_from = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::tests::{frame, vm};
    use super::*;
    use instep_madehost::HostSpec;

    fn three() -> Frame {
        let vms =
            vec![vm("web", 0, &[0], 300), vm("db", 0, &[1, 1], 900), vm("batch", 0, &[2], 600)];
        frame(HostSpec::new(1, 4), vms, &[])
    }

    fn names(state: &State, frame: &Frame) -> Vec<String> {
        state.rows(frame).into_iter().map(|place| frame.vms[place].name.clone()).collect()
    }

    fn typed(state: &mut State, keys: &str, frame: &Frame) {
        keys.chars().for_each(|c| state.key(Key::Char(c), frame));
    }

    #[test]
    fn each_sort_puts_what_needs_attention_first_and_can_be_reversed() {
        let (mut state, frame) = (State::default(), three());
        assert_eq!(names(&state, &frame), ["db", "batch", "web"]);
        typed(&mut state, "s", &frame);
        assert_eq!((state.sort.name(), &names(&state, &frame)[0][..]), ("steal", "web"));
        let mut known = frame.clone();
        known.vms.iter_mut().zip([Some(400), None, Some(200)]).for_each(|(vm, part)| {
            vm.co_run = part.map(instep_core::units::Milli);
        });
        typed(&mut state, "s", &frame);
        assert_eq!(state.sort.name(), "co-run");
        assert_eq!(names(&state, &known), ["batch", "web", "db"], "who is not known comes last");
        typed(&mut state, "ss", &frame);
        assert_eq!((state.sort.name(), &names(&state, &frame)[0][..]), ("stacked", "db"));
        typed(&mut state, "ss", &frame);
        assert_eq!(names(&state, &frame), ["batch", "db", "web"]);
        typed(&mut state, "r", &frame);
        assert_eq!(names(&state, &frame), ["web", "db", "batch"]);
        typed(&mut state, "s", &frame);
        assert_eq!(state.sort, Sort::Used);
    }

    #[test]
    fn a_filter_is_typed_and_taken_back() {
        let (mut state, frame) = (State::default(), three());
        typed(&mut state, "/B", &frame);
        assert_eq!(names(&state, &frame), ["db", "batch", "web"], "web has one, too");
        typed(&mut state, "q", &frame);
        assert!(names(&state, &frame).is_empty() && !state.quit, "letters are text here");
        state.key(Key::Backspace, &frame);
        typed(&mut state, "A", &frame);
        state.key(Key::Enter, &frame);
        assert_eq!((names(&state, &frame), state.mode), (vec!["batch".to_owned()], Mode::Browse));
        state.key(Key::Escape, &frame);
        assert_eq!((names(&state, &frame).len(), state.quit), (3, false));
        state.key(Key::Escape, &frame);
        assert!(state.quit);
    }

    #[test]
    fn the_selection_stays_with_its_vm_and_inside_the_list() {
        let (mut state, frame) = (State::default(), three());
        let cursor = |state: &State| state.cursor(&frame, &state.rows(&frame));
        state.key(Key::Down, &frame);
        assert_eq!(cursor(&state), 1);
        typed(&mut state, "r", &frame);
        state.key(Key::Up, &frame);
        assert_eq!(frame.vms[state.rows(&frame)[cursor(&state)]].name, "web");
        for _ in 0..5 {
            state.key(Key::PageDown, &frame);
        }
        assert_eq!(cursor(&state), 2);
        state.key(Key::Home, &frame);
        assert_eq!(cursor(&state), 0);
        let empty = Frame::default();
        state.key(Key::Down, &empty);
        assert!(state.rows(&empty).is_empty());
    }

    #[test]
    fn pages_turn_those_of_the_vcpus_while_they_are_listed() {
        let vms = vec![vm("wide", 0, &[0; 12], 900), vm("web", 0, &[1], 300)];
        let (mut state, frame) = (State::default(), frame(HostSpec::new(1, 4), vms, &[]));
        state.key(Key::Enter, &frame);
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(state.vcpus_from);
            state.key(Key::PageDown, &frame);
        }
        assert_eq!((seen, state.selected), (vec![0, 5, 10, 10], None));
        state.key(Key::PageUp, &frame);
        assert_eq!(state.vcpus_from, 5);
        state.key(Key::Down, &frame);
        assert_eq!(state.vcpus_from, 0, "those of another VM begin with the first");
        state.key(Key::Escape, &frame);
        state.key(Key::PageUp, &frame);
        assert_eq!(state.cursor(&frame, &state.rows(&frame)), 0, "the list's again");
    }

    #[test]
    fn any_key_leaves_the_help_and_does_nothing_else() {
        let (mut state, frame) = (State::default(), three());
        typed(&mut state, "?q", &frame);
        assert_eq!((state.mode, state.quit), (Mode::Browse, false));
        typed(&mut state, "p", &frame);
        assert!(state.paused);
        state.key(Key::Enter, &frame);
        assert!(state.vcpus);
        typed(&mut state, "m", &frame);
        assert!(state.no_map);
    }
}
