//! For tests: a sink that keeps what is said.

use crate::record::Record;
use crate::sink::Sink;

/// Keeps notices.
#[derive(Default)]
pub(crate) struct Heard(pub(crate) Vec<String>);

impl Sink for Heard {
    fn record(&mut self, _: &Record<'_>) {}
    fn notice(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
}
