//! A few milliseconds of a trace as one SVG picture, for docs/dispatch.md: a row per vCPU, what ran where, and
//! who waited for a CPU meanwhile.

use instep_core::units::Nanos;
use instep_report::html::escaped;
use instep_trace::analysis::discover::FoundVm;
use instep_trace::analysis::{SchedState, Sink};
use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
/// Room for half of the last time of the axis.
const RIGHT: f64 = 28.0;
/// A letter of a row's name, about.
const LETTER: f64 = 6.2;
/// Letters of a VM's name that a row shows.
const MAX_LETTERS: usize = 32;
const ROW: f64 = 20.0;
const TOP: f64 = 26.0;
/// Rectangles in the picture; what is beyond is left out, and the picture says so.
const MAX_SPANS: usize = 20_000;
/// Told apart by eyes of all kinds (Okabe and Ito's set).
const COLOURS: [&str; 7] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999"];

/// A part of a trace, drawn span by span.
pub(crate) struct Strip {
    from: Nanos,
    length: Nanos,
    begin: Nanos,
    rows: Vec<(usize, String)>,
    /// Where the rows begin: after the longest name.
    left: f64,
    /// The first row of every VM.
    first: Vec<usize>,
    spans: Vec<Span>,
    cut: bool,
}

struct Span {
    row: usize,
    /// Since the strip's begin, in nanoseconds, within its length.
    since: u64,
    until: u64,
    /// The CPU it ran on; `None` while it waited for one.
    cpu: Option<u32>,
}

impl Strip {
    /// Of `length` from `from` after the trace's begin.
    pub(crate) fn new(from: Nanos, length: Nanos) -> Self {
        let (rows, first, spans) = (Vec::new(), Vec::new(), Vec::new());
        Strip { from, length, begin: Nanos(0), rows, left: 0.0, first, spans, cut: false }
    }

    /// The picture.
    pub(crate) fn svg(&self) -> String {
        let height = TOP + ROW * self.rows.len() as f64 + 44.0;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
        );
        self.axis(&mut out);
        let left = self.left;
        for (row, (_, name)) in self.rows.iter().enumerate() {
            let y = TOP + ROW * row as f64;
            let _ = writeln!(out, "<text x=\"4\" y=\"{}\">{}</text>", y + 13.0, escaped(name));
            let middle = y + ROW / 2.0;
            let _ = writeln!(
                out,
                "<path d=\"M{left} {middle}H{}\" stroke=\"#bbb\" stroke-width=\"1\"/>",
                WIDTH - RIGHT
            );
        }
        for span in &self.spans {
            self.draw(span, &mut out);
        }
        let y = height - 8.0;
        let mut about = "full: runs (number: CPU); pale: waits for a CPU; line: blocked".to_owned();
        if self.cut {
            let _ = write!(about, "; more than {MAX_SPANS} spans, the rest is left out");
        }
        let _ = writeln!(out, "<text x=\"{left}\" y=\"{y}\" fill=\"#555\">{about}</text>\n</svg>");
        out
    }

    fn x(&self, nanos: u64) -> f64 {
        self.left + (WIDTH - RIGHT - self.left) * nanos as f64 / self.length.0.max(1) as f64
    }

    fn axis(&self, out: &mut String) {
        let bottom = TOP + ROW * self.rows.len() as f64;
        for part in 0..=6u64 {
            let nanos = self.length.0 / 6 * part;
            let x = self.x(nanos);
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{:.2} ms</text>",
                TOP - 8.0,
                nanos as f64 / 1e6
            );
        }
    }

    fn draw(&self, span: &Span, out: &mut String) {
        let Some((vm, _)) = self.rows.get(span.row) else { return };
        let colour = COLOURS[vm % COLOURS.len()];
        let (x, end) = (self.x(span.since), self.x(span.until));
        let (y, width) = (TOP + ROW * span.row as f64, (end - x).max(0.3));
        let (top, height, opacity) = match span.cpu {
            Some(_) => (y + 2.0, ROW - 4.0, 1.0),
            None => (y + 5.0, ROW - 10.0, 0.28),
        };
        let _ = writeln!(
            out,
            "<rect x=\"{x:.2}\" y=\"{top}\" width=\"{width:.2}\" height=\"{height}\" \
             fill=\"{colour}\" fill-opacity=\"{opacity}\"/>"
        );
        if let Some(cpu) = span.cpu
            && width > 14.0
        {
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#fff\">{cpu}</text>",
                x + width / 2.0,
                y + 14.0
            );
        }
    }
}

