//! Draws a frame as the user's choices say. No I/O: everything comes as arguments.

use super::frame::{Frame, Past, VmRow};
use super::map;
use super::state::{Mode, State};
use crate::text::{plural, printable, shortened, wrapped};
use instep_core::units::{Milli, Nanos};
use ratatui::Frame as Screen;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Clear, Paragraph};
use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

/// From this width on, the vCPUs stand beside the list.
const WIDE: u16 = 150;
/// The least rows that the list keeps beside map and vCPUs.
const LIST: u16 = 6;
/// Rows that the map leaves to vCPUs below the list: their head, borders, and eight of them.
const VCPUS: u16 = 11;
/// Columns of a VM's row besides its name: heads and widths.
const COLUMNS: [(&str, usize); 10] = [
    ("vCPUs", 6),
    ("used", 7),
    ("steal", 7),
    ("throt", 7),
    ("co-run", 7),
    ("local", 7),
    ("type", 5),
    ("stk", 5),
    ("shr", 5),
    ("nodes", 6),
];
/// Which of them go first where the screen is too narrow.
const SPARED: [&str; 7] = ["nodes", "shr", "type", "local", "throt", "vCPUs", "co-run"];
/// The least that is left to names.
const NAME: usize = 6;
/// Lines of a moment of the history: its changes, and two of the selected VM's verdict.
const PAST: u16 = 3;

const HELP: &[&str] = &[
    "Map: a letter is a busy vCPU of that VM, on the CPU it was last seen on.",
    "  .     nothing busy         !     siblings on one CPU: stacking",
    "  [ab]  two busy threads     +     several VMs on one CPU",
    "        share a core         |     between last-level caches",
    "",
    "used, steal  CPUs it had; CPUs it waited for while others ran",
    "throt        CPUs that its quota kept from it; `-` without a quota",
    "co-run       part of its runnable vCPUs that run while one does; `-` where",
    "             it is not traced (top traces up to 256 vCPUs where it may, the",
    "             selected VM's first) and where vCPUs wait long after waking",
    "local        memory on the node of the vCPUs' CPUs",
    "type         1 high parallelism, low frequency of synchronisation;",
    "             2 low/high; 3 high/high; 4 low/low",
    "stk, shr     CPUs with stacked siblings; vCPUs that share a core",
    "",
    "j k, arrows  select      Enter, v  vCPUs of the VM    m  map on and off",
    "PgUp, PgDn   page of VMs, or of the vCPUs while these are listed",
    "s, r         sort by, reverse      /  filter by name  p  pause",
    "h, ?         this help             q  quit",
];

/// What the keys do in the history, in the place of the last lines of [`HELP`].
const HELP_PAST: &[&str] = &[
    "left, right  a record back, on     [ ]        an hour back, on",
    "< >          first, last record    p, space   play and stop",
    "+ -          speed                 j k, arrows, PgUp, PgDn  select",
    "Enter, v     vCPUs of the VM       s r m / as in the live view",
    "h, ?         this help             q  quit",
];

/// Draws everything.
pub(super) fn draw(screen: &mut Screen<'_>, frame: &Frame, state: &State) {
    let area = screen.area();
    let lines = if state.no_map { Vec::new() } else { map::lines(frame, area.width.into()) };
    let rows = state.rows(frame);
    let cursor = state.cursor(frame, &rows);
    let chosen = rows.get(cursor).map(|place| (&frame.vms[*place], *place));
    let below = match chosen.filter(|_| state.vcpus && area.width < WIDE) {
        Some((vm, _)) => vcpu_lines(vm.vcpus.len()).min(VCPUS),
        None => 0,
    };
    let spare = area.height.saturating_sub(LIST + 3 + below);
    let spare = if frame.past.is_some() { spare.saturating_sub(PAST) } else { spare };
    let map_height = u16::try_from(lines.len()).unwrap_or(u16::MAX).min(spare);
    let past_height = if frame.past.is_some() { PAST } else { 0 };
    let [head, map, rest, past, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(map_height),
        Constraint::Min(1),
        Constraint::Length(past_height),
        Constraint::Length(1),
    ])
    .areas(area);
    screen.render_widget(heading(frame, state, area.width.into()), head);
    screen.render_widget(cut_map(lines, map_height), map);
    let (list, vcpus) = split(rest, state, chosen.map_or(0, |(vm, _)| vm.vcpus.len()));
    draw_list(screen, frame, state, &rows, cursor, list);
    if let (Some(area), Some((vm, place))) = (vcpus, chosen) {
        draw_vcpus(screen, vm, place, state.vcpus_from, area);
    }
    if let Some(of) = &frame.past {
        let chosen = chosen.map(|(vm, place)| (vm.name.as_str(), place));
        screen.render_widget(past_lines(of, chosen, area.width.into()), past);
    }
    screen.render_widget(footer(state), foot);
    if state.mode == Mode::Help {
        draw_help(screen, area, state.replay.is_some());
    }
}

