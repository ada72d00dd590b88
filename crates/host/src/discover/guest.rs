//! What a monitor's command line says of the guest: name, UUID, CPUs, memory, QMP sockets.
//!
//! Knows the options of QEMU, cloud-hypervisor, Firecracker and crosvm. What the guest really
//! has may differ after hot-plug; vCPU threads are counted elsewhere.

use super::args::{self, keys, last};
use super::facts::{Manager, Vmm};
use super::guest_numa::{self, Backend};
use super::smp::{self, Smp};
use instep_core::idset::NodeSet;
use instep_core::snapshot::GuestNode;
use instep_core::wording::is_steering;

/// The longest name that is kept, in characters.
const MAX_NAME: usize = 128;
/// The most QMP sockets of one monitor that are considered.
const MAX_SOCKETS: usize = 4;

/// What the command line tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestArguments {
    /// Its name, if any option gives one.
    pub name: Option<String>,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Its number, which Proxmox gives.
    pub number: Option<u32>,
    /// Its CPUs.
    pub smp: Smp,
    /// Its NUMA nodes that hold vCPUs.
    pub nodes: Vec<GuestNode>,
    /// Its memory backends.
    pub backends: Vec<Backend>,
    /// The backend of each of `nodes`, by its place in `backends`; empty unless each has one.
    pub node_backends: Vec<usize>,
    /// Host nodes that its memory backends are bound to.
    pub memory_bound: Option<NodeSet>,
    /// Host nodes that its memory backends prefer.
    pub memory_preferred: Option<NodeSet>,
    /// QMP sockets that might be free, at most four.
    pub qmp: Vec<QmpSocket>,
    /// What started it, as far as the command line shows.
    pub manager: Option<Manager>,
}

/// A unix socket on which QEMU serves QMP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QmpSocket {
    /// Its path, relative to the monitor's working directory or absolute.
    pub path: String,
    /// Whether QEMU waits for a client before it starts the guest (`wait=on`, the default).
    pub waits: bool,
}

/// Reads the command line of `vmm`.
pub fn describe(vmm: &Vmm, arguments: &[String]) -> GuestArguments {
    let mut guest = match vmm {
        Vmm::Qemu => qemu(arguments),
        Vmm::CloudHypervisor => cloud_hypervisor(arguments),
        Vmm::Firecracker => GuestArguments {
            name: args::values(arguments, "id").last().map(str::to_owned),
            ..GuestArguments::default()
        },
        Vmm::Crosvm => crosvm(arguments),
        Vmm::Other(_) => GuestArguments::default(),
    };
    guest.name = guest.name.map(|name| readable(&name)).filter(|name| !name.is_empty());
    guest.uuid = guest.uuid.map(|uuid| readable(&uuid)).filter(|uuid| !uuid.is_empty());
    guest
}

/// A name fit for a terminal: no control characters, nothing that reorders the line it stands
/// in, bounded.
pub(super) fn readable(name: &str) -> String {
    name.chars().take(MAX_NAME).map(|c| if is_steering(c) { '?' } else { c }).collect()
}

fn qemu(arguments: &[String]) -> GuestArguments {
    let name_keys: Vec<_> =
        args::values(arguments, "name").flat_map(|value| keys(value, "guest")).collect();
    let smp = smp::qemu(args::values(arguments, "smp"));
    let backends = guest_numa::backends(args::values(arguments, "object"));
    let (memory_bound, memory_preferred) = guest_numa::policies(&backends);
    let numa = guest_numa::nodes(args::values(arguments, "numa"), &backends, &smp);
    let by_libvirt = name_keys.iter().any(|(key, _)| key == "guest")
        && arguments.iter().any(|arg| arg.contains("/libvirt/") || arg.contains("masterKey0"));
    let manager = if by_libvirt {
        Some(Manager::Libvirt)
    } else if arguments.iter().any(|arg| arg.contains("/var/run/qemu-server/")) {
        Some(Manager::Proxmox)
    } else if arguments.iter().any(|arg| arg.contains("/incus/") || arg.contains("/lxd/")) {
        Some(Manager::Incus)
    } else {
        None
    };
    GuestArguments {
        name: last(&name_keys, "guest").map(str::to_owned),
        uuid: args::values(arguments, "uuid").last().map(str::to_owned).or_else(|| {
            // Proxmox passes it in the guest's SMBIOS tables.
            args::values(arguments, "smbios")
                .find_map(|value| last(&keys(value, "type"), "uuid").map(str::to_owned))
        }),
        number: args::values(arguments, "id").last().and_then(|id| id.parse().ok()),
        nodes: numa.nodes,
        backends,
        node_backends: numa.backends,
        smp,
        memory_bound,
        memory_preferred,
        qmp: qmp_sockets(arguments),
        manager,
    }
}

fn cloud_hypervisor(arguments: &[String]) -> GuestArguments {
    // Both `--api-socket PATH` and `--api-socket path=PATH` are understood by it.
    let socket = args::values(arguments, "api-socket").last().and_then(|value| {
        let socket = keys(value, "path");
        let path = last(&socket, "path")?;
        let base = path.rsplit('/').next().unwrap_or(path);
        Some(base.strip_suffix(".sock").unwrap_or(base).to_owned())
    });
    GuestArguments {
        name: socket,
        uuid: args::values(arguments, "platform")
            .find_map(|value| last(&keys(value, "uuid"), "uuid").map(str::to_owned)),
        smp: smp::cloud_hypervisor(args::values(arguments, "cpus").last()),
        ..GuestArguments::default()
    }
}

