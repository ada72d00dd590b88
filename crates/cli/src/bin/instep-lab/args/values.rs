//! Values of options of the laboratory: what text they take, and what is said of others.

pub(super) use instep_cli::values::{beside, duration};
use instep_lab::host::accel::AccelChoice;
use std::path::PathBuf;

/// `auto`, `kvm` or `tcg`.
pub(super) fn accel(name: String) -> AccelChoice {
    match name.as_str() {
        "kvm" => AccelChoice::Kvm,
        "tcg" => AccelChoice::Tcg,
        _ => AccelChoice::Auto,
    }
}

/// `NAME=PATH`.
pub(super) fn peer(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_owned(), PathBuf::from(path)))
        }
        _ => Err("NAME=PATH, such as mine=./target/release/scx_mine".to_owned()),
    }
}
