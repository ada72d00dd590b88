//! The speeds of guests that share CPUs, under one scheduler and then under another: a bar for each
//! mean, and each guest's speed over time as inline SVG.
//!
//! As in [`super::timeline`], the SVG is stretched to the page's width and holds no text.

use instep_report::html::escaped;
use std::fmt::Write as _;

/// The SVG's own width and height.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 100.0;

/// How fast guests were that shared CPUs, under one scheduler and then under another. Speeds are
/// fair-share speeds: 1 is the guest's fair share of the CPUs times its speed with all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Speeds {
    /// The guests.
    pub guests: Vec<String>,
    /// What each of them does, in a few words.
    pub loads: Vec<String>,
    /// The schedulers, in the order of time.
    pub phases: Vec<Phase>,
    /// The part (0 to 1) of the time in which the emulated CPUs wanted to run and waited for this
    /// machine's.
    pub diluted: f64,
}

/// The time under one scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// The scheduler.
    pub scheduler: String,
    /// Each guest's speed over the whole of it.
    pub mean: Vec<f64>,
    /// What was read on the way, in order of time.
    pub looks: Vec<SpeedSample>,
}

/// Each guest's speed since the look before.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeedSample {
    /// Seconds since the first phase began, by this machine's clock.
    pub seconds: f64,
    /// Each guest's speed.
    pub speeds: Vec<f64>,
}

/// What is said of a machine that was busy with other things.
const BUSY: f64 = 0.05;

impl Speeds {
    /// How far this machine had CPUs for the emulated ones, in a sentence.
    pub fn worth(&self) -> String {
        let percent = self.diluted * 100.0;
        let waited = format!(
            "The emulated CPUs waited for this machine's CPUs for {percent:.0} % of the time"
        );
        if self.diluted < BUSY {
            return format!("{waited}.");
        }
        format!(
            "{waited}, as it was busy with other work: a guest that spins loses by that under any \
             scheduler, so try again when this machine has less to do."
        )
    }

    /// How many times as fast as in the first phase a guest was in the last one.
    pub fn factor(&self, guest: usize) -> Option<f64> {
        let mean = |phase: Option<&Phase>| phase?.mean.get(guest).copied();
        let (first, last) = (mean(self.phases.first())?, mean(self.phases.last())?);
        (first > 0.0).then(|| last / first)
    }

    /// What the drawings reach to: the highest speed, and at least a little more than 1.
    fn top(&self) -> f64 {
        let looks = self.phases.iter().flat_map(|phase| &phase.looks);
        let all =
            looks.flat_map(|look| &look.speeds).chain(self.phases.iter().flat_map(|p| &p.mean));
        all.fold(1.1, |top, speed| top.max(*speed))
    }
}

/// Draws them; `class` gives the style class of a guest by its place.
pub(super) fn draw(speeds: &Speeds, class: impl Fn(usize) -> String) -> String {
    let mut html = String::new();
    for (guest, (name, load)) in speeds.guests.iter().zip(&speeds.loads).enumerate() {
        let class = class(guest);
        let factor = speeds.factor(guest).map_or_else(String::new, |factor| {
            format!("; {factor:.1} times as fast under {}", last_name(speeds))
        });
        let _ = writeln!(
            html,
            "<figure class=\"speeds {class}\">\n<figcaption><span class=\"chip {class}\"></span>\
             <b>{}</b>: {}{}</figcaption>",
            escaped(name),
            escaped(load),
            escaped(&factor),
        );
        html.push_str(&bars(speeds, guest));
        html.push_str("</figure>\n");
    }
    html.push_str(&over_time(speeds, &class));
    let _ = writeln!(html, "<p>{}</p>", escaped(&speeds.worth()));
    html
}

fn last_name(speeds: &Speeds) -> &str {
    speeds.phases.last().map_or("", |phase| &phase.scheduler)
}

