//! What `instep profile --scenario` asks of the simulator, and what that answers: JSON, through the standard
//! input and output of `instep-lab imitate`.

use instep_core::profile::behaviour::Behaviour;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The hidden command of `instep-lab` that answers.
pub const COMMAND: &str = "imitate";

/// A program that was profiled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// What was profiled, for people.
    pub what: String,
    /// The synthetic program that resembles it.
    pub program: Behaviour,
    /// Threads that work at the same time.
    pub threads: u32,
    /// How often it blocks, times a second.
    pub blocks_per_s: f64,
    /// The part of the CPUs that it shall be left, 0 to 1.
    pub share: f64,
}

/// The scenario for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Imitated {
    /// The scenario's text.
    pub scenario: String,
    /// What the simulator makes of its program; nothing when that cannot be simulated.
    pub imitation: Option<Imitation>,
}

/// What the simulator makes of a synthetic program.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
pub struct Imitation {
    /// The program.
    pub load: String,
    /// How many of its threads can run at the same time, on average.
    pub parallelism: f64,
    /// How often it blocks, times a second.
    pub blocks_per_s: f64,
}
