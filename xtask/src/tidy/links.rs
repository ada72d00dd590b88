//! Links of the documents: each leads to a file of the repository and to a heading that is there, or cites a
//! publication by its DOI. A page of the documents that another file names is there, too.
//!
//! It reads inline links, `[text](target)`, outside of code. It does not know links by reference.

use super::Finding;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// The only address outside the repository that a document may link to.
const DOI: &str = "https://doi.org/";

/// The text of each file that git tracks, by its path relative to the workspace; empty for files of bytes.
pub(super) type Texts = BTreeMap<PathBuf, String>;

/// Checks every document of `files`, and every name of a page in the other files.
pub(super) fn check(files: &Texts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in files {
        let document = path.extension().is_some_and(|extension| extension == "md");
        for (line, number) in without_code(text, document).zip(1..) {
            let mut report = |what: String| {
                findings.push(Finding::error(format!("{}:{number}: {what}", path.display())));
            };
            if document {
                links(&line)
                    .filter_map(|link| broken_link(files, path, link))
                    .for_each(&mut report);
            }
            for page in named_pages(&line).filter(|page| !files.contains_key(Path::new(page))) {
                report(format!("`{page}` is not there"));
            }
        }
    }
    findings
}

/// The lines of a text; in a document those of code blocks are empty.
fn without_code(text: &str, document: bool) -> impl Iterator<Item = String> {
    let mut fenced = false;
    text.lines().map(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= document && fence;
        let code = document && (fenced || fence || line.starts_with("    "));
        if code { String::new() } else { line.to_owned() }
    })
}

/// The targets of the links in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(|(at, mark)| line[at + mark.len()..].split(')').next())
}

/// Names of pages of the documents in a line, from the root of the workspace; not those within a longer path.
fn named_pages(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("docs/").filter_map(|(at, _)| {
        let part = |c: char| c.is_alphanumeric() || "/._-".contains(c);
        if line[..at].chars().next_back().is_some_and(part) {
            return None;
        }
        let name = &line[at..];
        let name = &name[..name.find(|c| !part(c)).unwrap_or(name.len())];
        name.find(".md").map(|end| &name[..end + ".md".len()])
    })
}

/// What is wrong with a link in the document `path`, if anything is.
fn broken_link(files: &Texts, path: &Path, link: &str) -> Option<String> {
    if link.contains("://") {
        let wrong = !link.starts_with(DOI);
        return wrong.then(|| format!("`{link}` leads out of the repository; cite by DOI"));
    }
    let (file, heading) = link.split_once('#').map_or((link, None), |(a, b)| (a, Some(b)));
    let target = if file.is_empty() {
        path.to_owned()
    } else {
        let Some(target) = joined(path.parent().unwrap_or(Path::new("")), file) else {
            return Some(format!("`{link}` leads out of the repository"));
        };
        target
    };
    let Some(heading) = heading else {
        let there = files.keys().any(|known| known.starts_with(&target));
        return (!there).then(|| format!("`{link}` leads to no file"));
    };
    match files.get(&target) {
        None => Some(format!("`{link}` leads to no file")),
        Some(text) if !anchors(text).contains(heading) => {
            Some(format!("`{link}` leads to no heading of {}", target.display()))
        }
        Some(_) => None,
    }
}

/// `file` as seen from the directory `from`; nothing if that is above the workspace.
fn joined(from: &Path, file: &str) -> Option<PathBuf> {
    let mut path = from.to_owned();
    for component in Path::new(file).components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir if path.pop() => {}
            _ => return None,
        }
    }
    Some(path)
}

/// The anchors of a document's headings, as forges make them: lower case, spaces to hyphens, no other
/// punctuation.
fn anchors(text: &str) -> BTreeSet<String> {
    without_code(text, true)
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            heading
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in files with these texts, in which `@` stands for the directory of the documents.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let full = |text: &str| text.replace('@', "docs/");
        let files = files.iter().map(|(path, text)| (PathBuf::from(full(path)), full(text)));
        check(&files.collect()).into_iter().map(|finding| finding.what).collect()
    }

    const PAGE: (&str, &str) = ("@a.md", "# A\n## Kernels from 6.12 to 7.3\n");

    #[test]
    fn links_to_files_directories_and_headings_are_fine() {
        let text = "[a](@a.md) [d](docs) [h](@a.md#kernels-from-612-to-73)\n\
                    [paper](https://doi.org/10.1145/1)\n    [code](none.md)\n```\n[code](none.md)\n```\n";
        let below = "[up](../README.md) [own](#b)\n# B\n";
        assert_eq!(found(&[PAGE, ("README.md", text), ("@b.md", below)]), [""; 0]);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let text = "x\n[a](none.md) [h](@a.md#b) [out](../README.md) [own](#c)\n";
        let what = found(&[PAGE, ("README.md", text)]);
        assert_eq!(
            what,
            [
                "README.md:2: `none.md` leads to no file",
                "README.md:2: `@a.md#b` leads to no heading of @a.md",
                "README.md:2: `../README.md` leads out of the repository",
                "README.md:2: `#c` leads to no heading of README.md",
            ]
            .map(|expected| expected.replace('@', "docs/"))
        );
    }

    #[test]
    fn only_a_doi_may_lead_out_of_the_repository() {
        let what = found(&[("README.md", "[x](https://example.org/x)")]);
        assert_eq!(what.len(), 1);
        assert!(what[0].contains("cite by DOI"), "{what:?}");
    }

    #[test]
    fn code_names_only_pages_that_are_there() {
        let what = found(&[PAGE, ("a.rs", "// see @a.md, /usr/share/@x.md and @none.md.\n")]);
        assert_eq!(what.len(), 1, "{what:?}");
        assert!(what[0].starts_with("a.rs:1: ") && what[0].contains("none.md"), "{what:?}");
    }
}