fn crosvm(arguments: &[String]) -> GuestArguments {
    let cpus = ["cpus", "c"].into_iter().find_map(|name| args::values(arguments, name).last());
    GuestArguments {
        name: args::values(arguments, "name").last().map(str::to_owned),
        smp: smp::crosvm(cpus),
        ..GuestArguments::default()
    }
}

/// The QMP sockets of a QEMU command line: `-qmp unix:PATH,server...`, `-qmp-pretty`, and
/// `-chardev socket,path=...` that a `-mon` in control mode uses. libvirt's own are left out: its
/// daemon holds them for as long as the guest runs.
fn qmp_sockets(arguments: &[String]) -> Vec<QmpSocket> {
    let mut sockets = Vec::new();
    for option in ["qmp", "qmp-pretty"] {
        for value in args::values(arguments, option) {
            let read = keys(value, "socket");
            let Some(path) = last(&read, "socket").and_then(|s| s.strip_prefix("unix:")) else {
                continue;
            };
            push_socket(&mut sockets, path, &read);
        }
    }
    let monitors: Vec<String> = args::values(arguments, "mon")
        .map(|value| keys(value, "chardev"))
        .filter(|read| last(read, "mode") == Some("control"))
        .filter_map(|read| last(&read, "chardev").map(str::to_owned))
        .collect();
    for value in args::values(arguments, "chardev") {
        let read = keys(value, "backend");
        let wanted = last(&read, "id").is_some_and(|id| monitors.iter().any(|m| m == id));
        let socket = last(&read, "backend") == Some("socket");
        if let Some(path) = last(&read, "path").filter(|_| wanted && socket) {
            push_socket(&mut sockets, path, &read);
        }
    }
    sockets
}

fn push_socket(sockets: &mut Vec<QmpSocket>, path: &str, read: &[(String, String)]) {
    let on = |key: &str| matches!(last(read, key), Some("" | "on" | "yes" | "true"));
    // Without `server` QEMU is the client and nothing listens there.
    if sockets.len() >= MAX_SOCKETS
        || path.is_empty()
        || path.contains("/libvirt/")
        || !on("server")
    {
        return;
    }
    let waits = !on("nowait") && last(read, "wait").is_none_or(|value| value != "off");
    sockets.push(QmpSocket { path: path.to_owned(), waits });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn qemu_names_come_in_two_forms() {
        for text in ["q -name vm1,debug-threads=on", "q -name guest=vm1,process=x"] {
            assert_eq!(describe(&Vmm::Qemu, &line(text)).name.as_deref(), Some("vm1"), "{text}");
        }
        assert_eq!(describe(&Vmm::Qemu, &line("q -name debug-threads=on")).name, None);
        let odd = describe(&Vmm::Qemu, &line("q -name a\x1b[2J\n"));
        assert_eq!(odd.name.as_deref(), Some("a?[2J?"));
    }

    #[test]
    fn other_monitors_are_named_by_their_own_options() {
        let named = |vmm, text| describe(&vmm, &line(text)).name.unwrap_or_default();
        assert_eq!(named(Vmm::Firecracker, "firecracker --id abc --api-sock /x"), "abc");
        assert_eq!(named(Vmm::CloudHypervisor, "ch --api-socket path=/run/web.sock"), "web");
        assert_eq!(named(Vmm::CloudHypervisor, "ch --api-socket=/run/db.sock"), "db");
        assert_eq!(named(Vmm::Crosvm, "crosvm run --name box -c 2 kernel"), "box");
    }

    #[test]
    fn uuids_come_from_two_options() {
        let of = |text| describe(&Vmm::Qemu, &line(text)).uuid;
        assert_eq!(of("q -uuid 6f1b-1").as_deref(), Some("6f1b-1"));
        assert_eq!(of("kvm -id 104 -smbios type=1,uuid=6f1b-2").as_deref(), Some("6f1b-2"));
    }

    #[test]
    fn libvirt_is_known_by_more_than_a_name() {
        let of = |text| describe(&Vmm::Qemu, &line(text)).manager;
        assert_eq!(
            of("q -name guest=a -object x,file=/var/lib/libvirt/qemu/k"),
            Some(Manager::Libvirt)
        );
        assert_eq!(of("q -name guest=a"), None);
        assert_eq!(
            of("/usr/bin/kvm -id 100 -pidfile /var/run/qemu-server/100.pid"),
            Some(Manager::Proxmox)
        );
    }

    #[test]
    fn qmp_sockets_are_found_in_every_spelling_and_libvirts_are_not() {
        let of = |text| describe(&Vmm::Qemu, &line(text)).qmp;
        let free = |path: &str| vec![QmpSocket { path: path.to_owned(), waits: false }];
        assert_eq!(of("q -qmp unix:/a,server=on,wait=off"), free("/a"));
        assert_eq!(of("q -qmp-pretty unix:a,server,nowait"), free("a"));
        assert_eq!(
            of("q -chardev socket,id=m,path=/b,server=on,wait=off -mon chardev=m,mode=control"),
            free("/b")
        );
        assert_eq!(of("q -qmp unix:/a,server"), [QmpSocket { path: "/a".into(), waits: true }]);
        for none in [
            "q -qmp unix:/a",
            "q -qmp tcp:localhost:4444,server=on",
            "q -qmp stdio",
            "q -chardev socket,id=m,path=/b,server=on -mon chardev=m,mode=readline",
            "q -chardev socket,id=m,path=/var/lib/libvirt/qemu/d/monitor.sock,server=on -mon \
             chardev=m,mode=control",
        ] {
            assert!(of(none).is_empty(), "{none}");
        }
    }
}
