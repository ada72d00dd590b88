//! Guests of an emulated Xen host: the shell scripts that start PV domains in dom0 and end them, and what a
//! scenario of such a host cannot ask for.
//!
//! Pure: plans in, scripts out. A domain has the same first program as a KVM guest, and its console is in
//! dom0's /run/lab, too: `NAME.console` leads to what xenconsoled writes, `NAME.qemu` has what `xl` said.

use super::{GuestPlan, Scenario, Start, Step};
use crate::host::image::{GUEST_KERNEL, guest_archive};
use crate::host::xen;
use data_encoding::BASE64;

/// The kernel's command line in a domain; `guests.rs` tells why each word is there.
const COMMAND_LINE: &str = "console=hvc0 rdinit=/init quiet panic=-1 mitigations=off audit=0 apparmor=0 \
                            nowatchdog cryptomgr.notests init_on_alloc=0";

/// Refuses what the guests and steps of a Xen host cannot be.
///
/// # Errors
/// A message that names the guest or the step, and what to do instead.
pub(super) fn check(scenario: &Scenario) -> Result<(), String> {
    for guest in &scenario.guest {
        let asked = [
            ("process", guest.process),
            ("hugepages", guest.hugepages),
            ("weight", guest.weight.is_some()),
            ("programs", !guest.programs.is_empty()),
            ("start", guest.start != Start::default()),
        ];
        if let Some((word, _)) = asked.iter().find(|(_, asked)| *asked) {
            let what = format!("guest {}: a domain of Xen has no `{word}`", guest.name);
            return Err(format!("{what}; a step may run xl instead, such as xl vcpu-pin"));
        }
    }
    let asked: u64 = scenario.guest.iter().map(|guest| guest.memory_mib).sum();
    let most = xen::memory_for_domains(&scenario.host);
    if asked > most {
        return Err(format!(
            "host: all domains together have {asked} MiB; Xen has {most} for them"
        ));
    }
    let is_of_kvm =
        |step: &&Step| step.observe.is_some() || step.offline.is_some() || step.online.is_some();
    if let Some(index) = scenario.step.iter().position(|step| is_of_kvm(&step)) {
        let what = "observe, offline and online need a KVM host";
        return Err(format!("step {}: {what}; run xl and check what it prints", index + 1));
    }
    Ok(())
}

/// The script that starts a domain; it returns when Xen runs it. Xen places it: no CPU is named.
pub(super) fn start(guest: &GuestPlan) -> String {
    let (name, load) = (&guest.name, BASE64.encode(guest.load.as_bytes()));
    let (vcpus, memory, touch) = (guest.vcpus, guest.memory_mib, guest.touch_mib);
    format!(
        "cd /run/lab\nrm -f guest-{name}.log\nln -sf guest-{name}.log {name}.console\n\
         cat >{name}.cfg <<'END'\n\
         name = \"{name}\"\ntype = \"pv\"\nkernel = \"/{GUEST_KERNEL}\"\nramdisk = \"/{}\"\n\
         memory = {memory}\nvcpus = {vcpus}\non_crash = \"destroy\"\non_reboot = \"destroy\"\n\
         extra = \"{COMMAND_LINE} touch={touch} load={load}\"\nEND\n\
         xl create -q {name}.cfg >{name}.qemu 2>&1 || {{ cat {name}.qemu >&2; exit 1; }}\n",
        guest_archive(None)
    )
}

/// The script by which a step ends a domain, which must be there. Its console stays, with what its load said.
pub(super) fn destroy(name: &str) -> String {
    format!("xl destroy {name}\n")
}

/// The script that ends a domain, which may have gone by itself; its console is kept beside the next one's.
pub(super) fn end(name: &str) -> String {
    format!(
        "cd /run/lab\n! xl domid {name} >/dev/null 2>&1 || xl destroy {name} || exit 1\n\
         cat guest-{name}.log >>{name}.hung 2>/dev/null; rm -f guest-{name}.log {name}.console\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const HOST: &str =
        "about = 'x'\n[host]\nhypervisor = 'xen'\nnodes = 2\ncores = 2\nmemory = '2GiB'\n";
    const GUEST: &str = "[[guest]]\nname = 'a'\nvcpus = 2\nmemory = '128MiB'\n";

    #[test]
    fn a_domain_is_created_with_its_load_and_no_cpus() {
        let load = "load = \"echo 'a\\\" b'\"\n";
        let scenario = Scenario::parse(&format!("{HOST}{GUEST}{load}"), "x").unwrap();
        let script = start(&scenario.guest[0]);
        let coded = BASE64.encode(b"echo 'a\" b'");
        for part in ["vcpus = 2\n", "memory = 128\n", "touch=0", &format!("load={coded}\"\n")] {
            assert!(script.contains(part), "{part}: {script}");
        }
        assert!(!script.contains("\ncpus"), "{script}");
    }

    #[test]
    fn what_only_kvm_guests_have_is_refused_by_name() {
        for (rest, word) in [
            (format!("{GUEST}weight = 100\n"), "guest a: a domain of Xen has no `weight`"),
            (format!("{GUEST}hugepages = true\n"), "no `hugepages`"),
            (format!("{GUEST}process = true\nload = 'x'\n"), "no `process`"),
            (format!("{GUEST}start = {{ memory_node = 1 }}\n"), "no `start`"),
            (format!("{GUEST}programs = ['perf']\n"), "no `programs`"),
            (GUEST.replace("128", "600"), "have 600 MiB; Xen has 512"),
            (format!("{GUEST}[[step]]\nobserve = 'x'\n"), "step 1: observe"),
            (format!("{GUEST}[[step]]\nwait = '1s'\n[[step]]\noffline = 1\n"), "step 2: observe"),
        ] {
            let said = Scenario::parse(&format!("{HOST}{rest}"), "x").unwrap_err();
            assert!(said.contains(word), "{rest}: {said}");
            let kvm = HOST.replace("hypervisor = 'xen'\n", "");
            assert!(Scenario::parse(&format!("{kvm}{rest}"), "x").is_ok(), "{rest}");
        }
    }

    /// The script itself, run here with a made `xl`: a domain that died at boot is started again all the same.
    #[test]
    fn a_domain_that_is_gone_is_no_failure_and_one_that_stays_is() {
        let dir = tempfile::tempdir().unwrap();
        let ran = |xl: &str| {
            let script = end("a").replace("/run/lab", &dir.path().display().to_string());
            let script = format!("xl() {{ {xl}; }}\n{script}");
            Command::new("sh").args(["-c", &script]).output().unwrap().status.success()
        };
        assert!(ran("false"), "no such domain");
        assert!(ran("true"), "there is one, and it is destroyed");
        assert!(!ran("[ $1 = domid ]"), "it cannot be destroyed");
    }

    #[test]
    fn an_ended_domain_leaves_its_console_for_a_failure() {
        assert_eq!(destroy("a"), "xl destroy a\n", "what a step ends keeps its console's place");
        let script = end("a");
        assert!(script.contains("xl destroy a") && script.contains(">>a.hung"), "{script}");
    }
}
