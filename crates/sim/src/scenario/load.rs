//! What a guest runs, in the words of the lab: `spin`, `idle`, or a command line of `instep-load`,
//! which becomes programs of operations; or a program of the library (`npb/cg --threads 8`), whose
//! options may be replaced. Only here exist the mode `io`, `barrier --total`, `--rounds` and `--regions`,
//! and the kind `adaptive`.
//!
//! Defaults are those of `instep-load`; options that only say how its results are printed are taken
//! and ignored. Times are work on an undisturbed CPU.

use crate::guest::program::{BarrierPlan, Op, PoolPlan, Program, Waiting, Workload};
use crate::library;
use crate::params::Profile;
use std::time::Duration;

/// Adds what `text` says to the workload of a guest with `vcpus` vCPUs.
///
/// # Errors
/// What is not understood.
pub fn add(
    workload: &mut Workload,
    text: &str,
    vcpus: u32,
    profile: Option<usize>,
) -> Result<(), String> {
    let words = shlex::split(text).ok_or_else(|| format!("`{text}`: a quote is not closed"))?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["idle"] => Ok(()),
        ["spin"] => add(workload, "instep-load compute", vcpus, profile),
        ["instep-load", mode, rest @ ..] => {
            let mut options = Options::new(mode, rest)?;
            let threads = match *mode {
                "idle" => 0,
                _ => options.number("--threads", u64::from(vcpus), 1..=4096)? as u32,
            };
            for ignored in ["--duration", "--report", "--seed", "--unit-ns"] {
                options.take(ignored);
            }
            workload.float |= options.take("--float").is_some();
            let own = profile.unwrap_or(Profile::PLAIN);
            let mut addition = Addition { workload, options, threads, profile: own };
            addition.mode(profile)?;
            addition.options.finish()
        }
        [name, rest @ ..] if library::application(name).is_some() => {
            program(workload, name, rest, vcpus, profile)
        }
        _ => Err(format!(
            "`{text}`: known are spin, idle, instep-load MODE and programs of the library such as \
             npb/cg (scenarios/library)"
        )),
    }
}

/// A program of the library, with options that replace its own.
fn program(
    workload: &mut Workload,
    name: &str,
    rest: &[&str],
    vcpus: u32,
    profile: Option<usize>,
) -> Result<(), String> {
    let found = library::application(name).and_then(|(at, one)| Some((at, one.load.as_ref()?)));
    let (number, load) = found
        .ok_or_else(|| format!("`{name}` is a kind of work, no program: give it as profile"))?;
    let words = shlex::split(load).unwrap_or_default();
    let (mut kept, mut left) = (Vec::new(), words.iter().map(String::as_str));
    while let Some(word) = left.next() {
        if word.starts_with("--") && rest.iter().any(|own| own.split('=').next() == Some(word)) {
            left.next();
        } else {
            kept.push(word);
        }
    }
    kept.extend(rest);
    let text = shlex::try_join(kept).map_err(|error| format!("`{name}`: {error}"))?;
    add(workload, &text, vcpus, profile.or(Some(number))).map_err(|what| format!("{name}: {what}"))
}

/// Nodes of the backtracking tree of N queens, N from 0 (OEIS A099152).
const QUEENS: [u64; 19] = [
    1,
    2,
    3,
    6,
    17,
    54,
    153,
    552,
    2057,
    8394,
    35_539,
    166_926,
    856_189,
    4_674_890,
    27_358_553,
    171_129_072,
    1_141_190_303,
    8_017_021_932,
    59_365_844_491,
];

/// What a command line adds to a workload.
struct Addition<'a, 'w> {
    workload: &'a mut Workload,
    options: Options<'w>,
    threads: u32,
    /// What the threads' work is bound by.
    profile: usize,
}