/// One bar for each phase, with its number behind it.
fn bars(speeds: &Speeds, guest: usize) -> String {
    let mut html = String::new();
    for phase in &speeds.phases {
        let mean = phase.mean.get(guest).copied().unwrap_or(0.0);
        let _ = writeln!(
            html,
            "<div class=\"speed\"><span>{}</span><span class=\"track\"><i style=\"width:{:.1}%\"></i>\
             <u style=\"left:{:.1}%\"></u></span><b>{mean:.2}</b></div>",
            escaped(&phase.scheduler),
            (mean / speeds.top() * 100.0).clamp(0.0, 100.0),
            100.0 / speeds.top(),
        );
    }
    html
}

/// Each guest's speed at every look.
fn over_time(speeds: &Speeds, class: impl Fn(usize) -> String) -> String {
    let end = |phase: &Phase| phase.looks.last().map(|look| look.seconds);
    let Some(span) = speeds.phases.iter().filter_map(end).next_back().filter(|end| *end > 0.0)
    else {
        return String::new();
    };
    let top = speeds.top();
    let x = |look: &SpeedSample| look.seconds / span * WIDTH;
    let y = |speed: f64| HEIGHT - (speed / top).clamp(0.0, 1.0) * HEIGHT;
    let mut svg = format!("<path class=\"fair\" d=\"M0 {0:.1}L{WIDTH:.0} {0:.1}\"/>", y(1.0));
    for phase in &speeds.phases {
        for guest in 0..speeds.guests.len() {
            let point = |look: &SpeedSample| {
                let speed = look.speeds.get(guest).copied().unwrap_or(0.0);
                format!("L{:.1} {:.1}", x(look), y(speed))
            };
            let path: String = phase.looks.iter().map(point).collect();
            let path = path.trim_start_matches('L');
            let _ = write!(svg, "<path class=\"line {}\" d=\"M{path}\"/>", class(guest));
        }
    }
    let begin = |phase: &Phase| phase.looks.first().map_or(WIDTH, x);
    let begins: Vec<f64> = speeds.phases.iter().map(begin).collect();
    for from in &begins {
        let _ = write!(svg, "<path class=\"change\" d=\"M{from:.1} 0L{from:.1} {HEIGHT:.0}\"/>");
    }
    let (names, words) = (phase_names(speeds, &begins), spoken(speeds));
    format!(
        "<figure class=\"over\">\n<figcaption>Fair-share speed over time, each colour a guest. The dashed \
         line is 1, the fair share; the drawing reaches from 0 to {top:.1}.</figcaption>\n\
         <div class=\"phases\">{names}</div>\n\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{words}\">{svg}</svg>\n\
         <p class=\"axis\"><span>0 s</span><span>by this machine's clock</span><span>{span:.0} s</span></p>\n\
         </figure>\n"
    )
}

/// The schedulers' names above the drawing, each with the room up to the next one.
fn phase_names(speeds: &Speeds, begins: &[f64]) -> String {
    let ends = begins.iter().skip(1).copied().chain([WIDTH]);
    let name = |((phase, from), to): ((&Phase, &f64), f64)| {
        format!(
            "<span style=\"left:{:.1}%;width:{:.1}%\">{}</span>",
            from / WIDTH * 100.0,
            (to - from).max(0.0) / WIDTH * 100.0,
            escaped(&phase.scheduler)
        )
    };
    speeds.phases.iter().zip(begins).zip(ends).map(name).collect()
}

/// All means, for who does not see the drawing.
fn spoken(speeds: &Speeds) -> String {
    let mut words = Vec::new();
    for (guest, name) in speeds.guests.iter().enumerate() {
        for phase in &speeds.phases {
            let mean = phase.mean.get(guest).copied().unwrap_or(0.0);
            words.push(format!("{name} under {}: {mean:.2}", phase.scheduler));
        }
    }
    escaped(&words.join("; ")).to_string()
}
