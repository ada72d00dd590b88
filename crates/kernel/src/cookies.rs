//! Core-scheduling cookies: which VMs have them, and that they keep Instep's scheduler out.
//!
//! A thread with a cookie shares a core only with threads of the same (prctl PR_SCHED_CORE, Linux
//! 5.14 and later); cloud-hypervisor gives each VM one unless told otherwise. On a host with SMT
//! that and any sched_ext scheduler can hang the machine (sched-ext/scx issue 3715), within
//! milliseconds of the first cookie: to look for them while the scheduler is in force, as is done at
//! each scan for VMs, is too late then and in time only where the kernel survives it. One look costs
//! one prctl for each vCPU.

use instep_core::units::Tid;
use instep_core::wording::Count;
use std::fs;
use std::path::Path;

const PR_SCHED_CORE: libc::c_int = 62;
const PR_SCHED_CORE_GET: libc::c_ulong = 0;
const PIDTYPE_PID: libc::c_ulong = 0;
/// As many VMs are named.
const FEW: usize = 3;

/// Names of the VMs with a vCPU that has a cookie, in the order given, each once.
#[must_use]
pub fn of<'a>(vcpus: impl IntoIterator<Item = (&'a str, Tid)>) -> Vec<String> {
    with_cookie(vcpus, cookie)
}

/// Why these VMs keep the scheduler out of a host with or without SMT; `None` when they do not.
/// `despite` is the operator's word that cookies and sched_ext may meet.
#[must_use]
pub fn forbid(smt: bool, vms: &[String], despite: bool) -> Option<String> {
    if !smt || despite || vms.is_empty() {
        return None;
    }
    let named = vms[..vms.len().min(FEW)].join(", ");
    let more = match vms.len().saturating_sub(FEW) {
        0 => String::new(),
        more => format!(" and {}", Count::of(more, "other VM")),
    };
    Some(format!(
        "vCPUs of {named}{more} have core-scheduling cookies, which together with sched_ext can hang \
         a host with SMT (sched-ext/scx issue 3715); switch core scheduling off in the VMM \
         (cloud-hypervisor: --cpus core_scheduling=off), or pass --despite-cookies"
    ))
}

/// Looks at this host while the scheduler is in force: why it must go, if it must.
#[must_use]
pub fn find_reason_to_leave<'a>(
    vcpus: impl IntoIterator<Item = (&'a str, Tid)>,
    despite: bool,
) -> Option<String> {
    looked(vcpus, despite, cookie, || smt(Path::new("/")))
}

/// The same with other eyes; whether there is SMT is asked for only where there are cookies.
fn looked<'a>(
    vcpus: impl IntoIterator<Item = (&'a str, Tid)>,
    despite: bool,
    cookie: impl Fn(Tid) -> Option<u64>,
    smt: impl FnOnce() -> bool,
) -> Option<String> {
    if despite {
        return None;
    }
    let vms = with_cookie(vcpus, cookie);
    forbid(!vms.is_empty() && smt(), &vms, despite)
}

/// Whether some core of the host under `root` has several threads in use.
#[must_use]
pub fn smt(root: &Path) -> bool {
    let active = fs::read_to_string(root.join("sys/devices/system/cpu/smt/active"));
    active.is_ok_and(|text| text.trim() == "1")
}

fn with_cookie<'a>(
    vcpus: impl IntoIterator<Item = (&'a str, Tid)>,
    cookie: impl Fn(Tid) -> Option<u64>,
) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (vm, tid) in vcpus {
        if cookie(tid).is_some_and(|cookie| cookie != 0) && !found.iter().any(|known| known == vm) {
            found.push(vm.to_owned());
        }
    }
    found
}

/// A thread's cookie; `None` when there is no such thread or no such feature.
fn cookie(tid: Tid) -> Option<u64> {
    let mut cookie: u64 = 0;
    // SAFETY: the kernel writes one u64 to the address given (kernel/sched/core_sched.c), which
    // is that of a live local variable.
    let status = unsafe {
        libc::prctl(
            PR_SCHED_CORE,
            PR_SCHED_CORE_GET,
            libc::c_ulong::from(tid.0),
            PIDTYPE_PID,
            std::ptr::from_mut(&mut cookie),
        )
    };
    (status == 0).then_some(cookie)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const VCPUS: [(&str, Tid); 5] =
        [("a", Tid(1)), ("b", Tid(2)), ("b", Tid(3)), ("c", Tid(4)), ("d", Tid(5))];

    fn made(tid: Tid) -> Option<u64> {
        [None, Some(0), Some(0xbeef), Some(0xbeef), None, Some(7)].get(tid.0 as usize).copied()?
    }

    #[test]
    fn vms_are_named_that_share_cores_with_their_like_only() {
        assert_eq!(with_cookie(VCPUS, made), ["b", "d"]);
        assert!(of([("own", Tid(std::process::id()))]).is_empty());
    }

    #[test]
    fn later_cookie_is_an_objection_with_smt_unless_overridden() {
        let said = looked(VCPUS, false, made, || true).unwrap();
        assert!(said.contains("vCPUs of b, d have") && said.contains("3715"), "{said}");
        assert_eq!(looked(VCPUS, false, made, || false), None, "no core has two threads");
        assert_eq!(looked(VCPUS, true, made, || true), None, "the operator's word");
        assert_eq!(looked(VCPUS, false, |_| Some(0), || true), None);
    }

    #[test]
    fn cookies_are_not_read_where_they_change_nothing() {
        let never = |_| unreachable!("cookies are not looked at when they may be there");
        assert_eq!(looked(VCPUS, true, never, || unreachable!()), None);
        assert_eq!(looked(VCPUS, false, |_| None, || unreachable!("no cookie: no SMT")), None);
    }

    #[test]
    fn few_vms_are_named_and_the_others_counted() {
        let names = |each: &str| each.chars().map(String::from).collect::<Vec<_>>();
        let said = |each| forbid(true, &names(each), false).unwrap();
        assert!(said("abc").starts_with("vCPUs of a, b, c have"), "{}", said("abc"));
        assert!(said("abcd").starts_with("vCPUs of a, b, c and 1 other VM have"));
        assert!(said("abcde").starts_with("vCPUs of a, b, c and 2 other VMs have"));
    }

    #[test]
    fn a_thread_that_was_given_a_cookie_is_found() {
        const PR_SCHED_CORE_CREATE: libc::c_ulong = 1;
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (pid, none) = (libc::c_ulong::from(child.id()), 0 as libc::c_ulong);
        // SAFETY: it takes numbers only, and gives a cookie to a process of this test's own.
        let status =
            unsafe { libc::prctl(PR_SCHED_CORE, PR_SCHED_CORE_CREATE, pid, PIDTYPE_PID, none) };
        let error = std::io::Error::last_os_error();
        let found = of([("child", Tid(child.id()))]);
        child.kill().unwrap();
        child.wait().unwrap();
        if status != 0 {
            return instep_madehost::skip::note(&format!("no cookie can be made here: {error}"));
        }
        assert_eq!(found, ["child"]);
    }
}
