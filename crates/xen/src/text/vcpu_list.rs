//! `xl vcpu-list`: one row a vCPU, with its CPU time (to a tenth of a second) and both affinities.

use super::list::MOST_DOMAINS;
use super::{XlSet, XlTable, last_words, lines, seconds};
use crate::error::Error;
use instep_core::units::{CpuId, Nanos};

const COMMAND: &str = "xl vcpu-list";
/// MAX_VIRT_CPUS (xen/include/public/arch-x86/xen.h, 4.17).
pub(crate) const MOST_VCPUS: u32 = 8192;

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuRow {
    /// The domain.
    pub domain: u32,
    /// Its name.
    pub name: String,
    /// The guest's CPU number.
    pub index: u32,
    /// The CPU it runs on or ran on last; `None` for a vCPU that the guest has not started.
    pub cpu: Option<CpuId>,
    /// CPU time since the domain was made.
    pub time: Nanos,
    /// Where it may run.
    pub hard: XlSet<CpuId>,
    /// Where it prefers to run.
    pub soft: XlSet<CpuId>,
}

/// Reads it, in its order.
///
/// # Errors
/// The heading is another (Xen before 4.5 has no soft affinity), or no row fits it.
pub fn parse(text: &str) -> Result<XlTable<Vec<VcpuRow>>, Error> {
    let mut lines = lines(text);
    let is_known =
        |line: &str| line.starts_with("Name") && line.ends_with("Affinity (Hard / Soft)");
    if !lines.next().is_some_and(|(_, line)| is_known(line.trim_end())) {
        return Err(Error::output(COMMAND, 1, text, "the heading Name ... Affinity (Hard / Soft)"));
    }
    XlTable::read(COMMAND, lines, "a vCPU's row under the heading", row)
}

fn row(line: &str) -> Option<VcpuRow> {
    let (rest, soft) = line.rsplit_once(" / ")?;
    let (name, [id, index, cpu, state, time, hard]) = last_words(rest)?;
    let cpu = match cpu {
        "-" => None,
        number => Some(CpuId(number.parse().ok()?)),
    };
    if state.len() != 3 {
        return None;
    }
    Some(VcpuRow {
        domain: id.parse().ok().filter(|id| *id < MOST_DOMAINS)?,
        name: name.to_owned(),
        index: index.parse().ok().filter(|index| *index < MOST_VCPUS)?,
        cpu,
        time: Nanos(seconds(time)?),
        hard: XlSet::parse(hard)?,
        soft: XlSet::parse(soft)?,
    })
}
