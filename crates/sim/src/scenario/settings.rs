//! What a scenario sets for single VMs of scheduler `instep`, in the words of `[dispatch.vm.NAME]`
//! (docs/dispatch.md): `cosched`, `latency`, `period`, and the home node that placement tells it. Other schedulers do not know these settings and
//! pass them over, so that a scenario can be run under each of them. And the cap of a VM, which only the schedulers of Xen
//! know: others refuse it.

use super::{Fault, Guest, Scenario, load};
use crate::host::Host;
use crate::sched::Scheduler;
use instep_scx::instep::{Cosched, VmSettings};
use toml::Spanned;

/// Virtual microseconds by which wake-ups of a VM of class `prompt` are preferred.
pub const PROMPT_US: u32 = 2000;

/// The shortest and the longest allocation period, nanoseconds.
pub const PERIODS: [u64; 2] = [1_000_000, 1_000_000_000];

/// The settings of a guest.
pub(super) fn of(guest: &Guest, host: &Host) -> Result<VmSettings, Fault> {
    Ok(VmSettings {
        cosched: read_setting(guest.cosched.as_ref(), "cosched", cosched)?.unwrap_or_default(),
        latency_us: read_setting(guest.latency.as_ref(), "latency", latency)?.unwrap_or(0),
        period: read_setting(guest.period.as_ref(), "period", period)?,
        home: guest.home_node.as_ref().map(|node| home(node, host)).transpose()?,
    })
}

/// Per cent of a CPU that a guest has at most, for the schedulers of Xen; 0 is no cap.
pub(super) fn cap(guest: &Guest, vcpus: u32) -> Result<u32, Fault> {
    let Some(cap) = &guest.cap else { return Ok(0) };
    let most = vcpus.saturating_mul(100);
    if (1..=most).contains(cap.get_ref()) {
        return Ok(*cap.get_ref());
    }
    let what = format!("cap {}: it is 1 to {most} per cent of a CPU", cap.get_ref());
    Err(Fault::at(cap.span(), what))
}

/// Refuses caps where the scheduler does not keep them: what it gave would be far off.
pub(super) fn check_caps(scenario: &Scenario, scheduler: &dyn Scheduler) -> Result<(), Fault> {
    let cap = scenario.guest.iter().find_map(|guest| guest.get_ref().cap.as_ref());
    let Some(cap) = cap.filter(|_| !scheduler.keeps_caps()) else { return Ok(()) };
    let name = scheduler.name();
    let what =
        format!("cap: scheduler {name} has no caps; leave it out, or use credit or sync-aware");
    Err(Fault::at(cap.span(), what))
}

fn home(node: &Spanned<u32>, host: &Host) -> Result<u32, Fault> {
    let what = || format!("home_node: the host has no node {}", node.get_ref());
    let at = host.node_index(*node.get_ref()).and_then(|at| u32::try_from(at).ok());
    at.ok_or_else(|| Fault::at(node.span(), what()))
}

fn read_setting<T>(
    given: Option<&Spanned<String>>,
    name: &str,
    read: fn(&str) -> Result<T, String>,
) -> Result<Option<T>, Fault> {
    let Some(given) = given else { return Ok(None) };
    read(given.get_ref())
        .map(Some)
        .map_err(|what| Fault::at(given.span(), format!("{name}: {what}")))
}

/// The co-scheduling of this name.
///
/// # Errors
/// When there is none of this name; the known ones are named.
pub fn cosched(name: &str) -> Result<Cosched, String> {
    match name {
        "auto" => Ok(Cosched::Auto),
        "never" => Ok(Cosched::Never),
        "relaxed" => Ok(Cosched::Relaxed),
        _ => Err(format!("`{name}` is none of auto, never, relaxed")),
    }
}

fn latency(name: &str) -> Result<u32, String> {
    match name {
        "normal" => Ok(0),
        "prompt" => Ok(PROMPT_US),
        _ => Err(format!("`{name}` is none of normal, prompt")),
    }
}

fn period(text: &str) -> Result<u64, String> {
    let ns = u64::try_from(load::duration(text)?.as_nanos()).unwrap_or(u64::MAX);
    let [least, most] = PERIODS;
    if (least..=most).contains(&ns) {
        return Ok(ns);
    }
    Err(format!("{text} is not between 1ms and 1s"))
}
