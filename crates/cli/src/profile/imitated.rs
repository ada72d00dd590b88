//! The simulator scenario of what was profiled: the simulator, which is in `instep-lab`, tries a synthetic program
//! of the same features and writes the scenario.

use super::numbers::fraction;
use super::report::ProfileReport;
use anyhow::Context as _;
use instep_cli::imitation::{COMMAND, Imitated, Wanted};
use instep_cli::programs::{LABORATORY, find};
use instep_core::profile::behaviour::Behaviour;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program that will be asked, so that a profile is not taken in vain where it is missing.
pub(super) fn simulator() -> anyhow::Result<PathBuf> {
    find(LABORATORY).context("--scenario tries the program in the simulator")
}

/// The scenario's text. The report gets what the simulator makes of the program.
pub(super) fn of(report: &mut ProfileReport, simulator: &Path) -> anyhow::Result<String> {
    let program = Behaviour::of(&report.exact);
    if matches!(program, Behaviour::Barrier { spins: true, .. }) {
        report.warnings.push(
            "how long the phases of a spinning program are cannot be seen; the scenario assumes 1ms"
                .to_owned(),
        );
    }
    let wanted = Wanted {
        what: report.what.clone(),
        program,
        threads: report.exact.threads,
        blocks_per_s: fraction(report.exact.frequency),
        share: report.share,
    };
    let answer = ask(&wanted, simulator)
        .with_context(|| format!("cannot try the program by {}", simulator.display()))?;
    report.scenario = answer.imitation;
    Ok(answer.scenario)
}

fn ask(wanted: &Wanted, simulator: &Path) -> anyhow::Result<Imitated> {
    let mut child = Command::new(simulator)
        .arg(COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // It may have ended already; its status tells.
        let _ = input.write_all(&serde_json::to_vec(wanted)?);
    }
    let output = child.wait_with_output()?;
    anyhow::ensure!(output.status.success(), "it ended with {}", output.status);
    serde_json::from_slice(&output.stdout).context("its answer is of another version")
}
