//! Definitions in copies of hosts: whose they are, when they are read again, and damage to them.

use super::*;
use crate::discover::{Scan, ScanOptions, Scanner};
use instep_core::units::{Bytes, NodeId};
use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

const WEB: &str = include_str!("fixtures/libvirt-web.xml");
const DB: &str = include_str!("fixtures/proxmox-104.conf");

/// A copy of a host with the VM `web` of libvirt and `db` of Proxmox.
struct Copy {
    dir: tempfile::TempDir,
    scanner: Scanner,
}

impl Copy {
    fn new() -> Self {
        let dir = instep_madehost::scratch_dir().unwrap();
        let mut made = MadeHost::new(HostSpec::new(2, 4));
        for (name, vmm) in [("web", Vmm::Libvirt), ("db", Vmm::Proxmox)] {
            made.push(VmSpec::new(name, vmm, 2, NodeId(0), Bytes::from_mib(64)));
        }
        made.write(dir.path()).unwrap();
        for folder in ["run/libvirt/qemu", "run/qemu-server", "etc/pve/qemu-server"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let scanner = Scanner::new(Root::at(dir.path()), ScanOptions::once());
        Self { dir, scanner }
    }

    fn scan(&mut self) -> Scan {
        self.scanner.scan().unwrap()
    }

    /// What the definition of this VM says, each setting as `key=value`, and what is wrong with it.
    fn settings_and_problems(&mut self, name: &str) -> (Vec<String>, Vec<String>) {
        let scan = self.scan();
        let vm = scan.vms.iter().find(|vm| vm.name == name).unwrap();
        let Definition { settings, problems, .. } = vm.definition.clone();
        let each = settings.iter().map(|setting| format!("{}={}", setting.key, setting.value));
        (each.collect(), problems)
    }

    /// The status of `web` as libvirt would write it for the process that runs.
    fn status(&mut self) -> String {
        let scan = self.scan();
        let vm = scan.vms.iter().find(|vm| vm.name == "web").unwrap();
        let uuid = vm.uuid.as_deref().unwrap();
        WEB.replace("5b2f8c1e-7a44-4d0b-9a53-0f6f3f1c2e77", uuid)
            .replace("'4711'", &format!("'{}'", vm.pid))
    }

    fn number(&mut self) -> u32 {
        self.scan().vms.iter().find(|vm| vm.name == "db").unwrap().pid
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.dir.path().join(path), text).unwrap();
    }
}

const STATUS: &str = "run/libvirt/qemu/web.xml";

#[test]
fn metadata_of_running_domain_is_read_and_its_change_is_noticed() {
    let mut copy = Copy::new();
    assert_eq!(copy.settings_and_problems("web"), (vec![], vec![]), "no file");
    let status = copy.status();
    copy.write(STATUS, &status);
    assert_eq!(copy.settings_and_problems("web").0, ["cosched=relaxed", "weight=200"]);
    // The same length within the same second, as by a file system that keeps seconds.
    copy.write(STATUS, &status.replace("weight=\"200\"", "weight=\"300\""));
    assert_eq!(copy.settings_and_problems("web").0, ["cosched=relaxed", "weight=300"]);
    fs::remove_file(copy.dir.path().join(STATUS)).unwrap();
    assert_eq!(copy.settings_and_problems("web"), (vec![], vec![]));
}

