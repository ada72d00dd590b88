//! `instep-lab imitate`: a simulator scenario that behaves as what `instep profile` profiled: the synthetic
//! program of the same features on a machine as large, beside as many busy neighbours as leave it its share.
//!
//! The program is tried in the simulator alone and its times are scaled until it blocks as often. It
//! was seen on a machine, not in a VM, so the trial's scheduler is `pm`: a VM's vCPU polls before it
//! blocks (KVM's halt-polling), and a program that waits briefly would seem not to block at all.

use crate::{Outcome, print};
use anyhow::Context as _;
use instep_cli::imitation::{Imitated, Imitation, Wanted};
use instep_core::profile::behaviour::Behaviour;
use instep_core::units::Milli;
use instep_core::wording::printable;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;
use std::io;

/// Trials; each scales what the one before was off by.
const TRIALS: usize = 4;
/// A program that blocks as often within this part needs no further trial.
const NEAR: f64 = 0.02;

/// Answers what comes through standard input.
pub(crate) fn command() -> anyhow::Result<Outcome> {
    let wanted: Wanted = serde_json::from_reader(io::stdin().lock())
        .context("standard input holds no profile of `instep profile --scenario`")?;
    print(&format!("{}\n", serde_json::to_string(&imitated(&wanted))?))?;
    Ok(Outcome::Fine)
}

fn imitated(wanted: &Wanted) -> Imitated {
    let Wanted { what, program, threads, blocks_per_s, share } = wanted;
    let (mut program, threads) = (*program, *threads);
    for _ in 0..TRIALS {
        let Some(found) = tried(&program, threads) else { break };
        let ratio = found.blocks_per_s / blocks_per_s.max(0.001);
        let off = (ratio - 1.0).abs();
        if off < NEAR || ratio < 0.01 || !blocks(&program) {
            break;
        }
        program = program.scaled(Milli((ratio.clamp(0.05, 20.0) * 1000.0) as u64));
    }
    let about = format!("behaves as: {what}");
    let scenario = text(&about, &program, threads, neighbours(*share));
    Imitated { scenario, imitation: tried(&program, threads) }
}

/// Whether it waits by blocking, as often as its times say.
fn blocks(program: &Behaviour) -> bool {
    !matches!(program, Behaviour::Compute { .. } | Behaviour::Barrier { spins: true, .. })
}

/// Busy neighbours of equal weight that leave a VM this share of the CPUs.
fn neighbours(share: f64) -> u32 {
    if share <= 0.0 { 0 } else { (1.0 / share - 1.0).round().clamp(0.0, 63.0) as u32 }
}

fn tried(program: &Behaviour, threads: u32) -> Option<Imitation> {
    let text = text("a trial", program, threads, 0);
    let scenario = Scenario::parse(&text).ok()?;
    let plan = SimulationPlan::new(&scenario, &|_| Err("a trial reads no file".to_owned())).ok()?;
    let report = plan.report()?;
    let vm = report.vms.first()?;
    Some(Imitation {
        load: program.to_string(),
        parallelism: vm.parallelism,
        blocks_per_s: vm.blocks_per_s,
    })
}

fn text(about: &str, program: &Behaviour, threads: u32, neighbours: u32) -> String {
    let about = printable(about).replace('\\', "\\\\").replace('"', "\\\"");
    // Alone it is as it was profiled, straight on the CPUs; among neighbours it is a VM.
    let scheduler = if neighbours == 0 { "pm" } else { "eevdf" };
    let mut text = format!(
        "about = \"{about}\"\nscheduler = \"{scheduler}\"\nduration = \"2s\"\n\n\
         [host]\ncores = {threads}\nmemory = \"16GiB\"\n\n\
         [[guest]]\nname = \"app\"\nvcpus = {threads}\nmemory = \"1GiB\"\nload = \"{program}\"\n"
    );
    if neighbours > 0 {
        text.push_str(&format!(
            "\n[[guest]]\nname = \"neighbour\"\ncount = {neighbours}\nvcpus = {threads}\n\
             memory = \"1GiB\"\nload = \"spin\"\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::Nanos;

    #[test]
    fn a_share_is_left_by_that_many_neighbours() {
        let counts = [1.0, 0.5, 0.25, 0.33, 0.0].map(neighbours);
        assert_eq!(counts, [0, 1, 3, 2, 0]);
    }

    #[test]
    fn short_waits_at_a_barrier_are_blocks_too() {
        let phase = Nanos(2_000_000);
        let program = Behaviour::Barrier { threads: 2, phase, imbalance: 2, spins: false };
        let found = tried(&program, 2).unwrap();
        // One of two blocks at the end of each phase of 2 ms and a little more.
        assert!((350.0..500.0).contains(&found.blocks_per_s), "{}", found.blocks_per_s);
    }

    #[test]
    fn every_program_is_a_scenario_that_can_be_simulated() {
        let (ms, us) = (Nanos(1_000_000), Nanos(100_000));
        for program in [
            Behaviour::Compute { threads: 2 },
            Behaviour::Barrier { threads: 2, phase: us, imbalance: 10, spins: false },
            Behaviour::Barrier { threads: 2, phase: us, imbalance: 10, spins: true },
            Behaviour::Serial { threads: 2, parallel: ms, sequential: ms },
            Behaviour::Io { threads: 2, compute: us, wait: us },
        ] {
            let found = tried(&program, 2).unwrap();
            assert!(found.parallelism > 0.1, "{program}");
            let parsed = Scenario::parse(&text("a \"b\" \\ \n", &program, 2, 3)).unwrap();
            assert_eq!(parsed.about, "a \"b\" \\ ?");
        }
    }
}
