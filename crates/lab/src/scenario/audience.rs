//! Who hears what a run does while it does it: a progress line, or the demo that tells the story.
//!
//! It changes nothing of the run, and what is kept of one is in the report anyway.

use super::Step;
use super::evidence::LabObservation;
use super::report::LabReport;

/// Hears what a run does. Steps are counted from 0.
pub trait Audience {
    /// Something that takes long begins: one line. Several lines tell what is to stay on the screen.
    fn say(&mut self, said: &str);

    /// Host and guests are up, and the steps begin. Heard again when a run is begun again.
    fn up(&mut self, _report: &LabReport) {}

    /// A step begins.
    fn begins(&mut self, _step: &Step) {}

    /// The guests were looked at, `held` tells whether what must hold does by now.
    fn looked(&mut self, _seen: &LabObservation, _held: bool) {}

    /// A step is done: the last one of the report.
    fn done(&mut self, _step: &Step, _report: &LabReport) {}
}

/// An audience that hears lines only.
impl<F: FnMut(&str)> Audience for F {
    fn say(&mut self, said: &str) {
        self(said);
    }
}
