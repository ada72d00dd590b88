//! Tests of whole scans.

mod devices;
mod garbage;
mod live;
mod qmp;
mod rates;
mod shared;
mod shares;
mod tree;
mod turns;
