//! The accelerator of an emulated host: this machine's KVM, or software.
//!
//! That /dev/kvm can be opened proves nothing: KVM may lack what a kernel needs, or emulate it slowly. So the kernel of the
//! host is booted by it once, as far as it comes without a root file system. The guests of the host need nested
//! virtualization, too.

use super::emulator::{Emulator, INSTALL_QEMU};
use super::kernel::HostKernel;
pub use super::machine::AccelKind;
use super::machine::{Clock, HostMachine};
use crate::command::{self, read_lossy};
use crate::error::Error;
use crate::process::Process;
use crate::stop::{Stop, TICK};
use crate::workdir;
use schemars::JsonSchema;
use serde::Serialize;
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How long the kernel may take to boot by KVM: on hardware a second.
const BOOTS: Duration = Duration::from_secs(20);
/// What a kernel without a root file system says at the end.
const BOOTED: &str = "Unable to mount root fs";
/// QEMU's words when KVM cannot go on.
const FAILED: &str = "KVM internal error";

/// What a user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccelChoice {
    /// KVM where it boots the host's kernel, else software.
    #[default]
    Auto,
    /// KVM or nothing.
    Kvm,
    /// Software.
    Tcg,
}

/// The accelerator of a host, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Accel {
    /// Which.
    pub kind: AccelKind,
    /// Why this one.
    pub why: String,
}

impl Accel {
    /// Software, for this reason.
    pub fn software(why: &str) -> Self {
        Self { kind: AccelKind::Tcg, why: why.to_owned() }
    }

    /// In a few words.
    pub fn name(&self) -> &'static str {
        match self.kind {
            AccelKind::Kvm => "KVM",
            AccelKind::Tcg => "software emulation",
        }
    }
}

/// The accelerator of `machine`. `kvm` has the reason if this machine's KVM cannot run it.
///
/// # Errors
/// When KVM is asked for and cannot.
pub fn choose(
    choice: AccelChoice,
    machine: &HostMachine,
    kvm: &Result<(), String>,
) -> Result<Accel, Error> {
    let unfit = if machine.is_xen() {
        Some("a Xen host is emulated")
    } else if machine.clock == Clock::Counted {
        Some("a counted clock needs emulation")
    } else {
        kvm.as_ref().err().map(String::as_str)
    };
    match (choice, unfit) {
        (AccelChoice::Tcg, _) => Ok(Accel::software("asked for by --accel tcg")),
        (_, None) => Ok(Accel {
            kind: AccelKind::Kvm,
            why: "this machine's KVM boots its kernel".to_owned(),
        }),
        (AccelChoice::Auto, Some(why)) => Ok(Accel::software(why)),
        (AccelChoice::Kvm, Some(why)) => Err(Error::Refused {
            what: format!("--accel kvm is not possible: {why}"),
            next: "leave it out for software emulation".to_owned(),
        }),
    }
}

/// Whether this machine's KVM boots a host with this kernel, which runs guests in turn; else why not.
///
/// # Errors
/// When `stop` is raised.
pub fn probe(
    emulator: &Emulator,
    kernel: &HostKernel,
    stop: &Stop,
) -> Result<Result<(), String>, Error> {
    if let Err(why) = check_nested(Path::new("/"), kernel) {
        return Ok(Err(why));
    }
    let booted = boot(emulator, &kernel.image, stop);
    stop.check()?;
    Ok(booted)
}

/// Whether guests could run in a host that KVM runs: by what `root` has of this machine, and the kernel's modules.
fn check_nested(root: &Path, kernel: &HostKernel) -> Result<(), String> {
    if !root.join("dev/kvm").exists() {
        return Err("this machine has no /dev/kvm".to_owned());
    }
    let is_on = |name: &str| {
        let file = root.join(format!("sys/module/{name}/parameters/nested"));
        fs::read_to_string(file).is_ok_and(|text| matches!(text.trim(), "1" | "Y"))
    };
    let module = ["kvm-amd", "kvm-intel"].into_iter().find(|name| is_on(&name.replace('-', "_")));
    let Some(module) = module else {
        return Err("this machine's KVM has no nested virtualization".to_owned());
    };
    let own = format!("{module}.ko");
    if !kernel.modules.is_empty() && !kernel.modules.iter().any(|path| path.ends_with(&own)) {
        return Err(format!("the lab's kernel was fetched without {module} (instep lab clean)"));
    }
    Ok(())
}

