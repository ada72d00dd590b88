//! `fib N`: the Fibonacci numbers by plain recursion, under work stealing.
//!
//! Models the first workload of systems.md 1 (fib(48)): branchy integer code that is bound by
//! instruction fetch and decode, so that two busy threads of one core hinder each other.

use super::steal::{Child, Part, Steal, Tree};
use crate::args::Args;
use crate::error::LoadError;
use crate::json::Object;

/// Calls below which a task is not worth giving away.
const SMALLEST: u8 = 12;

/// The mode.
pub type Fib = Steal<Calls>;

/// The tree of calls of fib(n).
#[derive(Debug)]
pub struct Calls {
    n: u8,
}

/// A call of fib(n), which calls fib(n - 1), child 0, and fib(n - 2), child 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    n: u8,
    /// The next child.
    next: u8,
    /// The end of the children that are this task's.
    end: u8,
}

impl Call {
    fn new(n: u8) -> Self {
        Self { n, next: 0, end: 2 }
    }
}

impl Tree for Calls {
    const NAME: &'static str = "fib";
    const HELP: &'static str = "\
fib: fib N: Fibonacci numbers by recursion under work stealing
N: 2 to 60, over and over; 48 as published is for real machines [work: calls]
  --idle yield|spin  a worker without work offers its CPU to others, or spins [yield]
round_ns: time of one whole fib(N). rounds, steals, refusals: computations, tasks given away,
requests that found nothing to give
";
    type Node = Call;

    fn from_args(args: &mut Args) -> Result<Self, LoadError> {
        Ok(Self { n: args.operand("N", 2..=60)? as u8 })
    }

    fn root(&self) -> Call {
        Call::new(self.n)
    }

    #[inline]
    fn next(&self, call: &mut Call) -> Option<Child<Call>> {
        if call.next == call.end {
            return None;
        }
        call.next += 1;
        let n = call.n - call.next;
        Some(if n < 2 { Child::Leaf(u64::from(n)) } else { Child::Node(Call::new(n)) })
    }

    fn split(&self, call: &mut Call, part: Part) -> Option<Call> {
        let part = part.of(u32::from(call.end - call.next)) as u8;
        if part == 0 || call.n < SMALLEST {
            return None;
        }
        let middle = call.end - part;
        let given = Call { n: call.n, next: middle, end: call.end };
        call.end = middle;
        Some(given)
    }

    fn value(&self) -> u64 {
        let (mut this, mut next) = (0_u64, 1_u64);
        for _ in 0..self.n {
            (this, next) = (next, this + next);
        }
        this
    }

    fn describe(&self, fields: &mut Object) {
        fields.number("n", u64::from(self.n));
    }
}
