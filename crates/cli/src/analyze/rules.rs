//! The rules of `instep analyze --check`: their names, and what they promise of a recorded schedule.

use anyhow::Context as _;
use instep_check::{Promises, Share};
use instep_core::idset::CpuSet;

const MS: u64 = 1_000_000;
/// How long a woken thread may wait on a CPU that idles: interrupts between CPUs of a host that is
/// itself a guest take that long.
const WOKEN: u64 = 20 * MS;
/// How long a CPU may idle beside a thread that may use it: as the simulator has it for a tick of
/// 4 ms.
const IDLE: u64 = 132 * MS;
const TURN: u64 = 30 * MS;

/// Those that are kept always.
const ALWAYS: [&str; 2] = ["conserved", "affinity"];
/// Those that are asked for by name.
const BY_NAME: [&str; 5] = [WOKEN_RULE, IDLE_RULE, WAIT_RULE, APART_RULE, SHARE_RULE];
const WOKEN_RULE: &str = "woken";
const IDLE_RULE: &str = "idle";
const WAIT_RULE: &str = "wait";
const APART_RULE: &str = "apart";
const SHARE_RULE: &str = "share";

/// Which rules are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules(Vec<&'static str>);

impl Rules {
    /// From names between commas.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let mut asked = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let known = BY_NAME.into_iter().find(|known| *known == name);
            asked
                .push(known.with_context(|| {
                    format!("--check {name}: known are {}", BY_NAME.join(", "))
                })?);
        }
        Ok(Self(BY_NAME.into_iter().filter(|name| asked.contains(name)).collect()))
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains(&name)
    }

    /// Whether siblings are to be on CPUs of their own.
    pub(super) fn is_apart(&self) -> bool {
        self.has(APART_RULE)
    }

    /// What a schedule of so many VMs is held to.
    pub(super) fn promises(&self, vms: usize) -> Promises {
        let among = Some(vms);
        let share = Share { percent: 25, floor: 8, slack: TURN, among, ..Share::default() };
        Promises {
            idle: self.has(IDLE_RULE).then_some(IDLE),
            pinned: true,
            woken: self.has(WOKEN_RULE).then_some(WOKEN),
            turn: self.has(WAIT_RULE).then_some(TURN),
            apart: self.is_apart(),
            share: self.has(SHARE_RULE).then_some(share),
            ..Promises::NONE
        }
    }

    /// The names of all that it is held to.
    pub(super) fn names(&self) -> Vec<&'static str> {
        ALWAYS.into_iter().chain(self.0.iter().copied()).collect()
    }
}

/// `NAME=CPUS`.
pub(super) fn allowed(text: &str) -> anyhow::Result<(String, CpuSet)> {
    let form = || format!("--allowed {text}: takes NAME=CPUS, such as db=0-3,8");
    let (name, cpus) = text.rsplit_once('=').with_context(form)?;
    let cpus = CpuSet::parse_list(cpus).ok().filter(|cpus| !cpus.is_empty());
    Ok((name.to_owned(), cpus.with_context(form)?))
}
