//! `idle`: nothing, said every interval, so that an idle guest is seen to be alive.
//!
//! Models the guests that most hosts are full of. The only activity is the report's own.

use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use serde::Serialize;

/// Does nothing but report
///
/// Has no threads: --threads is refused. work: 0.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct Options {}

/// See the module.
#[derive(Debug)]
pub struct Idle {
    options: Options,
}

impl Mode for Idle {
    const NAME: &'static str = "idle";
    const THREADS: bool = false;
    const WORK: &'static str = "nothing";
    type Options = Options;
    type Local = ();

    fn new(options: Options, _: usize) -> Result<Self, LoadError> {
        Ok(Self { options })
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn prepare(&self, _: &Worker<'_>) -> Result<(), LoadError> {
        Ok(())
    }

    fn work(&self, _: &Worker<'_>, (): ()) -> Result<(), LoadError> {
        Ok(())
    }
}
