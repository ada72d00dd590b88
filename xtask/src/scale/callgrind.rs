//! What a profile of valgrind's callgrind says of the kernel scheduler's own C: instructions of each operation,
//! for each event.
//!
//! An event is a call from the simulated kernel (Rust) into a function of bpf/: an operation of sched_ext or a
//! timer. Its cost is the instructions of lines of bpf/, in the function and in those that it calls, with
//! copies and fills of memory that the compiler put there as calls. What the simulated kernel answers is not
//! counted. Functions that several operations call are divided among them in proportion to the instructions
//! of these calls, everything included; the sum over all operations is exact.
//!
//! The format: <https://valgrind.org/docs/manual/cl-format.html>, with the names compressed.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};

/// Operations that run when threads, VMs or the scheduler come and go: no scheduling events.
const SET_UP: [&str; 7] =
    ["init", "init_task", "exit", "exit_task", "enable", "disable", "set_weight"];

/// A profile, as far as it is needed.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    functions: BTreeMap<String, Function>,
}

#[derive(Debug, Default)]
struct Function {
    /// Instructions of lines of bpf/ in it, not in what it calls.
    own: u64,
    /// By callee.
    calls: BTreeMap<String, Calls>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    count: u64,
    /// Instructions of the callee and what it calls.
    inclusive: u64,
}

/// An operation's events.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    pub(crate) events: u64,
    pub(crate) instructions: f64,
}

impl Cost {
    /// Instructions for each event.
    pub(crate) fn per_event(&self) -> Option<f64> {
        (self.events > 0).then(|| self.instructions / self.events as f64)
    }
}

/// Names that are written once as `(number) name` and then as `(number)`.
#[derive(Default)]
struct Names(BTreeMap<String, String>);

impl Names {
    fn resolve(&mut self, text: &str) -> Result<String> {
        let Some((number, rest)) = text.strip_prefix('(').and_then(|text| text.split_once(')'))
        else {
            return Ok(text.to_owned());
        };
        let name = rest.trim();
        if !name.is_empty() {
            self.0.insert(number.to_owned(), name.to_owned());
        }
        self.0.get(number).cloned().with_context(|| format!("the name ({number}) is not known"))
    }
}

impl Profile {
    /// Reads a file of callgrind.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut profile = Self::default();
        let (mut files, mut names) = (Names::default(), Names::default());
        let (mut file, mut function, mut callee) = (String::new(), String::new(), String::new());
        // The calls of the line before, whose inclusive cost is on this line.
        let mut calls: Option<u64> = None;
        for (number, line) in text.lines().enumerate() {
            let at = || format!("line {}: `{line}`", number + 1);
            if let Some(events) = line.strip_prefix("events:") {
                if events.split_whitespace().next() != Some("Ir") {
                    bail!("{}: instructions (Ir) are needed first", at());
                }
            } else if let Some((key, value)) = line.split_once('=') {
                match key {
                    "fl" | "fi" | "fe" => file = files.resolve(value).with_context(at)?,
                    "cfi" | "cfl" => drop(files.resolve(value).with_context(at)?),
                    "fn" => {
                        function = names.resolve(value).with_context(at)?;
                        profile.functions.entry(function.clone()).or_default();
                    }
                    "cfn" => callee = names.resolve(value).with_context(at)?,
                    "calls" => {
                        let count =
                            value.split_whitespace().next().and_then(|one| one.parse().ok());
                        calls = Some(count.with_context(at)?);
                    }
                    _ => {}
                }
            } else if line.starts_with(['+', '-', '*'])
                || line.starts_with(|c: char| c.is_ascii_digit())
            {
                // A line with its position alone costs nothing.
                let cost =
                    line.split_whitespace().nth(1).map_or(Ok(0), str::parse).with_context(at)?;
                profile.add(&function, &file, calls.take().map(|count| (&callee, count)), cost);
            }
        }
        Ok(profile)
    }

    fn add(&mut self, function: &str, file: &str, call: Option<(&String, u64)>, cost: u64) {
        let Some(function) = self.functions.get_mut(function) else { return };
        match call {
            Some((callee, count)) => {
                let calls = function.calls.entry(callee.clone()).or_default();
                calls.count += count;
                calls.inclusive += cost;
            }
            None if is_in_bpf(file) => function.own += cost,
            None => {}
        }
    }

    /// The cost of each operation that was called, by name.
    pub(crate) fn costs_by_operation(&self) -> BTreeMap<String, Cost> {
        let total = self.sum_inclusive();
        let mut memory = BTreeMap::new();
        let mut operations = BTreeMap::<String, Cost>::new();
        for (_, caller) in self.functions.iter().filter(|(caller, _)| !self.is_scheduler(caller)) {
            for (name, calls) in &caller.calls {
                let short = name.strip_prefix("instep_").unwrap_or(name);
                if !self.is_scheduler(name) || SET_UP.contains(&short) {
                    continue;
                }
                let part = part_of(*calls, total.get(name.as_str()));
                let cost = operations.entry(short.to_owned()).or_default();
                cost.events += calls.count;
                let own = self.count_own(name, &total, &mut memory, &mut BTreeSet::new());
                cost.instructions += own * part;
            }
        }
        operations
    }

    /// Whether a function is of the kernel scheduler: it has lines of bpf/. The file that callgrind names as the function's
    /// may be a header of the shim whose code comes first. What the shim sets up with lines of bpf/ is not.
    fn is_scheduler(&self, name: &str) -> bool {
        let has_lines = self.functions.get(name).is_some_and(|function| function.own > 0);
        has_lines && !name.starts_with("shim_")
    }

    /// Instructions of all calls of each function.
    fn sum_inclusive(&self) -> BTreeMap<&str, u64> {
        let mut total = BTreeMap::new();
        for (name, calls) in self.functions.values().flat_map(|function| &function.calls) {
            *total.entry(name.as_str()).or_default() += calls.inclusive;
        }
        total
    }

    /// The scheduler's own instructions in all calls of a function; nothing for a call of one that is under way.
    fn count_own<'a>(
        &'a self,
        name: &'a str,
        total: &BTreeMap<&str, u64>,
        known: &mut BTreeMap<&'a str, f64>,
        under_way: &mut BTreeSet<&'a str>,
    ) -> f64 {
        if let Some(own) = known.get(name) {
            return *own;
        }
        let Some(function) = self.functions.get(name) else { return 0.0 };
        if !under_way.insert(name) {
            return 0.0;
        }
        let mut own = function.own as f64;
        for (callee, calls) in &function.calls {
            if self.is_scheduler(callee) {
                own += self.count_own(callee, total, known, under_way)
                    * part_of(*calls, total.get(callee.as_str()));
            } else if is_of_memory(callee) {
                own += calls.inclusive as f64;
            }
        }
        under_way.remove(name);
        known.insert(name, own);
        own
    }
}

