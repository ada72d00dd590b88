//! What the guide quotes is what Instep says.
#![cfg(test)]

mod common;

use std::path::Path;

/// The lines of the guide's example, in order, but for those that tell of an omission, are the
/// analysis's of the recording that the guide names.
#[test]
fn the_guides_example_is_what_analyze_says_of_its_recording() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = std::fs::read_to_string(root.join("docs/guide.md")).unwrap();
    let (_, from) = guide.split_once("    instep analyze docs/recordings/").unwrap();
    let (name, after) = from.split_once('\n').unwrap();
    let (_, quoted) = after.split_once("`[...]` stands:\n").unwrap();
    let (quoted, _) = quoted.split_once("\nRead it in this order").unwrap();
    let file = root.join("docs/recordings").join(name);
    let said = common::instep(&["analyze", file.to_str().unwrap()]).expect(1).stdout;
    let (said, quoted) = (words(&said), words(quoted));
    let mut rest = said.as_str();
    let parts: Vec<&str> = quoted.split("[...]").map(str::trim).collect();
    assert!(parts.len() > 1 && parts.iter().all(|part| part.len() > 100), "{parts:?}");
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("`{part}` in this order in\n{said}"));
        rest = &rest[at + part.len()..];
    }
}

/// However wide the lines were.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
