//! Names that say nothing of what they hold: the guide of words (CONTRIBUTING.md) wants verbs with an object for
//! functions and nouns for files and types.

use super::Finding;
use super::links::Texts;
use std::path::{Path, PathBuf};

/// No function is called so.
const FUNCTIONS: [&str; 7] = ["ahead", "apart", "look", "said", "settle", "told", "weigh"];
/// No source file is called so, nor like a function that may not be.
const FILES: [&str; 6] = ["judged", "keep", "stay", "taken", "told", "where"];
/// No type is called so.
const TYPES: [&str; 10] =
    ["Came", "Gone", "How", "Look", "Said", "Told", "What", "When", "Where", "Who"];

/// Checks the names of all sources and of the functions in them.
pub(super) fn check(files: &Texts) -> Vec<Finding> {
    let all = files
        .iter()
        .flat_map(|(path, text)| names(path, text).into_iter().map(move |name| (path, name)));
    let finding = |(path, name): (&PathBuf, &str)| {
        let path = path.display();
        format!("{path}: `{name}` does not say what it holds or does; see Style in CONTRIBUTING.md")
    };
    all.map(finding).map(Finding::error).collect()
}

/// The names of a source that are not wanted: its own, and those of functions that it defines.
fn names<'a>(path: &'a Path, text: &'a str) -> Vec<&'a str> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    if !matches!(extension, Some("rs" | "c" | "h")) {
        return Vec::new();
    }
    let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem = file.split('.').next().unwrap_or_default();
    let is_bad = |name: &str| FUNCTIONS.contains(&name) || FILES.contains(&name);
    let defines = if extension == Some("rs") { rust_function } else { c_function };
    let functions = text.lines().filter_map(defines).filter(|name| FUNCTIONS.contains(name));
    let types = text.lines().filter_map(rust_type).filter(|name| TYPES.contains(name));
    Some(stem).filter(|stem| is_bad(stem)).into_iter().chain(functions).chain(types).collect()
}

/// The function that a line of Rust defines.
fn rust_function(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let modifiers = ["pub", "const", "unsafe", "safe", "async", "extern", "\"C\""];
    // `pub(in crate::a)` may be of several words.
    let is_modifier =
        |word: &str| modifiers.contains(&word) || word.starts_with("pub(") || word.ends_with(')');
    before.split_whitespace().all(is_modifier).then(|| word(after))
}

/// The type that a line of Rust defines.
fn rust_type(line: &str) -> Option<&str> {
    let keyword = ["struct ", "enum ", "trait ", "type "];
    let at = keyword.iter().find_map(|keyword| line.split_once(keyword))?;
    (at.0.trim().is_empty() || at.0.trim_start().starts_with("pub")).then(|| word(at.1))
}

/// The function that a line of C defines: it begins at the margin with its type.
fn c_function(line: &str) -> Option<&str> {
    let (before, _) = line.split_once('(')?;
    let (kind, name) = before.rsplit_once([' ', '*'])?;
    (!kind.is_empty() && !line.starts_with(char::is_whitespace) && !line.ends_with(';'))
        .then(|| word(name))
}

fn word(text: &str) -> &str {
    &text[..text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&[(path.into(), text.to_owned())].into()).len()
    }

    #[test]
    fn unwanted_name_of_function_or_file_is_found() {
        for text in
            ["fn told() {", "    pub(crate) const fn look(&self) {", "    fn settle<T>(x: T) {"]
        {
            assert_eq!(found("a/src/b.rs", text), 1, "{text}");
        }
        assert_eq!(found("bpf/a.bpf.h", "SEPARATE int weigh(struct task *t)"), 1);
        assert_eq!(found("a/src/b.rs", "    pub(super) struct Told<'a> {\ntype Say = Told;"), 1);
        assert_eq!(found("bpf/taken.bpf.h", "") + found("a/src/told.rs", ""), 2);
    }

    #[test]
    fn calls_longer_names_and_comments_are_not_found() {
        for text in
            ["let x = told();", "fn look_up() {", "// fn told()", "let told = 1;", "\"fn told()\""]
        {
            assert_eq!(found("a/src/b.rs", text), 0, "{text}");
        }
        assert_eq!(found("bpf/a.bpf.h", "\tweigh(t, p->scx.weight);"), 0);
        assert_eq!(found("a/told.md", "fn told()"), 0);
    }
}
