//! The loop: observe, decide, apply, record.
