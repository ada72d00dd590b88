//! The page as it is open in a browser while the host changes.

use super::browser::Browser;
use super::server::Server;
use super::vm::{Run, Vm, wait_for};
use instep_madehost::skip;
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// The user `nobody`.
const NOBODY: u32 = 65534;

/// The kernel lets a process place another one of the same user only if it has all rights that the other one has.
fn without_right_to_place(command: &mut Command) {
    let drop_right = || Ok(remove_capability_from_bounding_set(CapabilitySet::SYS_NICE)?);
    // SAFETY: it is one system call and takes no memory.
    unsafe { command.pre_exec(drop_right) };
}

/// A run that may place its own user's VM, and not the one of another user, which it sees.
fn run_with_few_rights(own: &Vm, other: &Vm) -> Run {
    let config = own.file("instep.toml");
    fs::write(&config, "[discover]\nusers = [\"root\", \"nobody\"]\n").unwrap();
    let mut run = own.mending(&["--vm", &other.name, "--config", config.to_str().unwrap()]);
    without_right_to_place(&mut run);
    own.placed_by(run.stdout(Stdio::null()))
}

/// The text of the part with this label in the row of a VM.
fn part(page: &mut Browser, vm: &Vm, label: &str) -> String {
    let find = |all: &str, of: &str, text: &str| {
        format!("[...{all}.querySelectorAll('{of}')].find(one => one.textContent === '{text}')")
    };
    let row = format!("document.getElementById('vm-{}')", vm.name);
    let found = format!("{}.parentNode.innerText", find(&row, ".label", label));
    page.value(&found).as_str().unwrap_or_default().to_owned()
}

#[test]
fn open_page_follows_the_host_and_links_to_vms() {
    if !skip::may_take_long() {
        return;
    }
    if !geteuid().is_root() {
        return skip::note("a VM of another user takes root");
    }
    let Some(own) = Vm::start_with("own", without_right_to_place) else { return };
    let as_nobody = |qemu: &mut Command| {
        qemu.uid(NOBODY).gid(NOBODY);
    };
    let Some(other) = Vm::start_with("other", as_nobody) else { return };
    let mut run = run_with_few_rights(&own, &other);
    let server = Server::start(&own.state());
    let dir = tempfile::tempdir().unwrap();
    // A link to a VM, as one sends it to others.
    let address = format!("http://{}/#vm-{}", server.address, other.name);
    let Some(mut page) = Browser::open(dir.path(), &address) else { return };
    wait_for("both VMs on the live page", || {
        let text = page.text();
        text.contains("Live.") && text.contains(&own.name) && text.contains(&other.name)
    });
    let chosen = "document.querySelector('.chosen').id";
    assert_eq!(page.value(chosen), format!("vm-{}", other.name));

    // The plan is beside the present.
    let [present, plan] = ["Present", "Plan"].map(|label| part(&mut page, &other, label));
    assert!(present.contains(&format!("CPUs {}", other.cpus()[0])), "{present}");
    assert!(plan.contains("CPUs ") && plan.contains(": cannot set the CPUs of thread "), "{plan}");
    let [present, plan] = ["Present", "Plan"].map(|label| part(&mut page, &own, label));
    assert!(present.contains("(found\u{a0}with\u{a0}0)"), "{present}");
    assert!(!plan.contains("cannot"), "{plan}");
    for width in [400, 1600] {
        page.resize(width);
        let widest = page.value("document.documentElement.scrollWidth").as_u64().unwrap();
        assert!(widest <= u64::from(width), "{widest} of {width}");
    }

    // A change leads to its VM.
    page.value(&format!(
        "[...document.querySelectorAll('#changes a')].find(one => one.textContent === '{}').click()",
        own.name
    ));
    wait_for("the other row", || page.value(chosen) == format!("vm-{}", own.name));
    // Nobody loads the page again: it shows that a VM ended, and that the run did.
    page.value("window.isTheSame = true");
    drop(other);
    wait_for("one row", || page.value("document.querySelectorAll('.vm').length") == 1);
    assert_eq!(page.value(chosen), format!("vm-{}", own.name), "it is still chosen");
    assert_eq!(run.terminate(), Some(0));
    wait_for("the end of the run", || page.text().contains("systemctl start instep"));
    assert_eq!(page.value("document.querySelectorAll('.vm').length"), 0);
    assert_eq!(page.value("window.isTheSame"), true);
}
