//! `nqueens N`: all ways to put N queens on a board so that none attacks another, under work
//! stealing.
//!
//! Models the second workload of systems.md 1 (N = 16): a search tree of uneven branches, so that
//! threads run dry at different times and tasks keep moving.

use super::steal::{Child, Part, Steal, Tree};
use crate::args::Args;
use crate::error::LoadError;
use crate::json::Object;

/// Solutions for boards of 1, 2, 3... (OEIS A000170).
const SOLUTIONS: [u64; 18] = [
    1,
    0,
    0,
    2,
    10,
    4,
    40,
    92,
    352,
    724,
    2680,
    14_200,
    73_712,
    365_596,
    2_279_184,
    14_772_512,
    95_815_104,
    666_090_624,
];
/// Rows still to fill below which a task is not worth giving away.
const FEWEST_ROWS: u32 = 5;

/// The mode.
pub type Nqueens = Steal<Board>;

/// A board of `n` rows and columns, filled row by row.
#[derive(Debug)]
pub struct Board {
    n: u32,
}

/// Some rows filled; one bit for each column of the row to fill next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Columns that hold a queen.
    taken: u32,
    /// Columns attacked along falling and rising diagonals.
    falling: u32,
    rising: u32,
    /// Free columns that are yet untried.
    untried: u32,
}

impl Board {
    fn all(&self) -> u32 {
        (1 << self.n) - 1
    }
}

impl Tree for Board {
    const NAME: &'static str = "nqueens";
    const HELP: &'static str = "\
nqueens: nqueens N: all placements of N queens under work stealing
N: 1 to 18, over and over; 16 as published is for real machines [work: placements tried]
  --idle yield|spin  a worker without work offers its CPU to others, or spins [yield]
round_ns: time of one whole search. rounds, steals, refusals: searches, tasks given away,
requests that found nothing to give
";
    type Node = Rows;

    fn from_args(args: &mut Args) -> Result<Self, LoadError> {
        Ok(Self { n: args.operand("N", 1..=SOLUTIONS.len() as u64)? as u32 })
    }

    fn root(&self) -> Rows {
        Rows { untried: self.all(), ..Rows::default() }
    }

    #[inline]
    fn next(&self, rows: &mut Rows) -> Option<Child<Rows>> {
        if rows.untried == 0 {
            return None;
        }
        let column = rows.untried & rows.untried.wrapping_neg();
        rows.untried ^= column;
        let taken = rows.taken | column;
        if taken == self.all() {
            return Some(Child::Leaf(1));
        }
        let falling = (rows.falling | column) << 1 & self.all();
        let rising = (rows.rising | column) >> 1;
        let untried = self.all() & !(taken | falling | rising);
        Some(match untried {
            0 => Child::Leaf(0),
            _ => Child::Node(Rows { taken, falling, rising, untried }),
        })
    }

    fn split(&self, rows: &mut Rows, part: Part) -> Option<Rows> {
        let part = part.of(rows.untried.count_ones());
        if part == 0 || self.n - rows.taken.count_ones() < FEWEST_ROWS {
            return None;
        }
        let mut kept = rows.untried;
        // Take the highest columns away.
        for _ in 0..part {
            kept &= !(1 << kept.ilog2());
        }
        let given = Rows { untried: rows.untried & !kept, ..*rows };
        rows.untried = kept;
        Some(given)
    }

    fn value(&self) -> u64 {
        SOLUTIONS[self.n as usize - 1]
    }

    fn describe(&self, fields: &mut Object) {
        fields.number("n", u64::from(self.n));
    }
}