fn boot(emulator: &Emulator, image: &Path, stop: &Stop) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    let dir = workdir::create("accel").map_err(text)?;
    let (console, log) = (dir.path().join("console"), dir.path().join("qemu.log"));
    let file = File::create(&log).map_err(|error| error.to_string())?;
    let mut qemu = emulator.command();
    qemu.args(["-machine", "pc", "-accel", "kvm", "-cpu", "host", "-m", "512M"]);
    qemu.arg("-kernel").arg(image).args(["-append", "console=ttyS0 panic=-1"]);
    qemu.arg("-serial").arg(format!("file:{}", console.display()));
    qemu.args(["-display", "none", "-nodefaults", "-no-user-config", "-no-reboot"]);
    qemu.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    let process = Process::spawn(&mut qemu, BOOTS, INSTALL_QEMU).map_err(text)?;
    let end = Instant::now() + BOOTS;
    while !stop.raised() && Instant::now() < end {
        let ended = process.ended().is_some();
        if read_lossy(&console).contains(BOOTED) {
            return Ok(());
        }
        let said = read_lossy(&log);
        if ended || said.contains(FAILED) {
            let said = command::last_lines(&said, 1);
            return Err(format!("this machine's KVM does not boot the lab's kernel: {said}"));
        }
        std::thread::sleep(TICK);
    }
    Err(format!("this machine's KVM did not boot the lab's kernel in {} s", BOOTS.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn machine(more: &str) -> HostMachine {
        toml::from_str(&format!("cores = 2\nmemory = '2GiB'\n{more}")).unwrap()
    }

    #[test]
    fn kvm_is_used_where_it_boots_else_software_with_the_reason() {
        let (boots, fails) = (Ok(()), Err("it dies".to_owned()));
        let of = |choice, kvm| choose(choice, &machine(""), kvm).map(|chosen| chosen.kind);
        assert_eq!(of(AccelChoice::Auto, &boots).unwrap(), AccelKind::Kvm);
        assert_eq!(of(AccelChoice::Kvm, &boots).unwrap(), AccelKind::Kvm);
        assert_eq!(of(AccelChoice::Tcg, &boots).unwrap(), AccelKind::Tcg);
        assert_eq!(
            choose(AccelChoice::Auto, &machine(""), &fails).unwrap(),
            Accel::software("it dies")
        );
        let refused = of(AccelChoice::Kvm, &fails).unwrap_err().to_string();
        assert!(refused.contains("--accel kvm") && refused.contains("it dies"), "{refused}");
    }

    #[test]
    fn hosts_that_need_emulation_are_emulated_though_kvm_boots() {
        for more in ["clock = 'counted'", "hypervisor = 'xen'"] {
            let chosen = choose(AccelChoice::Auto, &machine(more), &Ok(())).unwrap();
            assert_eq!(chosen.kind, AccelKind::Tcg, "{more}");
            assert!(choose(AccelChoice::Kvm, &machine(more), &Ok(())).is_err(), "{more}");
        }
    }

    /// A QEMU that does this, with the path of the console as `$console`.
    fn qemu(dir: &Path, does: &str) -> Emulator {
        let program = dir.join("qemu");
        let find = "for word; do case $word in file:*) console=${word#file:} ;; esac; done";
        fs::write(&program, format!("#!/bin/sh\n{find}\n{does}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Emulator { program, data: Vec::new(), version: "10.0".to_owned() }
    }

    #[test]
    fn kernel_that_finds_no_root_file_system_has_booted() {
        let dir = tempfile::tempdir().unwrap();
        let booted = |does: &str| boot(&qemu(dir.path(), does), Path::new("/k"), &Stop::never());
        let says = format!("echo 'VFS: {BOOTED} on unknown-block(0,0)' >$console; exec sleep 60");
        assert_eq!(booted(&says), Ok(()));
        let dies = booted("echo 'cannot set MSR' >&2; exit 1").unwrap_err();
        assert!(dies.ends_with("does not boot the lab's kernel: cannot set MSR"), "{dies}");
        let stands = booted(&format!("echo '{FAILED}. Suberror: 1' >&2; exec sleep 60"));
        assert!(stands.unwrap_err().contains("Suberror: 1"));
    }

    #[test]
    fn kvm_without_nested_virtualization_or_a_module_is_not_tried() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = |modules: &[&str]| HostKernel {
            release: "7.2".to_owned(),
            image: "/k".into(),
            config: None,
            modules: modules.iter().map(Into::into).collect(),
            xen: None,
        };
        let checked = |modules: &[&str]| check_nested(dir.path(), &kernel(modules));
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(checked(&[]).unwrap_err().contains("/dev/kvm"));
        write("dev/kvm", "");
        write("sys/module/kvm_intel/parameters/nested", "N\n");
        assert!(checked(&[]).unwrap_err().contains("nested"));
        write("sys/module/kvm_intel/parameters/nested", "Y\n");
        assert!(checked(&["/m/kvm.ko", "/m/kvm-amd.ko"]).unwrap_err().contains("kvm-intel"));
        assert_eq!(checked(&["/m/kvm.ko", "/m/kvm-intel.ko"]), Ok(()));
        assert_eq!(checked(&[]), Ok(()), "built in");
    }
}
