//! Tests of whole scans.
