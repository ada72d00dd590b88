//! `idle`: nothing, said every interval, so that an idle guest is seen to be alive.
//!
//! Models the guests that most hosts are full of. The only activity is the report's own.

use crate::args::Args;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};

/// See the module.
#[derive(Debug)]
pub struct Idle;

impl Mode for Idle {
    const NAME: &'static str = "idle";
    const HELP: &'static str = "\
idle: does nothing but report
Has no threads: --threads is refused. work: 0
";
    const THREADS: bool = false;
    const WORK: &'static str = "nothing";
    type Local = ();

    fn from_args(_: &mut Args, _: usize) -> Result<Self, LoadError> {
        Ok(Self)
    }

    fn prepare(&self, _: &Worker<'_>) -> Result<(), LoadError> {
        Ok(())
    }

    fn work(&self, _: &Worker<'_>, (): ()) -> Result<(), LoadError> {
        Ok(())
    }
}
