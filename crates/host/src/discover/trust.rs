//! The owners whose processes count as VMs when Instep decides.
//!
//! Anybody may start a program that looks like a VM. What an ordinary user starts outside the cgroups
//! that hypervisor managers keep VMs in is seen, but is neither placed nor counted unless the
//! configuration names the user or the cgroup: else any user could change where the VMs of others run.
//! A service of the system may run a VM as any user: its cgroup vouches for that if root alone may put a
//! process there and no login led to it. What a container runs without KVM does not count, either: its
//! root may be anyone.
//!
//! Users below 1000 are the system's own, as root made them; so is, for an agent that is
//! not root, the user who started it. What is not known (a copy without `status`) counts.
//!
//! The kernel shows user ids as the user namespace of the reader numbers them. Root of a container is an
//! ordinary user to an agent of the host, as it should be. An agent in a user namespace itself sees such a
//! root as 0: there a number below 1000 is the system's only if the namespace around has it so, too
//! ([`UserMap`]).

use std::collections::BTreeSet;

/// The first user id of ordinary users (UID_MIN of login.defs(5)).
pub(super) const FIRST_ORDINARY: u32 = 1000;
/// Cgroups that only root or a service of its can put a process into: Proxmox's, those of Kubernetes.
const VM_CGROUPS: [&str; 3] = ["/qemu.slice", "/kubepods.slice", "/kubepods"];
/// Where libvirt has its VMs' scopes unless told otherwise, with systemd and without. They are root's;
/// containers of Podman lie there, too.
const MACHINES: [&str; 2] = ["/machine.slice", "/machine"];
/// Where KubeVirt runs libvirt.
const PODS: [&str; 2] = ["/kubepods.slice", "/kubepods"];

/// The user and the cgroups of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The real user id, `None` where it is not known.
    pub uid: Option<u32>,
    /// Whether that id stands for an ordinary user outside the user namespace of this process.
    pub is_ordinary_outside: bool,
    /// Its cgroups in all hierarchies, each beginning with `/`, none of them the root.
    pub cgroups: Vec<String>,
    /// How far from the root down those cgroups are folders that root alone may change: no user can put a
    /// process into them. Empty where that cannot be told.
    pub roots_cgroups: Vec<String>,
    /// Whether it is known that no login of an ordinary user led to it (`/proc/PID/loginuid`, which cron
    /// and at set, too).
    pub is_of_no_login: bool,
    /// Whether it holds a KVM VM, `None` where its descriptors cannot be listed.
    pub holds_kvm: Option<bool>,
}

impl Owner {
    /// Whether it is in a cgroup that libvirt, or KubeVirt with it, puts VMs into: no user can claim to be
    /// one of libvirt's there.
    pub fn is_in_libvirt_cgroup(&self) -> bool {
        let is_in_machines = |path: &&String| MACHINES.into_iter().any(|root| is_below(path, root));
        let machines = self.cgroups.iter().filter(is_in_machines);
        machines.chain(&self.roots_cgroups).any(|path| is_libvirts(path))
            || PODS.into_iter().any(|root| self.is_below(root))
    }

    /// Whether root's service manager started it for a service of the system.
    fn is_in_system_service(&self) -> bool {
        let is_service = |path: &String| {
            let unit = path.strip_prefix("/system.slice/").and_then(|rest| rest.split('/').next());
            unit.is_some_and(|unit| unit.ends_with(".service"))
                && !is_container(path)
                && self.roots_cgroups.contains(path)
        };
        self.is_of_no_login && self.cgroups.iter().any(is_service)
    }

    fn is_below(&self, root: &str) -> bool {
        self.cgroups.iter().any(|path| is_below(path, root))
    }

    /// The lines under [discover] that make it count, in words.
    fn remedy(&self, uid: Option<u32>) -> String {
        let cgroup = self.cgroups.iter().find_map(|path| named_cgroup(path));
        let cgroup = cgroup.map(|path| format!("`cgroups = [\"{path}\"]`"));
        let user = uid.map(|uid| format!("`users = [\"{uid}\"]`"));
        let lines: Vec<String> = user.into_iter().chain(cgroup).collect();
        format!("{} under [discover] of --config FILE makes it count", lines.join(" or "))
    }
}

fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a folder on the way is one that libvirt makes for a VM of QEMU, with systemd and without.
fn is_libvirts(path: &str) -> bool {
    path.split('/').any(|part| {
        let is_scope = part.starts_with("machine-qemu") && part.ends_with(".scope");
        is_scope || part.ends_with(".libvirt-qemu")
    })
}

/// Whether a folder on the way is one that Docker, Podman, Kubernetes or LXC makes for a container, whose
/// root need not be the host's administrator.
fn is_container(path: &str) -> bool {
    const BEGINS: [&str; 8] = [
        "docker-",
        "libpod",
        "cri-containerd-",
        "crio-",
        "kubepods",
        "lxc.payload",
        "machine-lxc",
        "buildkit",
    ];
    let is_made_for_one = |part: &str| BEGINS.iter().any(|begin| part.starts_with(begin));
    path.split('/').any(|part| is_made_for_one(part) || ["docker", "lxc"].contains(&part))
}

