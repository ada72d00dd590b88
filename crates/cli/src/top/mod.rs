//! `instep top`: the host's cores and VMs, live in the terminal or from the history. Here is the loop; what is shown is
//! `frame`, what was chosen `state`, how it looks `draw`.
//!
//! The terminal is put back when the command ends, panics (ratatui's hook) or gets SIGTERM.

mod draw;
mod frame;
mod live;
mod map;
mod replay;
mod state;

use crate::args::TopArgs;
use crate::{Outcome, print};
use anyhow::Context;
use frame::Frame;
use live::Live;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Terminal};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use state::{Key, State};
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a key may wait for a signal to be seen.
const PATIENCE: Duration = Duration::from_millis(200);
/// Rows of a frame that is printed once.
const ONCE_HEIGHT: usize = 200;

/// Shows one frame or all.
pub(crate) fn command(args: &TopArgs) -> anyhow::Result<Outcome> {
    if args.replay.is_some() && (args.json || args.once) {
        return replay::command(args, args.replay.as_ref().and_then(Option::as_deref));
    }
    let terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if !args.once {
        anyhow::ensure!(
            terminal,
            "`instep top` draws on a terminal, and this is none; use `instep status`, or `instep \
             top --once` for one frame"
        );
    }
    if let Some(named) = &args.replay {
        return replay::command(args, named.as_deref());
    }
    let mut live = Live::new(args)?;
    if args.once {
        let frame = live.frame(None)?;
        let width = crate::text::width();
        print(&draw_once(&frame, width)?)?;
        live.warnings().iter().for_each(|warning| crate::tell(&format!("warning: {warning}")));
        return Ok(Outcome::Fine);
    }
    // The first look takes its window, before the screen is taken.
    let first = live.frame(None)?;
    run_screen(&mut live, first)?;
    Ok(Outcome::Fine)
}

/// Where frames come from.
trait Source {
    /// How long a frame stands.
    fn interval(&self, state: &State) -> Duration;

    /// The next frame, after a key or because the time of this one is over; `None` where it stays.
    ///
    /// # Errors
    /// There will be no more.
    fn turn(
        &mut self,
        state: &mut State,
        frame: &Frame,
        is_due: bool,
    ) -> anyhow::Result<Option<Frame>>;
}

/// Takes the terminal, and shows frames until the user or a signal ends it.
fn run_screen(source: &mut dyn Source, first: Frame) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot handle signals")?;
    }
    end_with_terminal(Arc::clone(&stop));
    let mut terminal = ratatui::try_init().context("cannot take the terminal")?;
    let shown = show(&mut terminal, source, first, &stop);
    ratatui::restore();
    shown
}

/// Ends this process when its terminal is gone: crossterm then reads the end of input for ever, and a
/// process that is not in the terminal's foreground (under `timeout`) gets no SIGHUP.
fn end_with_terminal(stop: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let input = std::io::stdin();
        // Asked for nothing, it wakes up when the other side has hung up.
        let mut looked = [PollFd::new(&input, PollFlags::empty())];
        while rustix::event::poll(&mut looked, None) == Err(Errno::INTR) {}
        stop.store(true, Ordering::Relaxed);
        std::thread::sleep(Duration::from_secs(1));
        std::process::exit(1);
    });
}

fn show(
    terminal: &mut DefaultTerminal,
    source: &mut dyn Source,
    mut frame: Frame,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let is_past = frame.past.is_some();
    let mut state = if is_past { State::replaying() } else { State::default() };
    let mut begun = Instant::now();
    while !state.quit && !stop.load(Ordering::Relaxed) {
        terminal.draw(|screen| draw::draw(screen, &frame, &state))?;
        let interval = source.interval(&state);
        let wait = interval.saturating_sub(begun.elapsed()).min(PATIENCE);
        if event::poll(wait)? {
            if let Event::Key(pressed) = event::read()? {
                state.quit |= is_interrupt(&pressed);
                key(&pressed).into_iter().for_each(|key| state.key(key, &frame));
            }
            let next = source.turn(&mut state, &frame, false)?;
            frame = next.unwrap_or(frame);
            continue;
        }
        if begun.elapsed() < interval {
            continue;
        }
        let next = source.turn(&mut state, &frame, true)?;
        frame = next.unwrap_or(frame);
        begun = Instant::now();
    }
    Ok(())
}

fn is_interrupt(key: &KeyEvent) -> bool {
    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL)
}

fn key(event: &KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    Some(match event.code {
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        _ => return None,
    })
}

/// One frame as text, as high as it needs to be.
fn draw_once(frame: &Frame, width: usize) -> anyhow::Result<String> {
    let rows = map::lines(frame, width).len() + frame.vms.len().max(1) + 12;
    let size = (u16::try_from(width)?, u16::try_from(rows.min(ONCE_HEIGHT))?);
    let state = if frame.past.is_some() { State::replaying() } else { State::default() };
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1))?;
    terminal.draw(|screen| draw::draw(screen, frame, &state))?;
    let text = text_of(terminal.backend().buffer());
    // The last line tells of keys that nobody can press here.
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let lines = lines.split_last().map_or(&[][..], |(_, rest)| rest);
    Ok(lines.join("\n").trim_end().to_owned() + "\n")
}

/// A buffer's text, its lines without spaces at their ends.
fn text_of(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let mut text = String::new();
    for row in buffer.content().chunks(width) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
