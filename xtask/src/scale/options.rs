//! The command line of `cargo xtask bench scale`.

use crate::scale::cases::Case;
use crate::scale::jobs::Contestant;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;

/// The judged scheduler and those beside it.
const SCHEDULERS: [&str; 4] = ["instep", "eevdf", "relaxed", "balance"];
const SEEDS: u64 = 5;
/// Seeds of the schedulers beside it, where no number is given: they are there for comparison.
pub(crate) const PEER_SEEDS: u64 = 3;
/// The most CPUs of a host with --quick.
const QUICK_CPUS: i64 = 32;

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    /// Patterns of names of cases; all cases when empty.
    pub(crate) cases: Vec<String>,
    /// The first is judged.
    pub(crate) schedulers: Vec<String>,
    seeds: Option<u64>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) html: Option<PathBuf>,
    /// Where the scenarios are written instead of simulated.
    pub(crate) write: Option<PathBuf>,
    /// Mechanisms of `instep` that are off; with `mechanisms` those that are switched off in turn, all if it is empty.
    pub(crate) without: Vec<String>,
    /// Whether the table shows what each mechanism is worth.
    pub(crate) mechanisms: bool,
}

impl Options {
    pub(crate) fn parse(args: &[&str]) -> Result<Self> {
        let mut options = Self {
            quick: false,
            cases: Vec::new(),
            schedulers: Vec::new(),
            seeds: None,
            json: None,
            html: None,
            write: None,
            without: Vec::new(),
            mechanisms: false,
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--quick" => options.quick = true,
                "--mechanisms" => options.mechanisms = true,
                _ => {
                    let value = args.next().copied();
                    options.take(arg, value)?;
                }
            }
        }
        options.check()?;
        if options.schedulers.is_empty() {
            options.schedulers = SCHEDULERS.map(str::to_owned).to_vec();
        }
        Ok(options)
    }

    /// Takes an option that has a value.
    fn take(&mut self, arg: &str, value: Option<&str>) -> Result<()> {
        let known =
            ["--case", "--scheduler", "--without", "--seeds", "--json", "--html", "--write"];
        if !known.contains(&arg) {
            let known = known.join(", ");
            bail!("bench scale knows no {arg}; known are --quick, --mechanisms, {known}");
        }
        let value = value.with_context(|| format!("{arg} needs a value"))?;
        match arg {
            "--case" => self.cases.push(value.to_owned()),
            "--scheduler" => self.schedulers.push(value.to_owned()),
            "--without" => self.without.push(value.to_owned()),
            "--json" => self.json = Some(value.into()),
            "--html" => self.html = Some(value.into()),
            "--write" => self.write = Some(value.into()),
            _ => {
                let seeds = value.parse().ok().filter(|seeds| (1..=100).contains(seeds));
                let seeds = seeds
                    .with_context(|| format!("--seeds {value}: expected a number from 1 to 100"))?;
                self.seeds = Some(seeds);
            }
        }
        Ok(())
    }

    /// Fails for options that do not go together.
    fn check(&self) -> Result<()> {
        if self.mechanisms && (self.html.is_some() || !self.schedulers.is_empty()) {
            bail!(
                "--mechanisms compares instep with itself, as text and JSON; leave --html and \
                 --scheduler away"
            );
        }
        let is_instep = |name: &String| name == "instep";
        if !self.without.is_empty()
            && !self.schedulers.is_empty()
            && !self.schedulers.iter().any(is_instep)
        {
            bail!(
                "--without is for instep, which is not among the schedulers; add --scheduler instep"
            );
        }
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
        let named = |pattern: &String| is_match(pattern, &case.name);
        (self.cases.is_empty() || self.cases.iter().any(named))
            && (!self.quick || case.cpus <= QUICK_CPUS)
    }
}

/// Whether a name matches a pattern, in which `*` stands for any text.
fn is_match(pattern: &str, name: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(begin) else { return false };
    let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
    ends.into_iter().any(|at| is_match(rest, &name[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name, whether) in [
            ("mixed", "mixed", true),
            ("mixed", "mixed-2", false),
            ("grid-*/P8-*", "grid-50/P8-V4-1ms", true),
            ("grid-*/P8-*", "grid-50/P16-V4-1ms", false),
            ("*1ms", "grid-50/P8-V4-1ms", true),
            ("*", "", true),
        ] {
            assert_eq!(is_match(pattern, name), whether, "{pattern} {name}");
        }
    }

    #[test]
    fn options_that_are_not_known_are_refused() {
        for (args, word) in [
            (vec!["--fast"], "knows no --fast"),
            (vec!["--seeds"], "needs a value"),
            (vec!["--seeds", "0"], "from 1 to 100"),
            (vec!["--mechanisms", "--html", "a"], "leave --html"),
            (vec!["--without", "home", "--scheduler", "eevdf"], "--scheduler instep"),
        ] {
            let error = Options::parse(&args).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        let options = Options::parse(&["--quick", "--scheduler", "cfs"]).unwrap();
        assert_eq!((options.seeds(0), options.schedulers.len()), (1, 1));
        let options = Options::parse(&["--without", "home"]).unwrap();
        let without: Vec<usize> =
            options.list_contestants().iter().map(|one| one.without.len()).collect();
        assert_eq!(without, [1, 0, 0, 0]);
        let options = Options::parse(&[]).unwrap();
        assert_eq!((options.seeds(0), options.seeds(1)), (SEEDS, PEER_SEEDS));
    }
}
