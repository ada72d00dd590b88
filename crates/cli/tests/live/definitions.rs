//! Definitions of VMs in a file system whose process does not answer, as `/etc/pve` when pmxcfs of Proxmox hangs.

use super::common::{Started, binary, list};
use super::stage::Stage;
use instep_lab::command;
use instep_madehost::skip;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Mounts a file system on /etc/pve, in a mount namespace, that nobody answers for.
const HUNG: &str = "
mount -t overlay -o lowerdir=$LOWER:/etc none /etc
exec 9<>/dev/fuse
mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0 hung /etc/pve
exec \"$@\"
";

/// QEMU with the command line of a VM of Proxmox, whose own QEMU has an option `-id`. Here `-id` is the name of a log
/// file, and `104` a disk.
struct Vm(Child);

impl Vm {
    fn start(stage: &Stage) -> Self {
        let folder = stage.file("var/run/qemu-server");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("104"), [0; 512]).unwrap();
        let mut qemu = Command::new(instep_lab::host::emulator::QEMU);
        qemu.args(["-name", &format!("pve-{},debug-threads=on", std::process::id())])
            .args(["-smp", "2", "-m", "32", "-accel", "tcg,thread=multi", "-D", "-id", "104"])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-pidfile"])
            .arg(folder.join("104.pid"))
            .current_dir(&folder);
        qemu.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command::die_with_parent(&mut qemu).spawn().unwrap())
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn scan_does_not_wait_for_a_file_system_that_hangs() {
    if !rustix::process::geteuid().is_root() {
        return skip::note("only root can mount a file system");
    }
    let Some(stage) = Stage::new() else { return };
    fs::create_dir_all(stage.file("lower/pve")).unwrap();
    let hung = |program: &str, args: &[&str]| {
        let mut command = binary("unshare");
        command.args(["--mount", "sh", "-e", "-c", HUNG, "sh", program]).args(args);
        Started::new(command.env("LOWER", stage.file("lower"))).end()
    };
    let tried = hung("timeout", &["-s", "KILL", "1", "ls", "/etc/pve/qemu-server"]);
    if tried.code != Some(137) && tried.code.is_some() {
        return skip::note(&format!("no file system can hang here: {}", tried.all()));
    }
    let vm = Vm::start(&stage);
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let begun = Instant::now();
        let status = hung(env!("CARGO_BIN_EXE_instep"), &["status", "--json", "--window", "10ms"]);
        let took = begun.elapsed();
        let status = status.json();
        let of_vm = list(&status, "vms").iter().find(|found| found["pid"] == vm.0.id());
        if of_vm.is_some_and(|vm| list(vm, "vcpus").len() == 2) {
            let warnings = status["warnings"].to_string();
            assert_eq!(warnings.matches("/etc/pve does not answer").count(), 1, "{status}");
            assert!(took < Duration::from_secs(20), "{took:?}");
            return;
        }
        assert!(Instant::now() < end, "the VM's vCPUs are not found: {status}");
    }
}