/// Places for the list and for so many vCPUs, where these are shown.
fn split(rest: Rect, state: &State, vcpus: usize) -> (Rect, Option<Rect>) {
    let lines = vcpu_lines(vcpus);
    if rest.width >= WIDE {
        let [list, vcpus] =
            Layout::horizontal([Constraint::Fill(3), Constraint::Fill(2)]).spacing(2).areas(rest);
        return (list, Some(Rect { height: vcpus.height.min(lines), ..vcpus }));
    }
    if !state.vcpus || rest.height < 6 {
        return (rest, None);
    }
    let most = rest.height.saturating_sub(LIST + 1).min(VCPUS).max(rest.height / 2);
    let lines = Constraint::Length(lines.min(most));
    let [list, vcpus] = Layout::vertical([Constraint::Fill(1), lines]).areas(rest);
    (list, Some(vcpus))
}

/// Lines of so many vCPUs: each has one, and so have the head and both borders.
fn vcpu_lines(vcpus: usize) -> u16 {
    u16::try_from(vcpus + 3).unwrap_or(u16::MAX)
}

/// The map, or its beginning and what is left out.
fn cut_map(mut lines: Vec<Line<'static>>, height: u16) -> Text<'static> {
    let height = usize::from(height);
    if lines.len() > height {
        let left = lines.len() - height.saturating_sub(1);
        lines.truncate(height.saturating_sub(1));
        lines.push(Line::raw(format!("... {} more; m hides the map", plural(left, "line"))));
    }
    Text::from(lines)
}

fn heading(frame: &Frame, state: &State, width: usize) -> Line<'static> {
    let vcpus: usize = frame.vms.iter().map(|vm| vm.vcpus.len()).sum();
    let vms = frame.vms.len() + frame.opaque;
    let stacked: usize = frame.vms.iter().map(|vm| vm.stacked).sum();
    let sharing: usize = frame.vms.iter().map(|vm| vm.sharing).sum();
    let counts = format!(
        "{}, {} on {}",
        plural(vms, "VM"),
        plural(vcpus, "vCPU"),
        plural(frame.cpus(), "CPU")
    );
    // A time must not be cut off on a narrow screen.
    let left = match &frame.past {
        Some(past) => format!("{}  {counts} ", time_of(past.at_ms)),
        None => format!("{counts}; other load {} ", tenths(frame.others)),
    };
    let mut spans = vec![Span::styled(left, Style::new().add_modifier(Modifier::BOLD))];
    if stacked > 0 {
        spans.push(Span::styled(format!(" {stacked} stacked "), map::alarm()));
    }
    if sharing > 0 {
        spans.push(Span::styled(format!(" {sharing} share a core "), map::warning()));
    }
    if frame.opaque > 0 {
        spans.push(Span::raw(format!(" {} left alone ", frame.opaque)));
    }
    let right = if state.paused { "PAUSED".to_owned() } else { window(frame.window) };
    let line = Line::from(spans);
    let pad = width.saturating_sub(line.width() + right.chars().count());
    let mut spans = line.spans;
    spans.push(Span::raw(" ".repeat(pad)));
    spans.push(Span::styled(right, Style::new().fg(Color::DarkGray)));
    Line::from(spans)
}

/// A time in UTC, to the second.
fn time_of(at_ms: u64) -> String {
    // The last second that the format has: the end of the year 9999.
    let seconds = (at_ms / 1000).min(253_402_300_799);
    let time = UNIX_EPOCH + Duration::from_secs(seconds);
    humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', " UTC")
}

