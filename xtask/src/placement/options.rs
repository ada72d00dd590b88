//! The command line of `cargo xtask bench placement`.

use anyhow::{Context, Result, bail};
use std::path::PathBuf;

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Random hosts that are simulated.
    pub(crate) hosts: u64,
    /// Random small hosts that are compared with the best of all plans.
    pub(crate) gaps: u64,
    /// Runs of each placement rule on a host, of which the median counts.
    pub(crate) runs: u64,
    /// Placements of each host that are drawn at random and simulated once, too.
    pub(crate) drawn: u64,
    /// The seed of the first host.
    pub(crate) seed: u64,
    pub(crate) json: Option<PathBuf>,
    pub(crate) html: Option<PathBuf>,
}

impl Options {
    pub(crate) fn parse(args: &[&str]) -> Result<Self> {
        let mut options =
            Self { hosts: 40, gaps: 600, runs: 3, drawn: 0, seed: 1, json: None, html: None };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if *arg == "--quick" {
                (options.hosts, options.gaps, options.runs) = (8, 60, 1);
                continue;
            }
            let value = args.next().copied();
            let value = || value.with_context(|| format!("{arg} needs a value"));
            let number_in = |least: u64, most: u64| -> Result<u64> {
                let text = value()?;
                text.parse().ok().filter(|number| (least..=most).contains(number)).with_context(
                    || format!("{arg} {text}: expected a number from {least} to {most}"),
                )
            };
            let number = || number_in(0, 100_000);
            match *arg {
                "--hosts" => options.hosts = number()?,
                "--gaps" => options.gaps = number()?,
                "--runs" => options.runs = number_in(1, 100)?,
                "--drawn" => options.drawn = number()?,
                "--seed" => options.seed = number()?,
                "--json" => options.json = Some(value()?.into()),
                "--html" => options.html = Some(value()?.into()),
                _ => bail!(
                    "bench placement knows no {arg}; known are --quick, --hosts, --gaps, --runs, --drawn, \
                     --seed, --json, --html"
                ),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood_or_named() {
        let options = Options::parse(&["--quick", "--seed", "7", "--drawn", "50"]).unwrap();
        assert_eq!((options.hosts, options.gaps, options.seed), (8, 60, 7));
        assert_eq!((options.runs, options.drawn), (1, 50));
        for (args, word) in [
            (["--hosts", "many"].as_slice(), "expected a number from 0 to 100000"),
            (&["--runs", "0"], "--runs 0: expected a number from 1 to 100"),
            (&["--runs", "101"], "from 1 to 100"),
            (&["--html"], "needs a value"),
            (&["--speed", "3"], "knows no --speed"),
        ] {
            let error = Options::parse(args).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
