//! Which crate of the workspace may know which: all arrows point to core.
//!
//! The rules are the table [`LAYERS`]; a crate that is not in it may not join the workspace.

use super::Finding;
use crate::built::{cargo, done};
use anyhow::{Context, Result};
use std::path::Path;

/// One crate and the crates of the workspace that it may depend on.
struct Layer {
    name: &'static str,
    may_know: &'static [&'static str],
}

const LAYERS: &[Layer] = &[
    Layer { name: "instep-abi", may_know: &[] },
    Layer { name: "instep-core", may_know: &[] },
    Layer { name: "instep-report", may_know: &["instep-core"] },
    Layer { name: "instep-state", may_know: &["instep-core"] },
    Layer { name: "instep-host", may_know: &["instep-core", "instep-state"] },
    Layer { name: "instep-kernel", may_know: &["instep-abi", "instep-core"] },
    Layer { name: "instep-trace", may_know: &["instep-core"] },
    Layer { name: "instep-scx", may_know: &["instep-abi"] },
    Layer { name: "instep-check", may_know: &["instep-core"] },
    Layer {
        name: "instep-sim",
        may_know: &[
            "instep-abi",
            "instep-check",
            "instep-core",
            "instep-report",
            "instep-scx",
            "instep-trace",
        ],
    },
    Layer {
        name: "instep-agent",
        may_know: &[
            "instep-core",
            "instep-history",
            "instep-host",
            "instep-kernel",
            "instep-state",
            "instep-trace",
            "instep-xen",
        ],
    },
    Layer { name: "instep-lab", may_know: &["instep-core", "instep-report"] },
    Layer {
        name: "instep-bench",
        may_know: &["instep-core", "instep-host", "instep-report", "instep-trace"],
    },
    Layer {
        name: "instep-record",
        may_know: &["instep-core", "instep-host", "instep-kernel", "instep-trace"],
    },
    Layer {
        name: "instep-cli",
        may_know: &[
            "instep-agent",
            "instep-bench",
            "instep-check",
            "instep-core",
            "instep-history",
            "instep-host",
            "instep-kernel",
            "instep-lab",
            "instep-record",
            "instep-report",
            "instep-serve",
            "instep-sim",
            "instep-trace",
            "instep-xen",
        ],
    },
    Layer { name: "instep-xen", may_know: &["instep-core", "instep-state"] },
    Layer { name: "instep-history", may_know: &[] },
    Layer { name: "instep-serve", may_know: &["instep-history", "instep-report"] },
    Layer { name: "instep-load", may_know: &[] },
    Layer { name: "instep-madehost", may_know: &["instep-core"] },
    Layer { name: "instep-testguest", may_know: &["instep-lab"] },
    Layer {
        name: "xtask",
        may_know: &["instep-abi", "instep-core", "instep-host", "instep-madehost", "instep-report"],
    },
];

/// What every crate may use in its tests, too: the models that all share, made hosts, small guests, the kernel scheduler's own C
/// outside the kernel, to hold what is said of it against, and the server, whose requests are fuzzed beside other input.
const FOR_TESTS: &[&str] =
    &["instep-core", "instep-madehost", "instep-scx", "instep-serve", "instep-testguest"];

/// A crate of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Package {
    pub(super) name: String,
    /// The crates of the workspace that it depends on, and whether only for its tests.
    pub(super) dependencies: Vec<(String, bool)>,
}

/// The workspace's crates, from `cargo metadata`.
pub(super) fn packages(root: &Path) -> Result<Vec<Package>> {
    let text = done(&mut cargo(root, &["metadata", "--format-version", "1", "--no-deps"]))?;
    parse(&text)
}

/// Reads the answer of `cargo metadata --no-deps`. A dependency with a path is of the workspace.
fn parse(text: &str) -> Result<Vec<Package>> {
    let metadata: serde_json::Value =
        serde_json::from_str(text).context("cargo metadata is not JSON")?;
    let list = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let package = |value: &serde_json::Value| -> Option<Package> {
        let dependency = |value: &serde_json::Value| -> Option<(String, bool)> {
            value["path"].as_str()?;
            Some((value["name"].as_str()?.to_owned(), value["kind"] == "dev"))
        };
        Some(Package {
            name: value["name"].as_str()?.to_owned(),
            dependencies: value["dependencies"].as_array()?.iter().filter_map(dependency).collect(),
        })
    };
    Ok(list.iter().filter_map(package).collect())
}

/// Every dependency that the table does not allow, and every crate it does not know.
pub(super) fn check(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let Some(layer) = LAYERS.iter().find(|layer| layer.name == package.name) else {
            findings.push(Finding::error(format!(
                "crate {} has no layer; add it to LAYERS in xtask/src/tidy/layering.rs",
                package.name
            )));
            continue;
        };
        for (other, for_tests) in &package.dependencies {
            let allowed = layer.may_know.contains(&other.as_str())
                || (*for_tests && FOR_TESTS.contains(&other.as_str()));
            if !allowed {
                let how = if *for_tests { " (in tests)" } else { "" };
                findings.push(Finding::error(format!(
                    "{} must not depend on {other}{how}; it may know {:?}",
                    package.name, layer.may_know
                )));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, other: &str, for_tests: bool) -> usize {
        let dependencies = vec![(other.to_owned(), for_tests)];
        check(&[Package { name: name.to_owned(), dependencies }]).len()
    }

    #[test]
    fn arrows_away_from_core_are_found() {
        assert_eq!(found("instep-core", "instep-host", false), 1);
        assert_eq!(found("instep-host", "instep-agent", false), 1);
        assert_eq!(found("instep-sim", "instep-host", false), 1);
        assert_eq!(found("instep-sim", "instep-kernel", false), 1);
        assert_eq!(found("instep-agent", "instep-core", false), 0);
    }

    #[test]
    fn only_cli_may_know_lab_and_no_crate_cli() {
        assert_eq!(found("instep-agent", "instep-lab", false), 1);
        assert_eq!(found("instep-agent", "instep-lab", true), 1);
        assert_eq!(found("instep-cli", "instep-lab", false), 0);
        assert_eq!(found("instep-lab", "instep-cli", false), 1);
    }

    #[test]
    fn made_hosts_and_the_schedulers_c_are_for_tests_only() {
        for other in ["instep-madehost", "instep-scx"] {
            assert_eq!(found("instep-kernel", other, true), 0);
            assert_eq!(found("instep-kernel", other, false), 1);
        }
        assert_eq!(found("xtask", "instep-madehost", false), 0);
    }

    #[test]
    fn a_crate_without_a_layer_is_found() {
        assert_eq!(check(&[Package { name: "new".into(), dependencies: vec![] }]).len(), 1);
    }

    #[test]
    fn dependencies_are_read_with_their_kind() {
        let text = r#"{"packages":[{"name":"a","dependencies":[
            {"name":"b","kind":"dev","path":"b"},{"name":"c","kind":null,"path":"c"},
            {"name":"libc","kind":null}]}]}"#;
        let dependencies = vec![("b".to_owned(), true), ("c".to_owned(), false)];
        assert_eq!(parse(text).unwrap(), [Package { name: "a".into(), dependencies }]);
    }
}
