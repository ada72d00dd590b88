//! Which hypervisor a command looks at: KVM on a Linux host, or Xen from its control domain. Chosen by what is there,
//! or by `--hypervisor`.

use crate::args::Hypervisor;
use anyhow::Context as _;
use instep_xen::Source;
use instep_xen::detect::{XenPresence, detect_xen};
use std::path::Path;

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
    anyhow::ensure!(!is_xen, "`instep {command}` does not work on Xen hosts; {instead}");
    Ok(())
}
