//! Which hypervisor a command looks at: KVM on a Linux host, or Xen from its control domain. Chosen by what is there,
//! or by `--hypervisor`.

use crate::args::Hypervisor;
use crate::observe::Observed;
use anyhow::Context as _;
use instep_agent::xen::{self, DomainObservation, Known, Memory};
use instep_core::units::Nanos;
use instep_host::discover::Scan;
use instep_xen::apply::Journal;
use instep_xen::detect::{XenPresence, detect_xen};
use instep_xen::scan::Depth;
use instep_xen::{Source, scan};
use std::path::Path;
use std::time::Duration;

/// Where Xen's domains are asked for, `None` on a host that is not to be taken for one of Xen.
///
/// # Errors
/// Xen was named or is there, and cannot be asked.
pub(crate) fn xen(
    named: Option<Hypervisor>,
    copy: Option<&Path>,
) -> anyhow::Result<Option<Source>> {
    let is_named = match named {
        Some(Hypervisor::Kvm) => return Ok(None),
        Some(Hypervisor::Xen) => true,
        None => false,
    };
    if let Some(dir) = copy {
        let has_outputs = dir.join("xen").is_dir();
        anyhow::ensure!(
            has_outputs || !is_named,
            "{} has no folder `xen`, so it is no copy of a Xen host; `instep collect` in the control \
             domain makes one",
            dir.display()
        );
        return Ok(has_outputs.then(|| Source::Copy(dir.to_owned())));
    }
    match detect_xen(Path::new("/")) {
        XenPresence::Control => {}
        _ if !is_named => return Ok(None),
        // Asked for all the same: `xl` will tell what it lacks.
        XenPresence::Guest | XenPresence::Nothing => {}
    }
    let other = "with --hypervisor kvm this is read as a Linux host";
    let source = Source::live();
    Ok(Some(if is_named { source? } else { source.context(other)? }))
}

/// Refuses a command that does not know Xen, where Xen is.
pub(crate) fn refuse_xen(
    named: Option<Hypervisor>,
    copy: Option<&Path>,
    command: &str,
    instead: &str,
) -> anyhow::Result<()> {
    let is_xen = xen(named, copy)?.is_some();
    anyhow::ensure!(!is_xen, "`instep {command}` does not know Xen hosts; {instead}");
    Ok(())
}

/// What was found on a Xen host beside its snapshot.
pub(crate) struct XenSeen {
    pub(crate) scan: instep_xen::XenScan,
    /// *Competing modules* of the window, in millionths of a module.
    pub(crate) competing: u64,
}

/// How a Xen host is looked at.
pub(crate) struct Looking<'a> {
    /// An earlier copy.
    pub(crate) before: Option<&'a Path>,
    /// The time between two copies, where it is given.
    pub(crate) elapsed: Option<Duration>,
    /// How long this host is measured.
    pub(crate) window: Duration,
    /// Where the journal of this host is.
    pub(crate) state: Option<&'a Path>,
    /// What is asked for.
    pub(crate) depth: Depth,
}

/// Looks at a Xen host over a window, or at copies of one.
pub(crate) fn observe(source: &Source, looking: &Looking<'_>) -> anyhow::Result<Observed> {
    let mut warnings = Vec::new();
    let (mut journal, mut before) = (None, None);
    if source.is_live() {
        before = Some(scan::scan(source, Depth::Times)?);
        std::thread::sleep(looking.window);
        journal = self::journal(looking.state, &mut warnings);
    } else if let Some(dir) = looking.before {
        let earlier = Source::Copy(dir.to_owned());
        let scan = scan::scan(&earlier, Depth::Times).context("the copy given with --before")?;
        before = Some(scan);
    }
    let elapsed = looking.elapsed.map(|elapsed| Nanos(elapsed.as_nanos() as u64));
    let known = Known { before: before.as_ref(), elapsed, journal: journal.as_ref() };
    let DomainObservation { snapshot, scan, competing } =
        xen::observe_domains(source, looking.depth, &known, &mut Memory::new())?;
    warnings.extend(snapshot.topology.warnings().iter().cloned());
    warnings.extend(scan.warnings.iter().cloned());
    Ok(Observed {
        snapshot,
        scan: Scan::default(),
        warnings,
        since_start: before.is_none(),
        journal: None,
        seen: None,
        xen: Some(XenSeen { scan, competing }),
    })
}

/// What Instep changed on this Xen host, if that can be read.
pub(crate) fn journal(named: Option<&Path>, warnings: &mut Vec<String>) -> Option<Journal> {
    let state = crate::observe::state_dir(named).ok()?;
    Journal::load(state.path()).unwrap_or_else(|error| {
        warnings.push(format!("original affinities are unknown: {error}"));
        None
    })
}