/// What was changed at a moment, and why the selected VM was placed so.
fn past_lines(past: &Past, chosen: Option<(&str, usize)>, width: usize) -> Text<'static> {
    let soft = Style::new().fg(Color::DarkGray);
    let changes = match past.changes.split_first() {
        None => "Nothing was changed.".to_owned(),
        Some((first, [])) => format!("Changed: {first}"),
        Some((first, more)) => format!("Changed: {} more, and {first}", more.len()),
    };
    let mut lines = vec![Line::styled(beginning(&changes, width), soft)];
    let why = chosen.and_then(|(name, place)| Some((name, past.verdicts.get(place)?)));
    if let Some((name, why)) = why.filter(|(_, why)| !why.is_empty()) {
        let said = format!("Verdict of {}: {why}", shortened(&printable(name), 30));
        let cut = said.floor_char_boundary(4 * width.max(1));
        let wrapped = wrapped(&said[..cut], width.max(1));
        lines.extend(wrapped.into_iter().take(usize::from(PAST) - 1).map(Line::raw));
    }
    Text::from(lines)
}

/// As much of a text as has room.
fn beginning(text: &str, width: usize) -> String {
    printable(text).chars().take(width).collect()
}

fn window(window: Nanos) -> String {
    format!("{}s", tenths(window.milli_of(Nanos::SECOND)))
}

fn draw_list(
    screen: &mut Screen<'_>,
    frame: &Frame,
    state: &State,
    rows: &[usize],
    cursor: usize,
    area: Rect,
) {
    let columns = columns(area.width.into());
    let taken: usize = columns.iter().map(|(_, width)| width).sum();
    let names = usize::from(area.width).saturating_sub(taken + 2).max(NAME);
    let mut head = format!("  {:<names$}", "VM");
    for (name, width) in &columns {
        let _ = write!(head, "{name:>width$}");
    }
    let style = Style::new().add_modifier(Modifier::REVERSED);
    let mut lines = vec![Line::styled(format!("{head:<width$}", width = area.width.into()), style)];
    let room = usize::from(area.height).saturating_sub(1);
    // The selected row stays in sight, in the middle where there are rows on both sides.
    let first = cursor.saturating_sub(room / 2).min(rows.len().saturating_sub(room));
    for (at, place) in rows.iter().enumerate().skip(first).take(room) {
        let line = vm_line(&frame.vms[*place], *place, names, &columns);
        // Its own foreground, too: that of a light terminal is dark.
        let chosen = Style::new().fg(Color::Indexed(255)).bg(Color::Indexed(238));
        let chosen = chosen.add_modifier(Modifier::BOLD);
        lines.push(if at == cursor { line.style(chosen) } else { line });
    }
    if rows.is_empty() {
        let why = match (frame.vms.is_empty(), state.filter.is_empty()) {
            (true, _) => "no VM runs here; `instep demo` shows what Instep does",
            (false, false) => "no VM's name contains the filter; Esc clears it",
            (false, true) => "",
        };
        lines.push(Line::raw(format!("  {why}")));
    }
    screen.render_widget(Text::from(lines), area);
}

/// The columns that fit beside a name.
fn columns(width: usize) -> Vec<(&'static str, usize)> {
    let mut kept = COLUMNS.to_vec();
    for spared in SPARED {
        let taken: usize = kept.iter().map(|(_, width)| width).sum();
        if taken + 2 + NAME <= width {
            break;
        }
        kept.retain(|(name, _)| *name != spared);
    }
    kept
}