/// The part of a cgroup's path that an operator would name: a service, a slice in another one, or the
/// first folder. None of a user's own.
fn named_cgroup(path: &str) -> Option<String> {
    let mut parts = path.split('/').skip(1);
    let first = parts.next().filter(|first| !first.is_empty() && *first != "user.slice")?;
    match parts.next().filter(|_| first.ends_with(".slice")) {
        Some(second) => Some(format!("/{first}/{second}")),
        None => Some(format!("/{first}")),
    }
}

/// Which users of the namespace around the ids in a user namespace stand for (user_namespaces(7)). Further
/// out nothing can be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserMap {
    /// First id, first id outside, and how many.
    ranges: Vec<(u32, u32, u32)>,
}

impl UserMap {
    /// Reads the text of `/proc/self/uid_map`; lines that are none are passed over.
    pub fn parse(text: &str) -> Self {
        let range = |line: &str| {
            let mut numbers = line.split_ascii_whitespace().map(|number| number.parse().ok());
            Some((numbers.next()??, numbers.next()??, numbers.next()??))
        };
        // The kernel takes 340 lines at most (UID_GID_MAP_MAX_EXTENTS, Linux 6.18).
        Self { ranges: text.lines().take(340).filter_map(range).collect() }
    }

    /// Whether this id stands for an ordinary user outside, or for none.
    pub fn is_ordinary_outside(&self, uid: u32) -> bool {
        let outside = self.ranges.iter().find_map(|(first, outside, count)| {
            let offset = uid.checked_sub(*first).filter(|offset| offset < count)?;
            outside.checked_add(offset)
        });
        outside.is_none_or(|outside| outside >= FIRST_ORDINARY)
    }
}

/// Users and cgroups whose processes count, besides those that always do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    users: BTreeSet<u32>,
    cgroups: Vec<String>,
}

impl Trust {
    /// Trusts these users, by name or number, and what is in these cgroups or below.
    ///
    /// # Errors
    /// A user that /etc/passwd does not name; a cgroup that is no path from the root of its hierarchy.
    pub fn of(users: &[String], cgroups: &[String]) -> Result<Self, String> {
        let user = |name: &String| {
            let known = name.parse().ok().or_else(|| instep_state::user_id(name));
            known.ok_or_else(|| {
                format!("`{name}` is no user of /etc/passwd; give the user's number instead")
            })
        };
        let is_path = |path: &&String| path.starts_with('/') && path.len() > 1;
        if let Some(path) = cgroups.iter().find(|path| !is_path(path)) {
            return Err(format!(
                "`{path}` is no cgroup such as /user.slice/user-1000.slice (see /proc/PID/cgroup)"
            ));
        }
        let cgroups = cgroups.iter().map(|path| path.trim_end_matches('/').to_owned()).collect();
        Ok(Self { users: users.iter().map(user).collect::<Result<_, _>>()?, cgroups })
    }

