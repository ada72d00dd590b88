//! The shell scripts that start real KVM guests inside an emulated host, wait for them and move
//! them to where a scenario wants them; for a Xen host [`domains`] has the scripts.
//!
//! Pure: plans in, scripts out. A guest boots bound to the CPUs of its memory's node, so that what
//! it touches first lies there; then its vCPU threads are moved. Each guest's files lie in the
//! host's /run/lab: `NAME.pid`, `NAME.console`, `NAME.qemu`; `NAME.pages` says that its huge pages are
//! reserved.

use super::{GuestPlan, domains};
use crate::host::image::{GUEST_KERNEL, guest_archive};
use crate::host::machine::{Clock, HostMachine};
use crate::host::{PANIC, fell};
use crate::image::READY;
use data_encoding::BASE64;
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

/// The kernel's command line in a guest. An emulated host makes its clocks look broken; the driver
/// of the clock chip that `microvm` has not waits 5 s for it (seen, Linux 7.2), and the kernel's
/// certificates, half a second, are for modules, of which there are none. The rest is explained at the
/// host's command line; `reboot=t` makes a guest end by a fault, which is quick. It boots on one vCPU, and
/// `guest.sh` brings the others when the kernel has changed its code for what it found: host/anchor.rs. (They
/// have no deadline server then, which only a guest's real-time threads would tell.)
const COMMAND_LINE: &str = "console=ttyS0 maxcpus=1 lpj=20000000 quiet panic=-1 reboot=t \
                            mitigations=off nokaslr audit=0 apparmor=0 nowatchdog \
                            rcupdate.rcu_cpu_stall_suppress=1 tsc=reliable no_timer_check cryptomgr.notests init_on_alloc=0 \
                            initcall_blacklist=cmos_init,sched_clock_init_late,load_system_certificate_list";

/// The kernel that the guests of one start boot from, while they do. QEMU keeps this file mapped, which
/// counts as a guest's memory wherever the file lies (not only here: `numa_maps` tells of all mappings).
const KERNEL: &str = "/run/lab/kernel";

/// The script that puts [`KERNEL`] there.
pub fn kernel() -> String {
    format!("cp /{GUEST_KERNEL} {KERNEL}\n")
}

/// The exit status by which [`wait_ready`] tells that a guest's kernel panicked.
pub const PANICKED: u32 = 42;

/// Whether a guest is started, and ends, before the host answers: a process under counted time. So
/// nothing from outside comes in meanwhile, and every run is the same.
pub fn is_sealed(guest: &GuestPlan, host: &HostMachine) -> bool {
    guest.process && !guest.later && host.clock == Clock::Counted
}

/// The script that runs all sealed guests side by side to their ends; `None` without any.
pub fn sealed(guests: &[GuestPlan], host: &HostMachine) -> Option<String> {
    let scripts = guests.iter().filter(|guest| is_sealed(guest, host)).map(|g| start(g, host));
    let all: String = scripts.collect();
    (!all.is_empty()).then(|| all + "wait\n")
}

/// The script that starts a guest; it returns at once.
pub fn start(guest: &GuestPlan, host: &HostMachine) -> String {
    if host.is_xen() {
        return domains::start(guest);
    }
    let name = &guest.name;
    // What a guest of this name left that has ended: it would be taken for the new one's.
    let mut script = format!("cd /run/lab\nrm -f {name}.ended {name}.console {name}.pid\n");
    let mut inner = format!("echo $$ >/run/lab/{name}.pid; ");
    let weight = guest.weight.or(guest.process.then_some(100));
    if let Some(weight) = weight {
        let group = format!("/sys/fs/cgroup/lab/{name}");
        let _ = write!(
            script,
            "mkdir -p {group}\necho '+cpu +cpuset +memory' >/sys/fs/cgroup/lab/cgroup.subtree_control\n\
             echo {weight} >{group}/cpu.weight || exit 1\n"
        );
        let _ = write!(inner, "echo $$ >{group}/cgroup.procs; ");
    }
    if guest.hugepages {
        script.push_str(&reserve(guest));
    }
    if guest.process {
        let load = BASE64.encode(guest.load.as_bytes());
        let _ = writeln!(
            script,
            "echo {load} | base64 -d >{name}.load\n\
             sh -c '{inner}echo {READY}; . ./{name}.load' \
             </dev/null >/run/lab/{name}.console 2>&1 &"
        );
        return script;
    }
    let bound = match guest.start.memory_node {
        Some(node) => {
            let (first, last) = host.node_cpus(node);
            format!("taskset {} ", mask(first..=last))
        }
        None => String::new(),
    };
    let _ = writeln!(
        script,
        "{{ sh -c '{inner}exec {bound}qemu-system-x86_64 {}' </dev/null >/run/lab/{name}.qemu 2>&1\n\
         echo $? >/run/lab/{name}.ended; }} &",
        arguments(guest).join(" ")
    );
    script
}

