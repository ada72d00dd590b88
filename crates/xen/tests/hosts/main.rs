//! Real Xen hosts as their commands told them (tests/data/README.md), read, and changed as a made host.
#![cfg(test)]

mod applying;
mod made;
mod parsing;