fn vm_line(
    vm: &VmRow,
    place: usize,
    names: usize,
    columns: &[(&'static str, usize)],
) -> Line<'static> {
    let style = Style::new().fg(Color::Black).bg(map::colour(place));
    let mut spans = vec![
        Span::styled(map::letter(place).to_string(), style),
        Span::raw(format!(" {:<names$}", shortened(&printable(&vm.name), names))),
    ];
    for (name, width) in columns {
        let (text, style) = value(vm, name);
        // What is coloured is the value, not the gap before it.
        spans.push(Span::raw(" ".repeat(width.saturating_sub(text.chars().count()))));
        spans.push(Span::styled(text, style));
    }
    Line::from(spans)
}

/// What stands in a column of a VM's row.
fn value(vm: &VmRow, column: &str) -> (String, Style) {
    let part = |part: Option<Milli>| part.map_or("-".to_owned(), percent);
    let count = |count: usize| if count == 0 { ".".to_owned() } else { count.to_string() };
    let when = |so: bool, style: Style| if so { style } else { Style::new() };
    let nodes = || {
        let mut nodes: Vec<u32> =
            vm.vcpus.iter().filter_map(|vcpu| vcpu.node).map(|node| node.0).collect();
        nodes.sort_unstable();
        nodes.dedup();
        shortened(&crate::text::ranges(&nodes), 5)
    };
    let text = match column {
        "vCPUs" => vm.vcpus.len().to_string(),
        "used" => vm.used.to_string(),
        "steal" => vm.steal.to_string(),
        "throt" => vm.throttled.map_or("-".to_owned(), |cpus| cpus.to_string()),
        "co-run" => part(vm.co_run),
        "local" => part(vm.locality),
        "type" => vm.kind.map_or("-".to_owned(), |kind| kind.number().to_string()),
        "stk" => return (count(vm.stacked), when(vm.stacked > 0, map::alarm())),
        "shr" => return (count(vm.sharing), when(vm.sharing > 0, map::warning())),
        _ => nodes(),
    };
    (text, Style::new())
}

/// The vCPUs of a VM from the one at `from` on; those that have no room are counted, before and after.
fn draw_vcpus(screen: &mut Screen<'_>, vm: &VmRow, place: usize, from: usize, area: Rect) {
    let title = format!(" {} (pid {}) ", printable(&vm.name), vm.id);
    let block = Block::bordered()
        .title(shortened(&title, usize::from(area.width).saturating_sub(4)))
        .border_style(Style::new().fg(map::colour(place)));
    let mut lines = vec![Line::styled(
        "vCPU   thread   CPU node  used steal blocks/s allowed",
        Style::new().add_modifier(Modifier::BOLD),
    )];
    let room = usize::from(area.height).saturating_sub(3);
    let known = |number: Option<u32>| number.map_or("?".to_owned(), |number| number.to_string());
    // The last page is full.
    let from = from.min((vm.vcpus.len() + usize::from(from > 0)).saturating_sub(room));
    let before = usize::from(from > 0);
    if from > 0 {
        lines.push(Line::raw(format!("... {from} before; PgUp")));
    }
    let shown = vm.vcpus.iter().skip(from);
    for vcpu in shown.take(room.saturating_sub(before)) {
        lines.push(Line::raw(format!(
            "{:>4} {:>8} {:>5} {:>4} {:>5} {:>5} {:>8} {}",
            vcpu.index,
            vcpu.tid.to_string(),
            known(vcpu.cpu.map(|cpu| cpu.0)),
            known(vcpu.node.map(|node| node.0)),
            percent(vcpu.used),
            percent(vcpu.steal),
            vcpu.blocks.map_or("-".to_owned(), |blocks| (blocks / 1000).to_string()),
            vcpu.allowed,
        )));
    }
    let after = vm.vcpus.len().saturating_sub(from + room.saturating_sub(before));
    if after > 0 && room > 0 {
        lines.truncate(room);
        lines.push(Line::raw(format!("... {} more; PgDn", after + 1)));
    }
    screen.render_widget(Paragraph::new(lines).block(block), area);
}

fn footer(state: &State) -> Line<'static> {
    if state.mode == Mode::Filter {
        return Line::from(vec![
            Span::raw("filter: "),
            Span::styled(state.filter.clone(), Style::new().add_modifier(Modifier::BOLD)),
            Span::raw("_  Enter keeps it, Esc clears it"),
        ]);
    }
    let order = if state.reversed { " reversed" } else { "" };
    let filter = match state.filter.as_str() {
        "" => String::new(),
        filter => format!("  filter: {filter}"),
    };
    if let Some(play) = state.replay {
        let playing = if play.playing { "stop" } else { "play" };
        let a_second = play.a_second();
        let text = format!(
            "q quit  ? help  <- -> step  [ ] hour  < > ends  space {playing} {a_second}/s  + - speed{filter}"
        );
        return Line::styled(text, Style::new().fg(Color::DarkGray));
    }
    let text = format!(
        "q quit  ? help  s sort: {}{order}  / filter  v vCPUs  p pause{filter}",
        state.sort.name()
    );
    Line::styled(text, Style::new().fg(Color::DarkGray))
}

fn draw_help(screen: &mut Screen<'_>, area: Rect, is_past: bool) {
    // The keys of the live view are the last four lines.
    let columns = if is_past { &HELP[..HELP.len() - 4] } else { HELP };
    let keys = if is_past { HELP_PAST } else { &[] };
    let lines: Vec<Line<'_>> = columns.iter().chain(keys).map(|line| Line::raw(*line)).collect();
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(area.height);
    let width = 78.min(area.width);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    screen.render_widget(Clear, place);
    let block = Block::bordered().title(" instep top: any key goes back ");
    screen.render_widget(Paragraph::new(lines).block(block), place);
}

fn percent(milli: Milli) -> String {
    format!("{}%", milli.0.saturating_add(5) / 10)
}

/// Thousandths as a decimal with one place.
fn tenths(milli: Milli) -> String {
    let tenths = milli.0.saturating_add(50) / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
