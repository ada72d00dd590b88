//! Output that is kept, to be looked at when it changes.

use std::path::Path;

/// Holds `found` against the file at `path` of this crate; `INSTEP_GOLDEN=write` writes it anew.
pub(crate) fn golden(path: &str, found: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("INSTEP_GOLDEN").is_some_and(|wish| wish == "write") {
        std::fs::write(&file, found).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let anew = "INSTEP_GOLDEN=write cargo test writes it anew";
    assert!(kept == found, "{path} differs ({anew}); now:\n{found}");
}