/// The lines that reserve a guest's huge pages, once for all its starts.
fn reserve(guest: &GuestPlan) -> String {
    let (name, pages) = (&guest.name, guest.memory_mib.div_ceil(2));
    let nodes = match guest.start.memory_node {
        Some(node) => format!("/sys/devices/system/node/node{node}"),
        None => "/sys/kernel/mm".to_owned(),
    };
    let file = format!("{nodes}/hugepages/hugepages-2048kB/nr_hugepages");
    format!(
        "if [ ! -e {name}.pages ]; then\n\
         had=$(cat {file}); echo $((had + {pages})) >{file}\n\
         [ $(cat {file}) -ge $((had + {pages})) ] || \
         {{ echo 'no {pages} huge pages are free' >&2; exit 1; }}\n\
         : >{name}.pages\nfi\n"
    )
}

/// QEMU's arguments for a guest; none needs quoting but the kernel's command line, which has its own.
fn arguments(guest: &GuestPlan) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    let mut put = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
    put("-L", "/usr/share/qemu".to_owned());
    put("-name", format!("guest={},debug-threads=on", guest.name));
    let backed = if guest.hugepages { ",memory-backend=ram" } else { "" };
    put("-M", format!("microvm,pit=off,pic=off,rtc=off{backed}"));
    put("-accel", "kvm".to_owned());
    // The plainest model: `host` fails on nested KVM with QEMU 7.2. A guest that waits for a vCPU which
    // the host preempted may say so (directed yield). Its timer runs while a vCPU is idle, as on every
    // server's CPU: without that, and without another timer to wake it, Linux ticks all the time, and an
    // idle vCPU took a fifth of a real CPU.
    put("-cpu", "qemu64,+kvm-pv-sched-yield,+arat".to_owned());
    put("-smp", guest.vcpus.to_string());
    put("-m", format!("{}M", guest.memory_mib));
    if guest.hugepages {
        let size = guest.memory_mib;
        put(
            "-object",
            format!("memory-backend-memfd,id=ram,size={size}M,hugetlb=on,hugetlbsize=2M"),
        );
    }
    put("-kernel", KERNEL.to_owned());
    let own = Some(guest.name.as_str()).filter(|_| !guest.programs.is_empty());
    put("-initrd", format!("/{}", guest_archive(own)));
    let load = BASE64.encode(guest.load.as_bytes());
    put("-append", format!("\"{COMMAND_LINE} touch={} load={load}\"", guest.touch_mib));
    put("-serial", format!("file:/run/lab/{}.console", guest.name));
    put("-display", "none".to_owned());
    for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
        args.push(flag.to_owned());
    }
    args
}

/// The script that waits until these guests' loads run. It empties their kernel then, which none of them
/// reads again: they end where others are reset (`-no-reboot`).
pub fn wait_ready(names: &[&str]) -> String {
    format!(
        "cd /run/lab\nfor g in {}; do\n\
         \x20   until grep -q '{READY}' $g.console 2>/dev/null; do\n\
         \x20       sleep 0.3\n\
         \x20       pid=$(cat $g.pid 2>/dev/null) || continue\n\
         \x20       [ -d /proc/$pid ] && continue\n\
         \x20       grep -q '{PANIC}' $g.console && exit {PANICKED}\n\
         \x20       echo \"guest $g ended\" >&2; tail -n 3 $g.console $g.qemu >&2; exit 1\n\
         \x20   done\ndone\n\
         [ ! -e {KERNEL} ] || : >{KERNEL}\n",
        names.join(" ")
    )
}

/// The script that freezes each of these guests soon after it is up, so that others boot beside it as
/// quickly as alone. It returns at once; each guest needs a cgroup of its own.
pub fn freeze_when_up(names: &[&str]) -> String {
    format!(
        "for g in {}; do\n(\n  until grep -q '{READY}' /run/lab/$g.console 2>/dev/null; do \
         sleep 0.2; done\n  sleep 0.5\n  echo 1 >/sys/fs/cgroup/lab/$g/cgroup.freeze\n) \
         </dev/null >/dev/null 2>&1 &\ndone\n",
        names.join(" ")
    )
}

/// The script that prints the names of those guests that are not up.
pub fn not_up(names: &[&str]) -> String {
    let names = names.join(" ");
    format!("cd /run/lab\nfor g in {names}; do grep -q '{READY}' $g.console || echo $g; done\n")
}

/// The script that prints `NAME STATUS` of each of these guests whose QEMU has ended.
pub fn ended(names: &[&str]) -> String {
    let names = names.join(" ");
    format!(
        "cd /run/lab\nfor g in {names}; do [ -s $g.ended ] && echo $g $(cat $g.ended); done; :\n"
    )
}