fn part_of(calls: Calls, total: Option<&u64>) -> f64 {
    match total {
        Some(total) if *total > 0 => calls.inclusive as f64 / *total as f64,
        _ => 0.0,
    }
}

/// Whether a file is of the kernel scheduler.
fn is_in_bpf(file: &str) -> bool {
    file.split('/').rev().nth(1) == Some("bpf")
}

/// Whether a function copies, fills or compares memory.
fn is_of_memory(name: &str) -> bool {
    ["memset", "memcpy", "memmove", "memcmp"].iter().any(|known| name.contains(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two operations call a helper; the second one's calls are three times as expensive. The helper asks
    /// the simulated kernel (40 instructions) and fills memory (10).
    const TEXT: &str = "\
# callgrind format
positions: line
events: Ir
summary: 500

ob=(1) /x/events
fl=(1) /x/crates/scx/src/flow.rs
fn=(1) Inner::choose
10 100
cfi=(2) /x/crates/scx/../../bpf/main.bpf.c
cfn=(2) instep_dispatch
calls=4 20
+1 60
cfi=(2)
cfn=(3) instep_enqueue
calls=2 30
* 90
cfn=(6) instep_init
calls=1 50
* 33

fl=(2)
fn=(2)
20 20
fi=(3) /x/crates/scx/shim/scx/masks.bpf.h
5 8
fe=(2)
cfn=(4) pick_next
calls=4 40
+2 32

fn=(3)
30 6
cfn=(4)
calls=2 40
31 96

fn=(6)
50 33

fn=(4)
40 16
cfi=(1)
cfn=(5) shim_kick
calls=1 7
-1 40
cfn=(7) __memset_avx2
calls=1 7
-1 10
totals: 500
";

    #[test]
    fn helpers_are_divided_and_answers_of_the_kernel_left_out() {
        let profile = Profile::parse(TEXT).unwrap();
        let costs = profile.costs_by_operation();
        assert_eq!(costs.keys().collect::<Vec<_>>(), ["dispatch", "enqueue"]);
        let cost = |name: &str| (costs[name].events, costs[name].instructions);
        assert_eq!(cost("dispatch"), (4, 20.0 + 26.0 / 4.0));
        assert_eq!(cost("enqueue"), (2, 6.0 + 26.0 * 3.0 / 4.0));
        assert_eq!(costs["enqueue"].per_event(), Some(12.75));
        assert_eq!(Cost::default().per_event(), None);
    }

    #[test]
    fn a_profile_that_is_broken_is_refused() {
        for (text, word) in [
            ("events: Dr Ir\n", "needed first"),
            ("fl=(3)\n", "(3) is not known"),
            ("fn=f\ncalls=x 1\n", "line 2"),
            ("fn=f\n10 x\n", "line 2"),
        ] {
            let error = format!("{:#}", Profile::parse(text).unwrap_err());
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_function_that_calls_itself_is_counted_once() {
        let text = "events: Ir\nfl=(1) a/k.rs\nfn=(1) kernel\n1 1\ncfn=(2) f\ncalls=1 1\n1 9\n\
                    fl=(2) a/bpf/m.c\nfn=(2)\n1 5\ncfn=(2)\ncalls=1 1\n1 4\n";
        let costs = Profile::parse(text).unwrap().costs_by_operation();
        assert_eq!(costs["f"].events, 1);
        assert!(costs["f"].instructions <= 5.0, "{costs:?}");
    }
}
