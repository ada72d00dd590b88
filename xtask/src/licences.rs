//! Whether everything that the programs are built of has a licence that `deny.toml` allows, and none of it is a crate that `deny.toml`
//! bans, by `cargo tree`: cargo-deny, which checks more, is not on every machine.

use crate::built::{cargo, done};
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::Path;

/// What is read of `deny.toml`.
#[derive(Debug, Deserialize)]
struct Deny {
    graph: Graph,
    licenses: Licences,
    bans: Bans,
}

#[derive(Debug, Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Licences {
    allow: Vec<String>,
    exceptions: Vec<Exception>,
}

#[derive(Debug, Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

/// Looks at what is built for each target with all features; whether all of it is allowed.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let text = std::fs::read_to_string(root.join("deny.toml")).context("cannot read deny.toml")?;
    let deny: Deny = toml::from_str(&text).context("deny.toml is not as expected")?;
    let mut refused = BTreeSet::new();
    for target in &deny.graph.targets {
        let tree = tree(root, target)?;
        refused.extend(refusals(&tree, &deny.licenses)?);
        refused.extend(banned(&tree, &deny.bans.deny));
    }
    for line in &refused {
        eprintln!(
            "licences: {line}: deny.toml does not allow it; see docs/decisions/0021-licences.md"
        );
    }
    Ok(refused.is_empty())
}

/// A line for each crate: `NAME VERSION`, a tab, and its licence. What only tests use is not given away.
fn tree(root: &Path, target: &str) -> Result<String> {
    let tree = ["tree", "--locked", "--workspace", "--all-features", "--edges", "normal,build"];
    let shown = ["--prefix", "none", "--format", "{p}\t{l}", "--target", target];
    done(cargo(root, &tree).args(shown))
}

/// The crates whose licence is not allowed, each with its licence.
fn refusals(tree: &str, licences: &Licences) -> Result<BTreeSet<String>> {
    let mut refused = BTreeSet::new();
    for line in tree.lines().filter(|line| !line.trim().is_empty()) {
        let (package, licence) = line.split_once('\t').context("cargo tree tells no licence")?;
        // `cargo tree` prints it in full once: later lines of the same crate end with this.
        let licence = licence.trim_end_matches(" (*)");
        let name = package.split(' ').next().unwrap_or_default();
        let excepted = licences.exceptions.iter().filter(|exception| exception.name == name);
        let allowed: BTreeSet<&str> = excepted
            .flat_map(|exception| &exception.allow)
            .chain(&licences.allow)
            .map(String::as_str)
            .collect();
        if !is_allowed(licence, &allowed) {
            refused.insert(format!("{name} has the licence `{licence}`"));
        }
    }
    Ok(refused)
}

/// The crates that are banned, each with the reason.
fn banned(tree: &str, bans: &[Banned]) -> BTreeSet<String> {
    let names: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    let bans = bans.iter().filter(|ban| names.contains(ban.name.as_str()));
    bans.map(|ban| format!("{} is used and banned ({})", ban.name, ban.reason)).collect()
}

/// Whether a licence, such as `MIT OR Apache-2.0`, can be had by these alone. `WITH` belongs to the name before it.
fn is_allowed(licence: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = licence.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut left = words.as_slice();
    has_any(&mut left, allowed) && left.is_empty()
}

/// Whether one of several alternatives can be had; `left` begins behind them then.
fn has_any(left: &mut &[&str], allowed: &BTreeSet<&str>) -> bool {
    let mut has = has_all(left, allowed);
    while let ["OR", rest @ ..] = *left {
        *left = rest;
        has |= has_all(left, allowed);
    }
    has
}

/// Whether licences that hold together can all be had.
fn has_all(left: &mut &[&str], allowed: &BTreeSet<&str>) -> bool {
    let mut has = has_one(left, allowed);
    while let ["AND", rest @ ..] = *left {
        *left = rest;
        has &= has_one(left, allowed);
    }
    has
}

/// Whether one licence, or what is in parentheses, can be had.
fn has_one(left: &mut &[&str], allowed: &BTreeSet<&str>) -> bool {
    match *left {
        ["(", rest @ ..] => {
            *left = rest;
            let has = has_any(left, allowed);
            let [")", rest @ ..] = *left else { return false };
            *left = rest;
            has
        }
        [name, "WITH", exception, rest @ ..] => {
            *left = rest;
            allowed.contains(format!("{name} WITH {exception}").as_str())
        }
        [name, rest @ ..] => {
            *left = rest;
            allowed.contains(name)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_licences_is_enough_and_all_that_hold_together_are_needed() {
        let allowed = BTreeSet::from(["MIT", "GPL-2.0-only", "Unicode-3.0"]);
        for (licence, is_fine) in [
            ("MIT", true),
            ("GPL-2.0-only", true),
            ("MIT OR Apache-2.0", true),
            ("Apache-2.0/MIT", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("Unicode-3.0 AND (Apache-2.0 OR MIT)", true),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", true),
            ("MIT AND Apache-2.0 OR GPL-2.0-only", true),
            ("Apache-2.0", false),
            ("MIT AND Apache-2.0", false),
            ("(MIT OR Apache-2.0) AND OpenSSL", false),
            ("MIT WITH LLVM-exception", false),
            ("(MIT", false),
            ("MIT Apache-2.0", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(licence, &allowed), is_fine, "{licence}");
        }
    }

    #[test]
    fn crate_with_another_licence_is_named_unless_it_is_excepted() {
        let tree = "own v0.1.0 (/here)\tGPL-2.0-only\na v1.2.0 (proc-macro)\tMIT OR Apache-2.0 (*)\n\n\
                    b v2.0.0\tApache-2.0\nb v2.0.0\tApache-2.0 (*)\n";
        let allow = ["MIT", "GPL-2.0-only"].map(str::to_owned).to_vec();
        let mut licences = Licences { allow, exceptions: Vec::new() };
        let named = BTreeSet::from(["b has the licence `Apache-2.0`".to_owned()]);
        assert_eq!(refusals(tree, &licences).unwrap(), named);
        let allow = vec!["Apache-2.0".to_owned()];
        licences.exceptions.push(Exception { name: "b".to_owned(), allow });
        assert!(refusals(tree, &licences).unwrap().is_empty());
    }

    #[test]
    fn banned_crate_is_named_with_the_reason() {
        let tree = "own v0.1.0 (/here)\tGPL-2.0-only\na-sys v1.2.0\tMIT (*)\n\nb v2.0.0\tMIT\n";
        let ban = |name: &str| Banned { name: name.to_owned(), reason: "why".to_owned() };
        let named = BTreeSet::from(["b is used and banned (why)".to_owned()]);
        assert_eq!(banned(tree, &["a", "b", "c"].map(ban)), named);
    }
}
