//! What a scenario sets for single VMs of scheduler `instep`, in the words of `[dispatch.vm.NAME]`
//! (docs/dispatch.md): `cosched`, `latency`, `period`, and the home node that placement tells it. Other schedulers do not know these settings and
//! pass them over, so that a scenario can be run under each of them.

use super::{Fault, Guest, load};
use crate::host::Host;
use instep_scx::instep::{Cosched, VmSettings};
use toml::Spanned;

/// Virtual microseconds by which wake-ups of a VM of class `prompt` are preferred.
pub const PROMPT_US: u32 = 2000;

/// The shortest and the longest allocation period, nanoseconds.
pub const PERIODS: [u64; 2] = [1_000_000, 1_000_000_000];

/// The settings of a guest.
pub(super) fn of(guest: &Guest, host: &Host) -> Result<VmSettings, Fault> {
    Ok(VmSettings {
        cosched: said(guest.cosched.as_ref(), "cosched", cosched)?.unwrap_or_default(),
        latency_us: said(guest.latency.as_ref(), "latency", latency)?.unwrap_or(0),
        period: said(guest.period.as_ref(), "period", period)?,
        home: guest.home_node.as_ref().map(|node| home(node, host)).transpose()?,
    })
}

fn home(node: &Spanned<u32>, host: &Host) -> Result<u32, Fault> {
    let what = || format!("home_node: the host has no node {}", node.get_ref());
    let at = host.node_index(*node.get_ref()).and_then(|at| u32::try_from(at).ok());
    at.ok_or_else(|| Fault::at(node.span(), what()))
}

fn said<T>(
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