/// How a guest died unasked, by its QEMU's exit status. One that was killed was ended by a step of the
/// scenario, or for lack of memory.
pub fn died(status: &str) -> Option<String> {
    let status: i32 = status.parse().ok()?;
    // A shell adds 128 to a signal; wait(2) has signals below and statuses above 8 bits.
    fell(ExitStatus::from_raw(if status > 128 { status - 128 } else { status << 8 }))
}

/// The script that ends a guest and waits until it is gone; its console is kept beside the next one's.
pub fn end(name: &str, host: &HostMachine) -> String {
    if host.is_xen() {
        return domains::end(name);
    }
    format!(
        "cd /run/lab\npid=$(cat {name}.pid) && kill -KILL $pid 2>/dev/null\n\
         while [ -n \"$pid\" ] && [ -d /proc/$pid ]; do sleep 0.1; done\n\
         cat {name}.console >>{name}.hung 2>/dev/null; rm -f {name}.console {name}.pid\n"
    )
}

/// The script that moves a guest that is up to where it shall start; `None` when anywhere will do. It
/// fails, and says why, when a vCPU thread was not found or a thread cannot be moved.
pub fn place(guest: &GuestPlan, host: &HostMachine) -> Option<String> {
    let all = mask(0..=host.cpus() - 1);
    let (name, start) = (&guest.name, &guest.start);
    if start.memory_node.is_none() && start.cpus.is_none() {
        return None;
    }
    let mut moves = String::new();
    for (vcpu, cpus) in start.cpus.iter().flatten().enumerate() {
        let mask = mask(cpus.iter().copied());
        let _ = writeln!(moves, "    'CPU {vcpu}/KVM') bind {mask}; moved=$((moved + 1)) ;;");
    }
    let each = |cases: &str| {
        format!(
            "for task in /proc/$pid/task/*; do\ntid=${{task##*/}}\n\
             case \"$(cat $task/comm 2>/dev/null)\" in\n{cases}    *) bind {all} ;;\nesac\ndone\n"
        )
    };
    // A thread that has ended meanwhile is no failure.
    let mut script = format!(
        "pid=$(cat /run/lab/{name}.pid) || exit 1\nbad=0; moved=0\n\
         bind() {{ taskset -p $1 $tid >/run/lab/{name}.moved 2>&1 || [ ! -d $task ] || {{\n\
         \x20   bad=1; echo \"thread $tid of guest {name} cannot have the CPUs $1:\" >&2\n\
         \x20   cat /run/lab/{name}.moved >&2\n}}; }}\n{}",
        each(&moves)
    );
    let wanted = start.cpus.as_ref().map_or(0, Vec::len);
    let _ = writeln!(
        script,
        "[ $moved -eq {wanted} ] || {{ \
         echo \"guest {name}: $moved of {wanted} vCPU threads were found\" >&2; exit 1; }}"
    );
    if start.cpus.is_some() && !start.pinned {
        script.push_str("sleep 0.5\n");
    }
    if !start.pinned {
        // A thread that another starts meanwhile inherits what that one had.
        for _ in 0..3 {
            script.push_str(&each(""));
            script.push_str("sleep 0.1\n");
        }
    }
    script.push_str("[ $bad -eq 0 ]\n");
    Some(script)
}

