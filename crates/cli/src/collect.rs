//! `instep collect`: two copies of what Instep reads of this host, for `plan --root` elsewhere.

mod xen;

use crate::args::CollectArgs;
use crate::text::plural;
use crate::{Outcome, hypervisor, print, print_json, tell};
use anyhow::Context as _;
use instep_host::Root;
use instep_host::collect::{HostCopy, WriteError, take, write};
use instep_host::system::check_pid_namespace;
use rustix::fs::{Access, access};
use schemars::JsonSchema;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// `instep.collect/1`.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Collection")]
pub(crate) struct CollectJson<'a> {
    #[schemars(extend("const" = "instep.collect/1"))]
    schema: &'static str,
    before: PathBuf,
    after: PathBuf,
    /// VMs whose vCPU threads the copy tells.
    vms: usize,
    vcpus: usize,
    /// VMs whose vCPU threads it does not tell.
    opaque: usize,
    /// VMs of which some file could not be read for lack of privilege.
    denied: usize,
    files: usize,
    warnings: &'a [String],
}

pub(crate) fn command(args: &CollectArgs) -> anyhow::Result<Outcome> {
    check_pid_namespace()?;
    let dir = args.dir.as_path();
    check_free(dir)?;
    if let Some(source) = hypervisor::xen(args.hypervisor, None)? {
        return xen::command(args, &source);
    }
    // Until there is something to remove a signal ends this at once.
    let before = take(&Root::live(), false)?;
    std::thread::sleep(args.window);
    let after = take(&Root::live(), true)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot wait for signals")?;
    }
    let files = match write(dir, &[("before", &before), ("after", &after)], &stop) {
        Ok(files) => files,
        Err(stopped @ WriteError::Stopped) => {
            tell(&stopped.to_string());
            return Ok(Outcome::Finding);
        }
        Err(error) => return Err(error.into()),
    };
    if args.json {
        let HostCopy { vms, vcpus, opaque, denied, ref warnings, .. } = after;
        let [before, after] = ["before", "after"].map(|name| dir.join(name));
        let schema = "instep.collect/1";
        print_json(&CollectJson {
            schema,
            before,
            after,
            vms,
            vcpus,
            opaque,
            denied,
            files,
            warnings,
        })?;
        return Ok(Outcome::Fine);
    }
    print(&summary(dir, &after, files))?;
    for warning in &after.warnings {
        tell(&format!("warning: {warning}"));
    }
    if after.denied > 0 {
        tell(&format!(
            "warning: {} could not be read completely for lack of privilege; run it as root, or with \
             CAP_SYS_PTRACE",
            plural(after.denied, "VM")
        ));
    }
    Ok(Outcome::Fine)
}

/// Refuses a folder that holds something, before time is spent.
fn check_free(dir: &Path) -> anyhow::Result<()> {
    let place = match fs::read_dir(dir) {
        Ok(mut entries) => {
            anyhow::ensure!(
                entries.next().is_none(),
                "{} is not empty, so nothing was copied; name an empty folder, or one that is not there \
                 yet",
                dir.display()
            );
            dir
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot copy into {}", dir.display()));
        }
    };
    access(place, Access::WRITE_OK)
        .with_context(|| format!("cannot write to the folder {}", place.display()))
}

/// What was copied, and what to do with it.
fn summary(dir: &Path, after: &HostCopy, files: usize) -> String {
    let mut text = match after.vms + after.opaque {
        0 => "No VM runs on this host; its topology and its load were copied".to_owned(),
        vms => format!("Copied {} with {}", plural(vms, "VM"), plural(after.vcpus, "vCPU")),
    };
    text.push_str(&format!(" ({} in {}).\n", plural(files, "file"), dir.display()));
    if after.opaque > 0 {
        text.push_str(&format!(
            "The copy does not show which threads are the vCPUs of {} of them; `instep status` on it \
             says why.\n",
            after.opaque
        ));
    }
    let dir = dir.display();
    text.push_str(&format!("Read it with: instep plan --root {dir}/after --before {dir}/before\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::{Bytes, NodeId};
    use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm};

    fn summary_of(vms: &[(Vmm, bool)]) -> String {
        let dir = instep_madehost::scratch_dir().unwrap();
        let mut made = MadeHost::new(HostSpec::new(1, 2));
        for (vmm, is_named) in vms {
            let mut vm = VmSpec::new("db", *vmm, 2, NodeId(0), Bytes::from_mib(64));
            (vm.thread_names, vm.debugfs) = (*is_named, *is_named);
            made.push(vm);
        }
        made.write(dir.path()).unwrap();
        summary(Path::new("d"), &take(&Root::at(dir.path()), true).unwrap(), 7)
    }

    #[test]
    fn host_without_vms_is_copied_and_it_is_reported() {
        assert_eq!(
            summary_of(&[]),
            "No VM runs on this host; its topology and its load were copied (7 files in d).\n\
             Read it with: instep plan --root d/after --before d/before\n"
        );
    }

    #[test]
    fn vms_whose_vcpus_only_qmp_tells_are_counted() {
        let text = summary_of(&[(Vmm::QemuTcg, true), (Vmm::QemuTcg, false)]);
        assert!(text.starts_with("Copied 2 VMs with 2 vCPUs (7 files in d)."), "{text}");
        assert!(text.contains("does not show which threads are the vCPUs of 1 of them"), "{text}");
    }
}