impl Addition<'_, '_> {
    /// Adds what the mode does; `given` is the profile that the guest names.
    fn mode(&mut self, given: Option<usize>) -> Result<(), String> {
        let known = |name: &str| library::application(name).map(|(number, _)| number);
        let usual = |name: &str| given.or(known(name)).unwrap_or(Profile::PLAIN);
        match self.options.mode {
            "idle" => return Ok(()),
            "compute" => self.compute(),
            mode @ ("stream" | "chase") => {
                self.options.take("--size");
                self.profile = usual(mode);
                self.compute();
            }
            "barrier" => self.barrier()?,
            "serial" => self.serial()?,
            "lock" => self.lock()?,
            "fib" | "nqueens" => {
                self.profile = usual("fetch");
                self.steal()?;
            }
            "pipeline" => self.pipeline()?,
            "ping" => self.ping()?,
            "io" => self.io()?,
            mode => {
                return Err(format!(
                    "instep-load {mode}: known are barrier, chase, compute, fib, idle, io, lock, nqueens, \
                     ping, pipeline, serial and stream"
                ));
            }
        }
        Ok(())
    }

    /// All threads run the same program.
    fn same(&mut self, ops: Vec<Op>, threads: u32, unit: &'static str) {
        let program = self.workload.programs.len();
        self.workload.programs.push(Program { ops, profile: self.profile });
        self.workload.threads.extend((0..threads).map(|number| (program, number)));
        self.workload.count_in(unit);
    }

    fn compute(&mut self) {
        self.same(vec![Op::Burn], self.threads, "us of work");
    }

    fn new_barrier(&mut self, parties: u32, wakes_in_turn: bool) -> u32 {
        self.workload.barriers.push(BarrierPlan { parties, wakes_in_turn });
        self.workload.barriers.len() as u32 - 1
    }

    fn barrier(&mut self) -> Result<(), String> {
        let wait = self.options.waiting()?;
        // Work of all threads between two barriers, instead: what a program of fixed size has.
        let total = self.options.time("--total", 0, 0)?;
        let ns = self.options.time("--phase", 100_000, 100)?;
        let ns = if total > 0 { (total / u64::from(self.threads.max(1))).max(100) } else { ns };
        let spread = self.options.percent("--imbalance", 0)?;
        // After so many rounds it ends; without a number never.
        let rounds = self.options.number("--rounds", 0, 0..=1_000_000_000_000)?;
        let (regions, joins) = self.options.regions()?;
        let is_openmp = regions > 0;
        let barrier = self.new_barrier(self.threads, is_openmp);
        let dock = if is_openmp { self.new_barrier(self.threads, true) } else { 0 };
        let mut ops = Vec::new();
        for join in 1..=joins {
            ops.extend([Op::Work { ns, spread }, Op::Barrier { barrier, wait }]);
            // The first region has the joins that are within regions; each other one has a single join.
            if is_openmp && join > joins - regions {
                ops.push(Op::Barrier { barrier: dock, wait });
            }
            ops.extend([Op::Turn { of: 1, rotating: false, skip: 1 }, Op::Count { units: 1 }]);
            let to = if join < joins { ops.len() as u32 + 2 } else { 0 };
            match rounds {
                0 if join < joins => {}
                0 => ops.push(Op::Jump { to }),
                times => ops.extend([Op::Again { times, to }, Op::End]),
            }
        }
        self.same(ops, self.threads, "phases");
        Ok(())
    }

    fn serial(&mut self) -> Result<(), String> {
        let wait = self.options.waiting()?;
        let parallel = self.options.time("--parallel", 8_000_000, 0)?;
        let sequential = self.options.time("--sequential", 1_000_000, 100)?;
        let rotating = match self.options.take("--serial") {
            None | Some("fixed" | "imbalanced") => false,
            Some("rotating" | "balanced") => true,
            Some(other) => {
                return Err(format!("--serial {other}: expected one of fixed, rotating"));
            }
        };
        let barrier = self.new_barrier(self.threads, false);
        let ops = vec![
            Op::Work { ns: parallel / u64::from(self.threads.max(1)), spread: 0 },
            Op::Barrier { barrier, wait },
            Op::Turn { of: self.threads, rotating, skip: 2 },
            Op::Work { ns: sequential, spread: 0 },
            Op::Count { units: 1 },
            Op::Barrier { barrier, wait },
            Op::Jump { to: 0 },
        ];
        self.same(ops, self.threads, "iterations");
        Ok(())
    }

