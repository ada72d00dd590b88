//! Schedulers side by side on the same work: cases, the order of their cells, how one is run on
//! this machine, and the figures and drawings that come of it.
//!
//! ```text
//! case files -> Case -> blocks of cells (order rotates) -> here::run -> Cell -> gather -> Report
//!                                                                              table, page, JSON
//! ```
//! A *cell* is one case under one scheduler in one run. [`here`] runs cells on the machine it is on,
//! be that an emulated one; it knows nothing of emulators. Nothing here knows how a scheduler is
//! built, or draws on a terminal.

pub mod builtin;
pub mod case;
pub mod cell;
pub mod cells_file;
pub mod error;
pub mod gather;
pub mod here;
pub mod load_line;
pub mod page;
pub mod plan;
pub mod quota;
pub mod report;
pub mod share;
pub mod table;

pub use error::Error;
