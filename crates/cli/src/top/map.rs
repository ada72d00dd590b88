//! The host as a map: nodes, in them last-level caches parted by `|`, cores parted by a space, and a
//! letter for each CPU. Draws lines; knows no terminal size but its width.
//!
//! ```text
//! a   a vCPU of VM a     !   siblings on one CPU (stacking)     .  nothing busy
//! [ab]  a core shared by two busy CPUs     +   vCPUs of several VMs on one CPU
//! ```

use super::frame::Frame;
use instep_core::units::CpuId;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

/// Columns of a node's label.
const LABEL: usize = 8;
/// Colours of VMs, told apart on dark and light.
const COLOURS: [Color; 12] = [
    Color::Indexed(75),
    Color::Indexed(114),
    Color::Indexed(215),
    Color::Indexed(176),
    Color::Indexed(80),
    Color::Indexed(221),
    Color::Indexed(210),
    Color::Indexed(147),
    Color::Indexed(150),
    Color::Indexed(180),
    Color::Indexed(117),
    Color::Indexed(217),
];

/// The letter of the VM at this place.
pub(super) fn letter(place: usize) -> char {
    let letters = ('a'..='z').chain('A'..='Z').chain('0'..='9');
    letters.cycle().nth(place % 62).unwrap_or('?')
}

/// The colour of the VM at this place.
pub(super) fn colour(place: usize) -> Color {
    COLOURS[place % COLOURS.len()]
}

/// How stacking is marked.
pub(super) fn alarm() -> Style {
    Style::new().fg(Color::Indexed(231)).bg(Color::Indexed(160)).add_modifier(Modifier::BOLD)
}

/// How sharing is marked, of cores or of CPUs by several VMs.
pub(super) fn warning() -> Style {
    Style::new().fg(Color::Black).bg(Color::Yellow)
}

/// The map in lines of up to `width` columns, nodes side by side where there is room.
pub(super) fn lines(frame: &Frame, width: usize) -> Vec<Line<'static>> {
    let columns = columns(frame, width);
    let each = width / columns;
    let blocks: Vec<Vec<Line<'static>>> = (0..frame.nodes.len())
        .map(|node| block(frame, node, each.saturating_sub(usize::from(columns > 1) * 2)))
        .collect();
    let mut lines = Vec::new();
    for row in blocks.chunks(columns) {
        let height = row.iter().map(Vec::len).max().unwrap_or(0);
        for at in 0..height {
            let mut spans: Vec<Span<'static>> = Vec::new();
            for block in row {
                let line = block.get(at).cloned().unwrap_or_default();
                let pad = each.saturating_sub(line.width());
                spans.extend(line.spans);
                spans.push(Span::raw(" ".repeat(pad)));
            }
            lines.push(Line::from(spans));
        }
    }
    lines
}

/// Nodes side by side: as many as leave each node in one line, or all that there are.
fn columns(frame: &Frame, width: usize) -> usize {
    let needed = |llcs: &Vec<super::frame::Llc>| {
        let cores: usize = llcs.iter().flatten().map(|core| core.len() + 2).sum();
        LABEL + cores + llcs.len() + 2
    };
    let widest = frame.nodes.iter().map(|(_, llcs)| needed(llcs)).max().unwrap_or(1);
    (width / widest.max(1)).clamp(1, frame.nodes.len().max(1))
}

fn block(frame: &Frame, node: usize, width: usize) -> Vec<Line<'static>> {
    let (id, llcs) = &frame.nodes[node];
    let soft = Style::new().fg(Color::DarkGray);
    let mut lines = Vec::new();
    let label = format!("{:<LABEL$}", format!("node {id}"));
    let mut line = vec![Span::styled(label, Style::new().add_modifier(Modifier::BOLD))];
    let mut used = LABEL;
    for (at, llc) in llcs.iter().enumerate() {
        if at > 0 {
            line.push(Span::styled("|", soft));
            used += 1;
        }
        for core in llc {
            if used + core.len() + 2 > width && used > LABEL {
                lines.push(Line::from(std::mem::take(&mut line)));
                line.push(Span::raw(" ".repeat(LABEL)));
                used = LABEL;
            }
            line.extend(core_spans(frame, core));
            used += core.len() + 2;
        }
    }
    lines.push(Line::from(line));
    lines
}

/// A core: its CPUs between spaces, or between brackets where busy CPUs share it.
fn core_spans(frame: &Frame, core: &[CpuId]) -> Vec<Span<'static>> {
    let shared = frame.is_shared(core);
    // Yellow cannot be seen on a light terminal.
    let mark = Style::new().fg(Color::Indexed(172)).add_modifier(Modifier::BOLD);
    let (left, right) = if shared { ("[", "]") } else { (" ", " ") };
    let mut spans = vec![Span::styled(left, mark)];
    spans.extend(core.iter().map(|cpu| cpu_span(frame, *cpu)));
    spans.push(Span::styled(right, mark));
    spans
}

fn cpu_span(frame: &Frame, cpu: CpuId) -> Span<'static> {
    let there = frame.on.get(&cpu).map_or(&[][..], Vec::as_slice);
    match there {
        [] => Span::styled(".", Style::new().fg(Color::DarkGray)),
        [one] => {
            let style = Style::new().fg(Color::Black).bg(colour(*one));
            Span::styled(letter(*one).to_string(), style)
        }
        [first, rest @ ..] if rest.contains(first) || twice(rest) => Span::styled("!", alarm()),
        _ => Span::styled("+", warning()),
    }
}

/// Whether one VM is among these twice.
fn twice(places: &[usize]) -> bool {
    places.iter().enumerate().any(|(at, place)| places[at + 1..].contains(place))
}