#[test]
fn unchanged_file_is_not_read_again() {
    let mut copy = Copy::new();
    let status = copy.status();
    copy.write(STATUS, &status);
    let path = copy.dir.path().join(STATUS);
    let old = SystemTime::now() - Duration::from_secs(60);
    let age = |path: &Path| fs::File::options().write(true).open(path).unwrap().set_modified(old);
    age(&path).unwrap();
    assert_eq!(copy.settings_and_problems("web").0.len(), 2);
    let vm = copy.scan().vms.into_iter().find(|vm| vm.name == "web").unwrap();
    let guest =
        GuestArguments { name: Some("web".to_owned()), uuid: vm.uuid, ..GuestArguments::default() };
    let root = Root::at(copy.dir.path());
    let manager = Some(Manager::Libvirt);
    let process = Process { pid: vm.pid, guest: &guest, manager, root: &root };
    let (mut state, mut reader) = (State::default(), Reader::new(&root));
    let mut aside = Aside::default();
    assert_eq!(state.refresh(&process, (&mut reader, &mut aside)).settings.len(), 2);
    // Whatever is known stays as long as the file does not change.
    state.known = Definition::default();
    assert_eq!(state.refresh(&process, (&mut reader, &mut aside)).settings.len(), 0);
    fs::write(&path, &status).unwrap();
    assert_eq!(state.refresh(&process, (&mut reader, &mut aside)).settings.len(), 2);
}

#[test]
fn file_of_another_process_or_another_domain_says_nothing() {
    let mut copy = Copy::new();
    let status = copy.status();
    let number = copy.number();
    copy.write(
        STATUS,
        &status.replace("domstatus state='running' reason='booted' pid='", "domstatus pid='1"),
    );
    assert_eq!(copy.settings_and_problems("web"), (vec![], vec![]));
    copy.write(STATUS, &status.replace("</uuid>", "0</uuid>"));
    assert_eq!(copy.settings_and_problems("web"), (vec![], vec![]));
    copy.write(&format!("etc/pve/qemu-server/{number}.conf"), DB);
    assert_eq!(copy.settings_and_problems("db"), (vec![], vec![]), "no process is named");
    copy.write(&format!("run/qemu-server/{number}.pid"), "1\n");
    assert_eq!(copy.settings_and_problems("db"), (vec![], vec![]));
    copy.write(&format!("run/qemu-server/{number}.pid"), &format!("{number}\n"));
    assert_eq!(
        copy.settings_and_problems("db").0,
        ["cosched=relaxed", "weight=200", "period=4.5ms"]
    );
}

#[test]
fn file_that_is_damaged_later_changes_nothing_and_is_reported() {
    let mut copy = Copy::new();
    let status = copy.status();
    copy.write(STATUS, &status);
    assert_eq!(copy.settings_and_problems("web").0.len(), 2);
    copy.write(STATUS, &status[..status.len() / 2]);
    let (settings, problems) = copy.settings_and_problems("web");
    assert_eq!((settings.len(), problems.len()), (2, 1));
    assert!(problems[0].contains("web.xml: it is no whole XML"), "{problems:?}");
    copy.write(STATUS, &" ".repeat(1 + (1 << 20)));
    let (settings, problems) = copy.settings_and_problems("web");
    assert!(settings.len() == 2 && problems[0].ends_with("larger than 1MiB"), "{problems:?}");
    fs::remove_file(copy.dir.path().join(STATUS)).unwrap();
    fs::create_dir(copy.dir.path().join(STATUS)).unwrap();
    assert!(copy.settings_and_problems("web").1[0].contains("regular file"));
    fs::remove_dir(copy.dir.path().join(STATUS)).unwrap();
    copy.write(STATUS, &status);
    assert_eq!(copy.settings_and_problems("web").1, [""; 0]);
}

#[test]
fn link_that_leaves_the_copy_is_not_followed() {
    let mut copy = Copy::new();
    let status = copy.status();
    let outside = tempfile::NamedTempFile::new().unwrap();
    fs::write(outside.path(), status).unwrap();
    std::os::unix::fs::symlink(outside.path(), copy.dir.path().join(STATUS)).unwrap();
    assert_eq!(copy.settings_and_problems("web").0, [""; 0]);
}

#[test]
fn definitions_are_not_read_where_they_count_for_nothing() {
    let mut copy = Copy::new();
    let status = copy.status();
    copy.write(STATUS, &status);
    copy.scanner.read_definitions(false);
    assert_eq!(copy.settings_and_problems("web"), (vec![], vec![]));
    copy.scanner.read_definitions(true);
    assert_eq!(copy.settings_and_problems("web").0.len(), 2);
}