    fn lock(&mut self) -> Result<(), String> {
        let limit = self.options.time("--spin-limit", 50_000, 1)?;
        let wait = match self.options.take("--kind") {
            None | Some("mutex") => Waiting::Block,
            Some("adaptive") => Waiting::Adaptive(limit),
            Some("ticket-spin") => Waiting::Spin,
            Some("kernel-spin") => Waiting::KernelSpin,
            Some(other) => {
                return Err(format!(
                    "--kind {other}: expected one of mutex, adaptive, ticket-spin, kernel-spin"
                ));
            }
        };
        let hold = self.options.time("--hold", 5_000, 0)?;
        let think = self.options.time("--think", 20_000, 0)?;
        let spread = self.options.percent("--imbalance", 50)?;
        let lock = self.workload.locks;
        self.workload.locks += 1;
        let ops = vec![
            Op::Work { ns: think, spread },
            Op::Lock { lock, wait },
            Op::Work { ns: hold, spread: 0 },
            Op::Unlock { lock },
            Op::Count { units: 1 },
            Op::Jump { to: 0 },
        ];
        self.same(ops, self.threads, "acquisitions");
        Ok(())
    }

    fn steal(&mut self) -> Result<(), String> {
        // What an idle worker does between two requests makes no difference with a thread per vCPU.
        self.options.take("--idle");
        let n = self.options.operand(2..=60)?;
        // 2 ns a call and 4 ns a node: assumed, of the order of a 2 to 3 GHz processor.
        let (round, uneven) = if self.options.mode == "fib" {
            let (mut a, mut b) = (1u64, 1u64);
            (0..n).for_each(|_| (a, b) = (b, a.saturating_add(b)));
            // fib gives the smaller branch away: 0.38 of the node, not a half.
            (a.saturating_mul(2).saturating_mul(2), 24)
        } else {
            let nodes = QUEENS.get(n as usize).ok_or("nqueens: possible are 2 to 18")?;
            (nodes * 4, 50)
        };
        // Nothing below 20 us is given away, and to give takes 500 ns: assumed, as nothing is published; with
        // much less giving would cost more than it brings.
        self.workload.pools.push(PoolPlan { round, grain: 20_000, uneven, give: 500 });
        let pool = self.workload.pools.len() as u32 - 1;
        self.same(vec![Op::Steal { pool }], self.threads, "us of work");
        Ok(())
    }

    fn pipeline(&mut self) -> Result<(), String> {
        let ns = self.options.time("--stage", 100_000, 100)?;
        let spread = self.options.percent("--imbalance", 20)?;
        let depth = self.options.number("--depth", 4, 1..=65_536)? as u32;
        let first = self.workload.queues.len() as u32;
        self.workload.queues.extend((1..self.threads).map(|_| depth));
        for stage in 0..self.threads {
            let mut ops = Vec::new();
            if stage > 0 {
                ops.push(Op::Pop { queue: first + stage - 1 });
            }
            ops.push(Op::Work { ns, spread });
            ops.push(match stage + 1 < self.threads {
                true => Op::Push { queue: first + stage },
                false => Op::Count { units: 1 },
            });
            ops.push(Op::Jump { to: 0 });
            self.same(ops, 1, "items");
        }
        Ok(())
    }

    fn ping(&mut self) -> Result<(), String> {
        let ns = self.options.time("--period", 1_000_000, 10_000)?;
        let burst = self.options.time("--burst", 0, 0)?;
        let ops = vec![Op::Periodic { ns }, Op::Work { ns: burst, spread: 0 }, Op::Jump { to: 0 }];
        self.same(ops, self.threads, "wakeups");
        Ok(())
    }

