//! The kinds of load, one a file.

pub mod barrier;
pub mod compute;
