//! Values of options of the laboratory: what text they take, and what is said of others.

pub(super) use instep_cli::values::{beside, duration};
use std::path::PathBuf;

/// `NAME=PATH`.
pub(super) fn peer(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_owned(), PathBuf::from(path)))
        }
        _ => Err("NAME=PATH, such as mine=./target/release/scx_mine".to_owned()),
    }
}