#[test]
fn file_that_others_could_have_written_counts_for_nothing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "x").unwrap();
    let root = Root::live();
    let read = |mode| {
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        read_of_root(file.path(), true, &mut Reader::new(&root))
    };
    if !rustix::process::geteuid().is_root() {
        assert!(
            matches!(read(0o600), Err(Unread::Wrong(why)) if why.contains("a regular file of root"))
        );
        return instep_madehost::skip::note("only root can make a file of root");
    }
    for (mode, counts) in
        [(0o600, true), (0o644, true), (0o640, true), (0o660, false), (0o602, false)]
    {
        assert_eq!(read(mode).is_ok(), counts, "{mode:o}");
    }
    std::os::unix::fs::chown(file.path(), Some(1234), None).unwrap();
    let Err(Unread::Wrong(why)) = read(0o600) else { panic!("a user's file counts") };
    assert!(why.contains("user 1234's, mode 600"), "{why}");
}

#[test]
fn what_is_no_file_is_neither_read_nor_waited_for() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let fifo = dir.path().join("web.xml");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("zero.xml")).unwrap();
    std::os::unix::fs::symlink("web.xml", dir.path().join("link.xml")).unwrap();
    let root = Root::live();
    for name in ["web.xml", "zero.xml", "link.xml"] {
        let read = read_of_root(&dir.path().join(name), true, &mut Reader::new(&root));
        let Err(Unread::Wrong(why)) = read else { panic!("{name} is read") };
        assert!(why.contains("it must be a regular file"), "{why}");
    }
}

#[test]
fn lack_of_privilege_is_reported_for_all_vms_together() {
    let mut state = State::default();
    let denied = |path: &str| {
        let error = io::Error::from(io::ErrorKind::PermissionDenied);
        State::unread(Path::new(path), &error)
    };
    for path in ["/run/libvirt/qemu/a.xml", "/run/libvirt/qemu/b.xml"] {
        state.take(Err(denied(path)));
        assert_eq!(state.known, Definition::default(), "no problem of the VM's own");
        let why = state.denied.as_deref().unwrap();
        assert!(why.contains(path) && why.ends_with("(run as root)"), "{why}");
    }
    state.take(Err(State::unread(Path::new("/a"), &io::Error::other("worn out"))));
    assert_eq!((state.known.problems.len(), state.denied), (1, None));
}

#[test]
fn kept_text_is_short_and_printable() {
    let said = vec![("a\x1b[2J".to_owned(), "v".repeat(1000)); 100];
    let kept = settings(said, Origin::ProxmoxTag);
    assert_eq!((kept.len(), kept[0].key.as_str(), kept[0].value.len()), (64, "a?[2J", 64));
}

#[test]
fn machine_is_looked_at_without_leaving_folders() {
    let guest =
        |name: &str| GuestArguments { name: Some(name.to_owned()), ..GuestArguments::default() };
    let root = Root::at("/copy");
    let file = |guest: &GuestArguments, manager| {
        let process = Process { pid: 1, guest, manager, root: &root };
        Files::of(&process).map(|files| files.all().last().map(|path| path.to_path_buf()).unwrap())
    };
    let status = file(&guest("a b"), Some(Manager::Libvirt));
    assert_eq!(status.unwrap(), Path::new("/copy/run/libvirt/qemu/a b.xml"));
    assert_eq!(file(&guest("../../../tmp/a"), Some(Manager::Libvirt)), None);
    let config = file(
        &GuestArguments { number: Some(104), ..GuestArguments::default() },
        Some(Manager::Proxmox),
    );
    assert_eq!(config.unwrap(), Path::new("/copy/etc/pve/qemu-server/104.conf"));
    assert!(
        file(&guest("a"), Some(Manager::Proxmox)).is_none() && file(&guest("a"), None).is_none()
    );
}
