//! Why something was decided or refused: values with the numbers in them, printed alike by every
//! front end.

use crate::idset::NodeSet;
use crate::units::{Bytes, Milli};
use serde::{Serialize, Serializer};
use std::fmt;

/// A reason. `Display` is one clause without a full stop, such as
/// `best node 1: 2.1GiB of its 3GiB lie there`. Serialized as that text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The policy changes nothing by definition.
    PolicyNone,
    /// The host is nearly idle: a good moment to bring remote memory home.
    IdleHomecoming {
        /// CPU time used by all of the host, in thousandths of a CPU.
        busy: Milli,
        /// What lies elsewhere.
        remote: Bytes,
        /// The home.
        to: NodeSet,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::PolicyNone => write!(f, "policy none leaves everything to the kernel"),
            Reason::IdleHomecoming { busy, remote, to } => write!(
                f,
                "the host uses {busy} CPUs, less than one: {remote} can come home to node {to}"
            ),
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