impl Sink for Strip {
    fn begin(&mut self, vms: &[FoundVm], begin: Nanos) {
        self.begin = Nanos(begin.0.saturating_add(self.from.0));
        for (vm, found) in vms.iter().enumerate() {
            self.first.push(self.rows.len());
            let name: String = found.name.chars().take(MAX_LETTERS).collect();
            for (index, _) in &found.vcpus {
                self.rows.push((vm, format!("{name} vCPU {index}")));
            }
        }
        let letters = self.rows.iter().map(|(_, name)| name.chars().count()).max();
        self.left = LETTER * letters.unwrap_or(0) as f64 + 12.0;
    }

    fn span(&mut self, vm: usize, vcpu: usize, place: SchedState, since: Nanos, until: Nanos) {
        let cpu = match place {
            SchedState::Running(cpu) => Some(cpu.0),
            SchedState::Waiting(_) | SchedState::Waking => None,
            SchedState::Blocked | SchedState::Unknown => return,
        };
        let end = self.begin.0.saturating_add(self.length.0);
        let (since, until) = (since.0.max(self.begin.0), until.0.min(end));
        let Some(first) = self.first.get(vm) else { return };
        if since >= until {
            return;
        }
        if self.spans.len() >= MAX_SPANS {
            self.cut = true;
            return;
        }
        let (since, until) = (since - self.begin.0, until - self.begin.0);
        self.spans.push(Span { row: first + vcpu, since, until, cpu });
    }
}

mod tests {
    use super::*;
    use instep_core::units::CpuId;

    fn strip(name: &str) -> Strip {
        let mut strip = Strip::new(Nanos(1_000), Nanos(6_000));
        let vm = FoundVm { name: name.to_owned(), pid: None, vcpus: vec![(0, 11), (1, 12)] };
        strip.begin(&[vm], Nanos(500));
        strip
    }

    #[test]
    fn only_what_lies_in_the_strip_is_drawn_and_is_cut_at_its_ends() {
        let mut strip = strip("a");
        strip.span(0, 0, SchedState::Running(CpuId(3)), Nanos(0), Nanos(1_500));
        strip.span(0, 0, SchedState::Running(CpuId(3)), Nanos(1_000), Nanos(2_500));
        strip.span(0, 1, SchedState::Waiting(CpuId(3)), Nanos(7_000), Nanos(9_000));
        strip.span(0, 1, SchedState::Blocked, Nanos(2_000), Nanos(3_000));
        let drawn: Vec<_> = strip.spans.iter().map(|s| (s.row, s.since, s.until, s.cpu)).collect();
        assert_eq!(drawn, [(0, 0, 1_000, Some(3)), (1, 5_500, 6_000, None)]);
        let svg = strip.svg();
        assert_eq!(svg.matches("fill-opacity").count(), 2);
        assert!(svg.contains("a vCPU 1") && svg.contains(">3</text>"), "{svg}");
    }

    #[test]
    fn a_hostile_name_stays_text_and_the_picture_is_bounded() {
        let mut strip = strip("<script>&\"");
        for _ in 0..MAX_SPANS + 1 {
            strip.span(0, 0, SchedState::Waking, Nanos(2_000), Nanos(3_000));
        }
        let svg = strip.svg();
        assert!(!svg.contains("<script>") && svg.contains("the rest is left out"));
    }
}