    fn io(&mut self) -> Result<(), String> {
        let compute = self.options.time("--compute", 100_000, 0)?;
        let ns = self.options.time("--wait", 200_000, 100)?;
        let spread = self.options.percent("--imbalance", 20)?;
        let ops = vec![
            Op::Io { ns, spread },
            Op::Work { ns: compute, spread },
            Op::Count { units: 1 },
            Op::Jump { to: 0 },
        ];
        self.same(ops, self.threads, "requests");
        Ok(())
    }
}

/// Options after the mode, until each is taken.
struct Options<'a> {
    mode: &'a str,
    named: Vec<(&'a str, &'a str)>,
    operands: Vec<&'a str>,
}

impl<'a> Options<'a> {
    fn new(mode: &'a str, words: &[&'a str]) -> Result<Self, String> {
        let mut options = Self { mode, named: Vec::new(), operands: Vec::new() };
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let (name, value) = match (word.strip_prefix("--"), word.split_once('=')) {
                (None, _) => {
                    options.operands.push(word);
                    continue;
                }
                (Some(_), Some((name, value))) => (name, value),
                (Some("float"), None) => (*word, ""),
                (Some(_), None) => {
                    (*word, *rest.next().ok_or_else(|| format!("{word} has no value"))?)
                }
            };
            if options.named.iter().any(|(known, _)| *known == name) {
                return Err(format!("{name} is given twice"));
            }
            options.named.push((name, value));
        }
        Ok(options)
    }

    fn take(&mut self, name: &str) -> Option<&'a str> {
        let at = self.named.iter().position(|(known, _)| *known == name)?;
        Some(self.named.remove(at).1)
    }

    fn time(&mut self, name: &str, default: u64, least: u64) -> Result<u64, String> {
        let Some(text) = self.take(name) else { return Ok(default) };
        let time = if text == "0" {
            Duration::ZERO
        } else {
            duration(text).map_err(|error| format!("{name} {text}: {error}"))?
        };
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if ns < least || ns > 1_000_000_000_000_000 {
            return Err(format!("{name} {text}: at least {least}ns and at most 11 days"));
        }
        Ok(ns)
    }

    fn waiting(&mut self) -> Result<Waiting, String> {
        let limit = self.time("--spin-limit", 50_000, 1)?;
        Ok(match self.take("--kind") {
            None | Some("block") => Waiting::Block,
            Some("spin") => Waiting::Spin,
            Some("spin-block") => Waiting::SpinBlock(limit),
            Some("adaptive") => Waiting::Adaptive(limit),
            Some(other) => {
                return Err(format!(
                    "--kind {other}: expected one of block, spin, spin-block, adaptive"
                ));
            }
        })
    }

    fn percent(&mut self, name: &str, default: u32) -> Result<u32, String> {
        let Some(text) = self.take(name) else { return Ok(default) };
        let number = text.strip_suffix('%').unwrap_or(text).parse::<u32>();
        number
            .ok()
            .filter(|percent| *percent <= 100)
            .ok_or_else(|| format!("{name} {text}: expected a percentage such as 20%"))
    }

    fn number(
        &mut self,
        name: &str,
        default: u64,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, String> {
        let Some(text) = self.take(name) else { return Ok(default) };
        let number = text.parse::<u64>().ok().filter(|number| range.contains(number));
        let (low, high) = (range.start(), range.end());
        number.ok_or_else(|| format!("{name} {text}: expected a number from {low} to {high}"))
    }

    /// `--regions 9/13`: of 13 joins 9 end a parallel region of GNU libgomp (team.c, GCC 4.9). There all threads of the
    /// team meet twice: at the team's barrier, and at the pool's dock, where its threads wait for the next region. None,
    /// and one join, without the option.
    fn regions(&mut self) -> Result<(u32, u32), String> {
        let Some(text) = self.take("--regions") else { return Ok((0, 1)) };
        let parsed = text.split_once('/').and_then(|(regions, joins)| {
            Some((regions.parse::<u32>().ok()?, joins.parse::<u32>().ok()?))
        });
        parsed
            .filter(|(regions, joins)| (1..=*joins).contains(regions) && *joins <= 1000)
            .ok_or_else(|| format!("--regions {text}: expected regions and joins such as 9/13"))
    }

    fn operand(&mut self, range: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
        let (mode, text) = (self.mode, self.operands.pop());
        let number = text.and_then(|text| text.parse().ok());
        let (low, high) = (range.start(), range.end());
        number
            .filter(|number| range.contains(number))
            .ok_or_else(|| format!("{mode} needs a number from {low} to {high}"))
    }

    fn finish(self) -> Result<(), String> {
        let unknown = self.named.first().map(|(name, _)| *name).or(self.operands.first().copied());
        match unknown {
            Some(word) => Err(format!("instep-load {} has no {word}", self.mode)),
            None => Ok(()),
        }
    }
}

