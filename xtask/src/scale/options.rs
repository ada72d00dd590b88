//! The command line of `cargo xtask bench scale`.

use crate::scale::cases::Case;
use crate::scale::jobs::Contestant;
use anyhow::{Result, ensure};
use clap::Args;
use std::path::PathBuf;
use wildmatch::WildMatch;

/// The judged scheduler and those beside it.
const SCHEDULERS: [&str; 4] = ["instep", "eevdf", "relaxed", "balance"];
const SEEDS: u64 = 5;
/// Seeds of the schedulers beside it, where no number is given: they are there for comparison.
pub(crate) const PEER_SEEDS: u64 = 3;
/// The most CPUs of a host with --quick.
const QUICK_CPUS: i64 = 32;

/// What was asked for.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// One seed, and hosts of up to 32 CPUs.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Cases of this name alone, in which `*` stands for any text.
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,
    /// The schedulers: the first is judged, the others stand beside it.
    #[arg(long = "scheduler", value_name = "NAME", default_values = SCHEDULERS)]
    pub(crate) schedulers: Vec<String>,
    /// Seeds of each case [default: 5, and 3 of the schedulers beside].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: Option<u64>,
    /// Writes the table as JSON, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Writes the table as a page, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Writes the scenarios to a directory instead of simulating them.
    #[arg(long, value_name = "DIR")]
    pub(crate) write: Option<PathBuf>,
    /// `instep` without a mechanism, as in `[dispatch] without`; with --mechanisms those to try, all without it.
    #[arg(long, value_name = "MECHANISM")]
    pub(crate) without: Vec<String>,
    /// What each mechanism is worth: the row that loses most without it, on hosts of 32 CPUs and more.
    #[arg(long, conflicts_with_all = ["html", "schedulers"])]
    pub(crate) mechanisms: bool,
}

impl Options {
    /// Fails for a mechanism of a scheduler that is not simulated.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(
            self.without.is_empty() || self.schedulers.iter().any(|name| name == "instep"),
            "--without is for instep, which is not among the schedulers; add --scheduler instep"
        );
        Ok(())
    }

    /// The schedulers, `instep` without the mechanisms that are off.
    pub(crate) fn list_contestants(&self) -> Vec<Contestant> {
        let of = |name: &String| Contestant {
            scheduler: name.clone(),
            without: if name == "instep" { self.without.clone() } else { Vec::new() },
        };
        self.schedulers.iter().map(of).collect()
    }

    /// Seeds of the scheduler with this number.
    pub(crate) fn seeds(&self, scheduler: usize) -> u64 {
        match self.seeds {
            Some(seeds) => seeds,
            None if self.quick => 1,
            None if scheduler == 0 => SEEDS,
            None => PEER_SEEDS,
        }
    }

    /// Whether a case is asked for.
    pub(crate) fn wants(&self, case: &Case) -> bool {
        let named = |pattern: &String| WildMatch::new(pattern).matches(&case.name);
        (self.cases.is_empty() || self.cases.iter().any(named))
            && (!self.quick || case.cpus <= QUICK_CPUS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_options;

    fn parse(args: &[&str]) -> Result<Options> {
        let options: Options = parse_options(args)?;
        options.check().map(|()| options)
    }

    fn case(name: &str) -> Case {
        let (toml, rows, leave_out) = (String::new(), Vec::new(), Vec::new());
        Case { name: name.to_owned(), toml, cpus: 8, rows, leave_out }
    }

    #[test]
    fn star_stands_for_any_text() {
        let options = parse(&["--case", "grid-*/P8-*", "--case", "mixed"]).unwrap();
        let wanted = ["grid-50/P8-V4-1ms", "grid-50/P16-V4-1ms", "mixed", "mixed-2"];
        assert_eq!(wanted.map(|name| options.wants(&case(name))), [true, false, true, false]);
    }

    #[test]
    fn options_that_are_not_known_are_refused() {
        for (args, word) in [
            (&["--fast"][..], "unexpected argument '--fast'"),
            (&["--seeds"], "value is required"),
            (&["--seeds", "0"], "0 is not in 1..=100"),
            (&["--mechanisms", "--html", "a"], "cannot be used with"),
            (&["--mechanisms", "--scheduler", "a"], "cannot be used with"),
            (&["--without", "home", "--scheduler", "eevdf"], "--scheduler instep"),
        ] {
            let error = parse(args).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        let options = parse(&["--quick", "--scheduler", "cfs"]).unwrap();
        assert_eq!((options.seeds(0), options.schedulers.len()), (1, 1));
        let options = parse(&["--without", "home"]).unwrap();
        let without: Vec<usize> =
            options.list_contestants().iter().map(|one| one.without.len()).collect();
        assert_eq!(without, [1, 0, 0, 0]);
        let options = parse(&[]).unwrap();
        assert_eq!((options.seeds(0), options.seeds(1)), (SEEDS, PEER_SEEDS));
    }
}