/// A mask of CPUs below 64, as taskset reads it.
fn mask(cpus: impl IntoIterator<Item = u32>) -> String {
    let bits = cpus.into_iter().fold(0u64, |bits, cpu| bits | 1u64.checked_shl(cpu).unwrap_or(0));
    format!("{bits:x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;
    use std::fs;
    use std::process::Command;

    fn scenario(guest: &str) -> Scenario {
        let text = format!(
            "about = 'x'\n[host]\nnodes = 2\ncores = 2\nthreads = 2\nmemory = '1GiB'\n[[guest]]\n\
             name = 'a'\nvcpus = 2\nmemory = '128MiB'\n{guest}"
        );
        Scenario::parse(&text, "x").unwrap()
    }

    #[test]
    fn a_guest_boots_where_its_memory_shall_be_and_moves_then() {
        let s = scenario("start = { memory_node = 1, cpus = [[0], [1]] }");
        let script = start(&s.guest[0], &s.host);
        assert!(script.contains("exec taskset f0 qemu-system-x86_64"), "{script}");
        let script = place(&s.guest[0], &s.host).unwrap();
        assert!(script.contains("'CPU 1/KVM') bind 2; moved"), "{script}");
        assert_eq!(script.matches("*) bind ff ;;").count(), 4, "{script}");
    }

    #[test]
    fn a_pinned_guest_is_not_set_free_again() {
        let s = scenario("start = { cpus = [[0], [1]], pinned = true }");
        let script = place(&s.guest[0], &s.host).unwrap();
        assert_eq!(script.matches("for task in").count(), 1, "{script}");
        let s = scenario("");
        assert_eq!(place(&s.guest[0], &s.host), None);
    }

    /// The script itself, run here on threads of this very test: taskset is one that fails.
    #[test]
    fn a_thread_that_cannot_be_moved_or_found_fails_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
        write("a.pid", std::process::id().to_string());
        let ran = |guest: &str, taskset: &str| {
            let s = scenario(guest);
            let script = place(&s.guest[0], &s.host).unwrap();
            let script = script.replace("/run/lab", &dir.path().display().to_string());
            let script = format!("taskset() {{ {taskset}; }}\nsleep() {{ :; }}\n{script}");
            let ran = Command::new("sh").args(["-c", &script]).output().unwrap();
            (ran.status.success(), String::from_utf8_lossy(&ran.stderr).into_owned())
        };
        assert_eq!(ran("start = { memory_node = 1 }", "true"), (true, String::new()));
        let (fine, said) = ran("start = { memory_node = 1 }", "echo refused; false");
        assert!(!fine && said.contains("cannot have the CPUs ff") && said.contains("refused"));
        let (fine, said) = ran("start = { cpus = [[0], [1]] }", "true");
        assert!(!fine && said.contains("0 of 2 vCPU threads were found"), "{said}");
    }

    /// The script itself, run here: what it says of a guest by what that one left.
    #[test]
    fn guests_are_up_by_their_own_words_or_have_ended() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display().to_string();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let ran = |script: &str| {
            let script = format!("sleep() {{ :; }}\n{}", script.replace("/run/lab", &at));
            let ran = Command::new("sh").args(["-c", &script]).output().unwrap();
            (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
        };
        let wait = wait_ready(&["a"]);
        write("kernel", "what it booted from");
        write("a.pid", "999999999");
        write("a.console", "last words\n");
        write("a.qemu", "");
        let (status, said) = ran(&wait);
        assert!(status == Some(1) && said.contains("guest a ended") && said.contains("last words"));
        write("a.console", PANIC);
        assert_eq!(ran(&wait).0, Some(42));
        write("a.console", READY);
        assert_eq!(ran(&wait), (Some(0), String::new()));
        assert_eq!(fs::read(dir.path().join("kernel")).unwrap(), b"");
        // Started again, the words of the one before are gone before anything is.
        let s = scenario("");
        let script = start(&s.guest[0], &s.host);
        let (before, _) = script.split_once("{ sh").unwrap();
        assert_eq!(ran(before).0, Some(0));
        assert!(!dir.path().join("a.console").exists() && !dir.path().join("a.pid").exists());
        // Without a kernel's copy, as for processes alone, none is made.
        fs::remove_file(dir.path().join("kernel")).unwrap();
        write("a.console", READY);
        assert_eq!(ran(&wait).0, Some(0));
        assert!(!dir.path().join("kernel").exists());
    }

    #[test]
    fn a_load_with_quotes_reaches_the_guest_unharmed() {
        let s = scenario("load = \"echo 'a\\\" b'\"");
        let script = start(&s.guest[0], &s.host);
        let coded = BASE64.encode(b"echo 'a\" b'");
        assert!(script.contains(&format!("load={coded}")), "{script}");
    }

    #[test]
    fn processes_run_sealed_under_counted_time_only() {
        let mut s = scenario("process = true\nload = 'instep-load compute'");
        assert_eq!(sealed(&s.guest, &s.host), None);
        s.host.clock = Clock::Counted;
        let script = sealed(&s.guest, &s.host).unwrap();
        assert!(script.ends_with("&\nwait\n") && !script.contains("qemu"), "{script}");
        s.guest[0].later = true;
        assert_eq!(sealed(&s.guest, &s.host), None);
    }

    #[test]
    fn weight_makes_a_cgroup_and_huge_pages_a_reserve() {
        let s = scenario("weight = 300\nhugepages = true\nstart = { memory_node = 1 }");
        let script = start(&s.guest[0], &s.host);
        for part in [
            "echo 300 >/sys/fs/cgroup/lab/a/cpu.weight",
            "node1/hugepages/hugepages-2048kB/nr_hugepages",
            "+ 64))",
            "[ ! -e a.pages ]",
            "memory-backend-memfd",
        ] {
            assert!(script.contains(part), "{part}: {script}");
        }
    }

    #[test]
    fn crashed_guest_is_distinguished_from_a_killed_one() {
        assert!(died("0").is_some_and(|how| how.contains("reset itself")));
        assert!(died("139").is_some_and(|how| how.contains("crashed")));
        for ended in ["137", "143", "1", ""] {
            assert_eq!(died(ended), None, "{ended}");
        }
        assert!(start(&scenario("").guest[0], &scenario("").host).contains("a.ended"));
    }
}