/// A duration such as `4ms` or `1ms 500us`.
///
/// # Errors
/// When it is none.
pub fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "durations look like 100us, 4ms or 60s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Workload, String> {
        let mut workload = Workload::default();
        add(&mut workload, text, 4, None).map(|()| workload)
    }

    #[test]
    fn example_has_only_words_of_a_scenario() {
        let text = include_str!("../../../../scenarios/example/sim.toml");
        let scenario = crate::scenario::Scenario::parse(text).unwrap();
        assert_eq!((scenario.guest.len(), scenario.seed), (1, 1));
    }

    #[test]
    fn the_labs_loads_are_understood() {
        for (text, threads) in [
            ("spin", 4),
            ("idle", 0),
            ("instep-load idle", 0),
            ("instep-load barrier --kind spin --phase 1ms --duration 0", 4),
            ("instep-load barrier --kind spin-block --spin-limit=20us --threads 2", 2),
            ("instep-load serial --parallel 4ms --sequential 2ms --serial rotating", 4),
            ("instep-load lock --kind ticket-spin", 4),
            ("instep-load fib 30", 4),
            ("instep-load nqueens 8", 4),
            ("instep-load pipeline --stage 50us --depth 2", 4),
            ("instep-load ping --period 10ms --float", 4),
            ("instep-load stream --size 24MiB", 4),
            ("instep-load io --compute 10us --wait 1ms", 4),
            ("npb/cg --threads 3 --kind=block", 3),
            ("instep-load barrier --kind adaptive", 4),
            ("instep-load lock --kind adaptive --spin-limit 5us", 4),
            ("stealing/fib", 4),
        ] {
            let workload = parsed(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(workload.threads.len(), threads, "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, word) in [
            ("", "known are spin"),
            ("make -j", "known are spin"),
            ("npb/none", "known are spin"),
            ("stream", "no program"),
            ("npb/cg --speed 3", "has no --speed"),
            ("instep-load dance", "known are barrier"),
            ("instep-load barrier --phase", "no value"),
            ("instep-load barrier --phase 100", "durations look like"),
            ("instep-load barrier --phase 1ns", "at least 100ns"),
            ("instep-load barrier --kind odd", "expected one of"),
            ("instep-load barrier --speed 3", "has no --speed"),
            ("instep-load barrier --phase 1ms --phase 1ms", "given twice"),
            ("instep-load fib", "needs a number"),
            ("instep-load nqueens 19", "possible are"),
            ("instep-load compute 'x", "not closed"),
            ("instep-load compute --threads 0", "from 1"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_program_of_fixed_size_is_divided_among_its_threads() {
        let work = |text: &str| parsed(text).unwrap().programs[0].ops[0];
        let (four, one) = (work("npb/sp"), work("npb/sp --threads 1"));
        assert_eq!(four, Op::Work { ns: 4_087_000, spread: 5 });
        assert_eq!(one, Op::Work { ns: 16_348_000, spread: 5 });
        let profile = parsed("npb/sp").unwrap().programs[0].profile;
        assert_eq!(Profile::known()[profile].name, "npb/sp");
    }

    #[test]
    fn a_pipeline_has_a_queue_between_two_stages() {
        let workload = parsed("instep-load pipeline --depth 3").unwrap();
        assert_eq!((workload.queues.as_slice(), workload.programs.len()), ([3; 3].as_slice(), 4));
    }
}
