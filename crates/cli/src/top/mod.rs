//! `instep top`: the host's cores and VMs, live in the terminal. Here is the loop; what is shown is
//! `frame`, what was chosen `state`, how it looks `draw`.
//!
//! The terminal is put back when the command ends, panics (ratatui's hook) or gets SIGTERM.

mod draw;
mod frame;
mod live;
mod map;
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
    let terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if !args.once {
        anyhow::ensure!(
            terminal,
            "`instep top` draws on a terminal, and this is none; use `instep status`, or `instep \
             top --once` for one frame"
        );
    }
    let mut live = Live::new(args)?;
    if args.once {
        let frame = live.frame(None)?;
        let width = crate::text::width();
        print(&once(&frame, width)?)?;
        live.warnings().iter().for_each(|warning| crate::tell(&format!("warning: {warning}")));
        return Ok(Outcome::Fine);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot handle signals")?;
    }
    // The first look takes its window, before the screen is taken.
    let first = live.frame(None)?;
    end_with_terminal(Arc::clone(&stop));
    let mut terminal = ratatui::try_init().context("cannot take the terminal")?;
    let shown = show(&mut terminal, &mut live, first, args.interval, &stop);
    ratatui::restore();
    shown.map(|()| Outcome::Fine)
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
    live: &mut Live,
    mut frame: Frame,
    interval: Duration,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let mut state = State::default();
    let mut next = Instant::now() + interval;
    while !state.quit && !stop.load(Ordering::Relaxed) {
        terminal.draw(|screen| draw::draw(screen, &frame, &state))?;
        let wait = next.saturating_duration_since(Instant::now()).min(PATIENCE);
        if event::poll(wait)? {
            if let Event::Key(pressed) = event::read()? {
                state.quit |= is_interrupt(&pressed);
                key(&pressed).into_iter().for_each(|key| state.key(key, &frame));
            }
            continue;
        }
        if Instant::now() < next {
            continue;
        }
        if !state.paused && live.changes() {
            let rows = state.rows(&frame);
            let chosen = rows.get(state.cursor(&frame, &rows)).map(|place| frame.vms[*place].id);
            frame = live.frame(chosen)?;
        }
        next = Instant::now() + interval;
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
        _ => return None,
    })
}

/// One frame as text, as high as it needs to be.
fn once(frame: &Frame, width: usize) -> anyhow::Result<String> {
    let rows = map::lines(frame, width).len() + frame.vms.len().max(1) + 12;
    let size = (u16::try_from(width)?, u16::try_from(rows.min(ONCE_HEIGHT))?);
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1))?;
    terminal.draw(|screen| draw::draw(screen, frame, &State::default()))?;
    let text = text_of(terminal.backend().buffer());
    // The last line tells of keys that nobody can press here.
    let lines: Vec<&str> = text.lines().collect();
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
