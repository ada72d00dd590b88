//! Tests of whole scans.

mod live;
