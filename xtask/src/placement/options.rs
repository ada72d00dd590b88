//! The command line of `cargo xtask bench placement`.

use clap::Args;
use std::path::PathBuf;

/// What was asked for.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Fewer hosts, and one run.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Random hosts that are simulated.
    #[arg(long, value_name = "N", default_value = "40", default_value_if("quick", "true", "8"),
        value_parser = clap::value_parser!(u64).range(..=100_000))]
    pub(crate) hosts: u64,
    /// Random small hosts that are compared with the best of all plans.
    #[arg(long, value_name = "N", default_value = "600", default_value_if("quick", "true", "60"),
        value_parser = clap::value_parser!(u64).range(..=100_000))]
    pub(crate) gaps: u64,
    /// Runs of each placement rule on a host.
    #[arg(long, value_name = "N", default_value = "5", default_value_if("quick", "true", "1"),
        value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) runs: u64,
    /// Runs at most, where fewer do not tell whether `instep` is below or above a rule.
    #[arg(long, value_name = "N", default_value = "40", default_value_if("quick", "true", "1"),
        value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) most_runs: u64,
    /// Changes at random of where `instep` puts VMs, each kept if a simulation is faster with it: what better placements
    /// there are.
    #[arg(long, value_name = "N", default_value = "0",
        value_parser = clap::value_parser!(u64).range(..=100_000))]
    pub(crate) changes: u64,
    /// The seed of the first host.
    #[arg(long, value_name = "N", default_value = "1",
        value_parser = clap::value_parser!(u64).range(..=100_000))]
    pub(crate) seed: u64,
    /// Writes what was found as JSON, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Writes what was found as a page, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_options;

    #[test]
    fn options_are_understood_or_named() {
        let options: Options = parse_options(&[]).unwrap();
        assert_eq!((options.hosts, options.gaps, options.runs), (40, 600, 5));
        assert_eq!(options.most_runs, 40);
        let options: Options =
            parse_options(&["--quick", "--seed", "7", "--changes", "50"]).unwrap();
        assert_eq!((options.hosts, options.gaps, options.seed), (8, 60, 7));
        assert_eq!((options.runs, options.most_runs, options.changes), (1, 1, 50));
        for (args, word) in [
            (["--hosts", "many"].as_slice(), "invalid value 'many'"),
            (&["--hosts", "100001"], "100001 is not in 0..=100000"),
            (&["--runs", "0"], "0 is not in 1..=1000"),
            (&["--runs", "1001"], "1001 is not in 1..=1000"),
            (&["--html"], "value is required"),
            (&["--speed", "3"], "unexpected argument '--speed'"),
        ] {
            let error = parse_options::<Options>(args).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
