//! Why something was decided or refused: values with the numbers in them, printed alike by every
//! front end.

use serde::{Serialize, Serializer};
use std::fmt;

/// A reason. `Display` is one clause without a full stop, such as
/// `best node 1: 2.1GiB of its 3GiB lie there`. Serialized as that text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The policy changes nothing by definition.
    PolicyNone,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::PolicyNone => write!(f, "policy none leaves everything to the kernel"),
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
