//! Checkers over schedules, simulated or recorded: each reads a stream of [`Fact`]s and says when a
//! rule is broken.
//!
//! A [`RuleWatch`] draws the [`picture`] of the facts and shows it to its checkers, each of which knows one
//! rule. Rules that not every scheduler promises are checked by its [`Promises`]. Time in which
//! nothing lasts is not judged: what holds between two facts of the same instant never was.
//!
//! It knows neither the simulator nor a trace's format: both make facts of what they have.
#![forbid(unsafe_code)]

mod affinity;
mod conserved;
mod fact;
mod idle;
pub mod mask;
pub mod picture;
mod promise;
mod share;
mod stacking;
mod wait;
mod wait_bound;
mod woken;

pub use affinity::Affinity;
pub use conserved::Conserved;
pub use fact::{Fact, FactKind};
pub use idle::Idle;
pub use promise::Promises;
pub use share::Share;
pub use stacking::Stacking;
pub use wait::Wait;
pub use wait_bound::WaitBound;
pub use woken::Woken;

use picture::Picture;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// One rule.
pub trait Checker: fmt::Debug {
    /// Its name in findings.
    fn name(&self) -> &'static str;

    /// A fact comes; the picture is that before it. What is wrong with it?
    fn fact(&mut self, _picture: &Picture, _fact: &Fact) -> Option<String> {
        None
    }

    /// The picture stood still from `picture.now` up to `to`, which is later. What is wrong with that?
    fn span(&mut self, _picture: &Picture, _to: u64) -> Option<String> {
        None
    }

    /// The schedule ends. What is wrong with all of it?
    fn end(&mut self, _picture: &Picture) -> Option<String> {
        None
    }
}

/// A rule that was broken; every document has it in the form that is derived here.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct ScheduleFinding {
    /// The rule: a checker's name.
    pub rule: &'static str,
    /// When it was found, nanoseconds.
    #[serde(rename = "at_ns")]
    pub at: u64,
    /// What is wrong.
    pub what: String,
}

impl ScheduleFinding {
    /// The finding with every `task N` and `VM N` in it named by these functions.
    #[must_use]
    pub fn named(mut self, task: &dyn Fn(usize) -> String, vm: &dyn Fn(usize) -> String) -> Self {
        let mut words: Vec<String> = self.what.split(' ').map(str::to_owned).collect();
        for at in 1..words.len() {
            let name = match words[at - 1].as_str() {
                "task" => task,
                "VM" => vm,
                _ => continue,
            };
            let digits = words[at].trim_end_matches(|c: char| !c.is_ascii_digit());
            if let Ok(number) = digits.parse() {
                words[at] = format!("{}{}", name(number), &words[at][digits.len()..]);
            }
        }
        self.what = words.join(" ");
        self
    }
}

impl fmt::Display for ScheduleFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} us: {}", self.rule, self.at / 1000, self.what)
    }
}

/// A picture and those who look at it.
#[derive(Debug)]
pub struct RuleWatch {
    picture: Picture,
    checkers: Vec<Box<dyn Checker>>,
}

impl RuleWatch {
    /// Judges the schedule of these tasks (the VM of each and its weight) on so many CPUs.
    pub fn new(cpus: usize, tasks: &[(usize, u32)], checkers: Vec<Box<dyn Checker>>) -> Self {
        Self { picture: Picture::new(cpus, tasks), checkers }
    }

    /// Takes in a fact.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn see(&mut self, fact: &Fact) -> Result<(), ScheduleFinding> {
        let found = |rule, what| ScheduleFinding { rule, at: fact.at, what };
        if fact.at < self.picture.now {
            let what = format!("{:?} comes after {} ns", fact.what, self.picture.now);
            return Err(found("order", what));
        }
        if !self.picture.knows(&fact.what) {
            return Err(found("order", format!("{:?}: there is no such task or CPU", fact.what)));
        }
        self.pass(fact.at)?;
        for checker in &mut self.checkers {
            if let Some(what) = checker.fact(&self.picture, fact) {
                return Err(found(checker.name(), what));
            }
        }
        self.picture.draw(fact);
        Ok(())
    }

    /// Time goes on up to `to`, and nothing happens.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn pass(&mut self, to: u64) -> Result<(), ScheduleFinding> {
        if to > self.picture.now {
            for checker in &mut self.checkers {
                if let Some(what) = checker.span(&self.picture, to) {
                    return Err(ScheduleFinding { rule: checker.name(), at: to, what });
                }
            }
            self.picture.pass(to);
        }
        Ok(())
    }

    /// The schedule ends where it is.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn end(&mut self) -> Result<(), ScheduleFinding> {
        for checker in &mut self.checkers {
            if let Some(what) = checker.end(&self.picture) {
                return Err(ScheduleFinding { rule: checker.name(), at: self.picture.now, what });
            }
        }
        Ok(())
    }

    /// What was seen so far.
    pub fn picture(&self) -> &Picture {
        &self.picture
    }
}