    /// Why the processes of this owner do not count, in one sentence; `None` when they do.
    pub fn refusal(&self, owner: &Owner) -> Option<String> {
        if self.cgroups.iter().any(|root| owner.is_below(root)) {
            return None;
        }
        let is_ordinary = |uid: &u32| *uid >= FIRST_ORDINARY || owner.is_ordinary_outside;
        let uid = owner.uid.filter(is_ordinary);
        if uid.is_some_and(|uid| self.users.contains(&uid)) {
            return None;
        }
        let container = owner.cgroups.iter().find(|path| is_container(path));
        if let Some(path) = container.filter(|_| owner.holds_kvm == Some(false)) {
            return Some(format!(
                "it runs in the container {path} without KVM, so that it is neither placed nor \
                 counted; {}",
                owner.remedy(None)
            ));
        }
        let uid = uid?;
        let is_trusted = uid == rustix::process::getuid().as_raw()
            || VM_CGROUPS.into_iter().any(|root| owner.is_below(root))
            || owner.is_in_libvirt_cgroup()
            || owner.is_in_system_service();
        (!is_trusted).then(|| {
            format!(
                "user {uid} runs it outside the cgroups of VMs, so that it is neither placed nor \
                 counted; {}",
                owner.remedy(Some(uid))
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: u32, cgroup: &str) -> Owner {
        Owner { uid: Some(uid), cgroups: vec![cgroup.to_owned()], ..Owner::default() }
    }

    #[test]
    fn root_of_user_namespace_is_ordinary_user_if_it_is_one_outside() {
        let host = UserMap::parse("         0          0 4294967295\n");
        let rootless = UserMap::parse("0 1000 1\n1 100000 65536\nx y z\n");
        let ordinary = |map: &UserMap| [0, 5, 1000].map(|uid| map.is_ordinary_outside(uid));
        assert_eq!(ordinary(&host), [false, false, true]);
        assert_eq!(ordinary(&rootless), [true; 3]);
        assert_eq!(ordinary(&UserMap::parse("")), [true; 3], "they stand for nobody");
        assert!(UserMap::parse("0 4294967295 9\n").is_ordinary_outside(7), "no such number");
        let own = rustix::process::getuid().as_raw();
        for uid in [5, 999].into_iter().filter(|uid| *uid != own) {
            let is_ordinary_outside = rootless.is_ordinary_outside(uid);
            let owner = Owner { is_ordinary_outside, ..owner(uid, "/system.slice/x.service") };
            assert!(Trust::default().refusal(&owner).is_some(), "{uid}");
        }
    }

    #[test]
    fn ordinary_users_count_in_cgroups_of_vms_only() {
        let trust = Trust::default();
        let counts = |uid, cgroup| trust.refusal(&owner(uid, cgroup)).is_none();
        assert!(counts(0, "/user.slice/user-0.slice") && counts(107, "/system.slice/x.service"));
        for managed in [
            "/machine.slice/machine-qemu\\x2d1\\x2dweb.scope/libvirt",
            "/machine/qemu-1-web.libvirt-qemu",
            "/qemu.slice/104.scope",
            "/kubepods.slice/kubepods-burstable.slice/x",
        ] {
            assert!(counts(64055, managed), "{managed}");
        }
        for own in [
            "/machine.slice/libpod-0a1b.scope/container",
            "/machine.slice/machine-lxc\\x2d7\\x2dbox.scope",
            "/system.slice/cron.service",
            "/prod.slice/machine-qemu\\x2d1\\x2dweb.scope",
            "/user.slice/user-7777.slice/user@7777.service/machine.slice/x.scope",
            "/machine.slice.mine/x",
            "/",
        ] {
            assert!(!counts(7777, own), "{own}");
        }
        assert!(trust.refusal(&Owner::default()).is_none(), "a copy without `status`");
    }

    #[test]
    fn managers_of_the_system_count_where_no_user_can_put_a_process() {
        let refusal = |owner: &Owner| Trust::default().refusal(owner);
        let service = "/system.slice/snap.lxd.daemon.service";
        let of_root = |path: &str| Owner {
            roots_cgroups: vec![path.to_owned()],
            is_of_no_login: true,
            ..owner(65534, path)
        };
        for path in [service, "/prod.slice/machine-qemu\\x2d1\\x2dweb.scope", "/a/w.libvirt-qemu"] {
            assert_eq!(refusal(&of_root(path)), None, "{path}");
        }
        let of_login = Owner { is_of_no_login: false, ..of_root(service) };
        let said = refusal(&of_login).expect("a user's job of cron");
        assert!(said.contains(&format!("cgroups = [\"{service}\"]")), "{said}");
        let delegated = Owner { roots_cgroups: vec!["/system.slice".into()], ..of_root(service) };
        assert!(refusal(&delegated).is_some(), "the user may write to it");
        let jailed = refusal(&of_root("/firecracker/551e")).expect("a jailer's");
        assert!(jailed.contains("cgroups = [\"/firecracker\"]"), "{jailed}");
        let pod = of_root("/system.slice/docker-0a1b.scope");
        assert!(refusal(&pod).is_some());
    }

    #[test]
    fn container_without_kvm_counts_only_if_it_is_configured() {
        let trust = Trust::default();
        for path in [
            "/kubepods.slice/kubepods-burstable.slice/cri-containerd-7.scope",
            "/system.slice/docker-7.scope",
            "/machine.slice/libpod-7.scope/container",
        ] {
            let with = |holds_kvm| Owner { holds_kvm, ..owner(0, path) };
            assert!(trust.refusal(&with(Some(true))).is_none(), "{path}");
            assert!(trust.refusal(&with(None)).is_none(), "{path}: its descriptors are not known");
            let said = trust.refusal(&with(Some(false))).unwrap();
            assert!(said.contains("without KVM") && said.contains("cgroups = ["), "{said}");
            let named = Trust::of(&[], &[path.to_owned()]).unwrap();
            assert!(named.refusal(&with(Some(false))).is_none(), "{path}");
        }
        let host = Owner { holds_kvm: Some(false), ..owner(0, "/system.slice/x.service") };
        assert!(trust.refusal(&host).is_none(), "a VM in software of the host's own");
    }

    #[test]
    fn configured_users_and_cgroups_count() {
        let own = "/user.slice/user-7777.slice/session-2.scope";
        let said = Trust::default().refusal(&owner(7777, own)).unwrap();
        assert!(said.contains("users = [\"7777\"]") && said.contains("[discover]"), "{said}");
        let cgroup = "/user.slice/user-7777.slice/".to_owned();
        for trust in [Trust::of(&["7777".to_owned()], &[]), Trust::of(&[], &[cgroup])] {
            let trust = trust.unwrap();
            assert!(trust.refusal(&owner(7777, own)).is_none());
            assert!(trust.refusal(&owner(7778, "/user.slice/user-7778.slice")).is_some());
        }
    }

    #[test]
    fn user_or_cgroup_that_is_none_is_reported() {
        let wrong = Trust::of(&["no-such-user-here".to_owned()], &[]).unwrap_err();
        assert!(wrong.contains("no-such-user-here"), "{wrong}");
        for path in ["", "/", "user.slice"] {
            assert!(Trust::of(&[], &[path.to_owned()]).is_err(), "{path}");
        }
    }
}
