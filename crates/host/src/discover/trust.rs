//! Whose processes count as VMs when something is decided.
//!
//! Anybody may start a program that looks like a VM. What an ordinary user starts outside the cgroups
//! that hypervisor managers keep VMs in is seen, but is neither placed nor counted unless the
//! configuration names the user or the cgroup: else any user could change where the VMs of others run.
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
const FIRST_ORDINARY: u32 = 1000;
/// Cgroups that only root or a service of its can put a process into: libvirt's under systemd and
/// without, Proxmox's, those of Kubernetes.
const VM_CGROUPS: [&str; 5] =
    ["/machine.slice", "/machine", "/qemu.slice", "/kubepods.slice", "/kubepods"];

/// Who runs a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The real user id, `None` where it is not known.
    pub uid: Option<u32>,
    /// Whether that id stands for an ordinary user outside the user namespace of this process.
    pub is_ordinary_outside: bool,
    /// Its cgroups in all hierarchies, each beginning with `/`, none of them the root.
    pub cgroups: Vec<String>,
}

/// Those of them in which libvirt runs its VMs: no user can claim to be one of libvirt's there.
const LIBVIRT_CGROUPS: [&str; 4] = ["/machine.slice", "/machine", "/kubepods.slice", "/kubepods"];

impl Owner {
    /// Whether it is in a cgroup that libvirt, or KubeVirt with it, puts VMs into.
    #[must_use]
    pub fn is_in_libvirt_cgroup(&self) -> bool {
        LIBVIRT_CGROUPS.into_iter().any(|root| self.is_below(root))
    }

    fn is_below(&self, root: &str) -> bool {
        let is_below = |path: &String| {
            path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.cgroups.iter().any(is_below)
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
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let range = |line: &str| {
            let mut numbers = line.split_ascii_whitespace().map(|number| number.parse().ok());
            Some((numbers.next()??, numbers.next()??, numbers.next()??))
        };
        // The kernel takes 340 lines at most (UID_GID_MAP_MAX_EXTENTS, Linux 6.18).
        Self { ranges: text.lines().take(340).filter_map(range).collect() }
    }

    /// Whether this id stands for an ordinary user outside, or for none.
    #[must_use]
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
        let passwd = || std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let user = |name: &String| {
            let known = name.parse().ok().or_else(|| user_of(&passwd(), name));
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
    #[must_use]
    pub fn refusal(&self, owner: &Owner) -> Option<String> {
        let is_ordinary = |uid: &u32| *uid >= FIRST_ORDINARY || owner.is_ordinary_outside;
        let uid = owner.uid.filter(is_ordinary)?;
        let own = rustix::process::getuid().as_raw();
        let is_trusted = uid == own
            || self.users.contains(&uid)
            || VM_CGROUPS.into_iter().any(|root| owner.is_below(root))
            || self.cgroups.iter().any(|root| owner.is_below(root));
        (!is_trusted).then(|| {
            format!(
                "user {uid} runs it outside the cgroups of VMs, so that it is neither placed nor \
                 counted; `users = [\"{uid}\"]` under [discover] of --config FILE makes it count"
            )
        })
    }
}

/// The number of a user by the text of /etc/passwd.
fn user_of(passwd: &str, name: &str) -> Option<u32> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        fields.nth(1)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: u32, cgroup: &str) -> Owner {
        Owner { uid: Some(uid), cgroups: vec![cgroup.to_owned()], ..Owner::default() }
    }

    #[test]
    fn root_of_a_user_namespace_is_an_ordinary_user_if_it_is_one_outside() {
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
            "/user.slice/user-7777.slice/user@7777.service/machine.slice/x.scope",
            "/machine.slice.mine/x",
            "/",
        ] {
            assert!(!counts(7777, own), "{own}");
        }
        assert!(trust.refusal(&Owner::default()).is_none(), "a copy without `status`");
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
    fn users_are_known_by_name_and_what_is_not_is_told() {
        assert_eq!(user_of("root:x:0:0::/:/bin/sh\na:x:1234:5::/:/b\n", "a"), Some(1234));
        let wrong = Trust::of(&["no-such-user-here".to_owned()], &[]).unwrap_err();
        assert!(wrong.contains("no-such-user-here"), "{wrong}");
        for path in ["", "/", "user.slice"] {
            assert!(Trust::of(&[], &[path.to_owned()]).is_err(), "{path}");
        }
    }
}
