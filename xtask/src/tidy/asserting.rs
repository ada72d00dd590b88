//! Tests that assert nothing: no assertion of their own, and no call of a function of this workspace that has one.

use super::Finding;
use super::links::Texts;
use std::collections::{BTreeMap, BTreeSet};

/// What an assertion looks like.
const ASSERTIONS: [&str; 5] = ["assert", "panic!(", "unreachable!(", "unwrap_err(", "expect_err("];
/// Names that many functions have: that one of them asserts says nothing of another.
const COMMON: [&str; 12] =
    ["at", "check", "default", "find", "from", "get", "new", "of", "open", "parse", "read", "run"];

/// A function of a source.
struct Function<'a> {
    name: &'a str,
    is_test: bool,
    body: &'a str,
}

/// Checks the tests of all sources.
pub(super) fn check(files: &Texts) -> Vec<Finding> {
    let is_source = |path: &&std::path::PathBuf| path.extension().is_some_and(|end| end == "rs");
    let paths = files.keys().filter(is_source);
    let all: BTreeMap<_, _> = paths.map(|path| (path, functions(&files[path]))).collect();
    let functions = || all.values().flatten();
    let has_own = |body: &str| ASSERTIONS.iter().any(|word| body.contains(word));
    let own = functions().filter(|function| has_own(function.body));
    let mut asserting: BTreeSet<&str> = own.map(|function| function.name).collect();
    asserting.retain(|name| !COMMON.contains(name));
    loop {
        let is_new = |function: &&Function<'_>| {
            !asserting.contains(function.name)
                && !COMMON.contains(&function.name)
                && calls(function.body).any(|name| asserting.contains(name))
        };
        let more: Vec<&str> = functions().filter(is_new).map(|function| function.name).collect();
        if more.is_empty() {
            break;
        }
        asserting.extend(more);
    }
    let idle = |function: &&Function<'_>| {
        function.is_test
            && !has_own(function.body)
            && !calls(function.body).any(|name| asserting.contains(name))
    };
    let tests =
        all.iter().flat_map(|(path, of)| of.iter().filter(idle).map(move |one| (path, one)));
    tests
        .map(|(path, test)| {
            Finding::error(format!("{}: test `{}` asserts nothing", path.display(), test.name))
        })
        .collect()
}

/// The functions of a source as `rustfmt` writes them: each ends at a brace as far from the margin as it began.
fn functions(text: &str) -> Vec<Function<'_>> {
    let mut found = Vec::new();
    let mut is_test = false;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let (begin, code) = (start, line.trim_start());
        start += line.len();
        if code.starts_with("#[test]") {
            is_test = true;
        }
        let Some((before, after)) = code.split_once("fn ") else { continue };
        let is_modifier = |word: &str| {
            matches!(word, "pub" | "const" | "unsafe" | "async") || word.ends_with(')')
        };
        if !before.split_whitespace().all(is_modifier) {
            continue;
        }
        let margin = &line[..line.len() - code.len()];
        let rest = &text[begin..];
        let end = format!("\n{margin}}}");
        let is_one_line = line.trim_end().ends_with('}');
        let length = if is_one_line { line.len() } else { rest.find(&end).unwrap_or(rest.len()) };
        let name = after.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or("");
        let body = rest[..length].split_once('{').map_or("", |(_, body)| body);
        found.push(Function { name, is_test: std::mem::take(&mut is_test), body });
    }
    found
}

/// Names in front of a parenthesis.
fn calls(body: &str) -> impl Iterator<Item = &str> {
    body.match_indices('(').map(|(at, _)| {
        let head = &body[..at];
        let from = head.rfind(|c: char| !(c.is_alphanumeric() || c == '_'));
        &head[from.map_or(0, |from| from + 1)..]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> usize {
        check(&[("a/src/b.rs".into(), text.to_owned())].into()).len()
    }

    #[test]
    fn test_without_an_assertion_is_found() {
        assert_eq!(found("#[test]\nfn a() {\n    let b = c();\n}\n"), 1);
        assert_eq!(found("#[test]\nfn a() {}\n"), 1);
        let elsewhere = "fn b() {\n    assert!(true);\n}\n";
        assert_eq!(found(&format!("#[test]\nfn a() {{\n    c();\n}}\n{elsewhere}")), 1);
    }

    #[test]
    fn assertion_of_its_own_or_of_what_it_calls_is_enough() {
        assert_eq!(found("#[test]\nfn a() {\n    assert_eq!(1, 1);\n}\n"), 0);
        let helpers = "fn b() {\n    c();\n}\nfn c() {\n    assert!(true);\n}\n";
        assert_eq!(found(&format!("{helpers}#[test]\nfn a() {{\n    b();\n}}\n")), 0);
        assert_eq!(found("fn no_test() {\n    c();\n}\n"), 0);
    }
}
