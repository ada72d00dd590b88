//! The operator's program has nothing of the laboratory: its sources, and those that both programs share, name no
//! crate of it. Cargo cannot tell, since the two programs are one package.
//!
//! What stands below `mod tests` is in neither program.

use super::Finding;
use super::links::Texts;
use std::path::Path;

/// Sources of both programs, and those among them of the laboratory's.
const SOURCES: &str = "crates/cli/src";
const LABORATORY: &str = "crates/cli/src/bin/instep-lab";

/// The crates that only the laboratory may know, as Rust names them.
const CRATES: [&str; 4] = ["instep_sim", "instep_scx", "instep_lab", "instep_bench"];

/// Where the tests of a file begin.
const TESTS: &str = "#[cfg(test)]\nmod tests {";

/// Every line of the operator's sources in `files` that names a crate of the laboratory.
pub(super) fn check(files: &Texts) -> Vec<Finding> {
    let is_source = |path: &Path| {
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        is_rust && path.starts_with(SOURCES) && !path.starts_with(LABORATORY)
    };
    let mut findings = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| is_source(path)) {
        let program = text.split(TESTS).next().unwrap_or_default();
        for (line, number) in program.lines().zip(1..) {
            if let Some(name) = CRATES.into_iter().find(|name| has_word(line, name)) {
                findings.push(Finding::error(format!(
                    "{}:{number}: {name} is of the laboratory, and `instep` holds nothing of that; move \
                     the code to {LABORATORY}, or what is needed to another crate",
                    path.display()
                )));
            }
        }
    }
    findings
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&[(path.into(), text.to_owned())].into()).len()
    }

    #[test]
    fn operators_program_may_not_name_a_crate_of_the_laboratory() {
        for name in CRATES {
            let text = format!("//! x\nuse {name}::y;\n");
            assert_eq!(found("crates/cli/src/top/mod.rs", &text), 1, "{name}");
            assert_eq!(found("crates/cli/src/lib.rs", &text), 1, "{name}");
            assert_eq!(found("crates/cli/src/bin/instep-lab/sim/mod.rs", &text), 0, "{name}");
            assert_eq!(found("crates/cli/tests/sim.rs", &text), 0, "{name}");
            let tests = format!("//! x\n{TESTS}\n    use {name}::y;\n}}\n");
            assert_eq!(found("crates/cli/src/lib.rs", &tests), 0, "{name}");
        }
        assert_eq!(found("crates/cli/src/lib.rs", "use instep_simple::y;\n"), 0);
    }
}
