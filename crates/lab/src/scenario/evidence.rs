//! What an emulated host's kernel says of its guests, read without Instep: the evidence by which
//! Instep is judged.
//!
//! A script prints parts of /proc; a pure function reads them. A guest's touched memory is what
//! its QEMU holds in anonymous or huge pages: its own programs and libraries are shared by all.

use super::GuestPlan;
use crate::host::machine::HostMachine;
use instep_core::idset::CpuSet;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// What was seen at one moment.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct LabObservation {
    /// Every guest that runs, by name; those that are processes also when they have ended.
    pub guests: Vec<GuestSeen>,
    /// The CPUs that are online.
    pub online: Vec<u32>,
}

/// A guest as the kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct GuestSeen {
    /// Its name.
    pub name: String,
    /// The process id in the host of its QEMU, or of its load where that is a process; 0 when it
    /// has ended.
    pub pid: u32,
    /// CPU time that all its threads have used, in microseconds: its cgroup's where it has one of
    /// its own, else in steps of 10 ms.
    pub cpu_us: u64,
    /// The work that its load has done, if that is an `instep-load` that has said so.
    pub work: Option<u64>,
    /// The nodes whose CPUs its vCPUs may use.
    pub nodes: Vec<u32>,
    /// Bytes of touched memory on each node.
    pub memory_bytes_by_node: Vec<u64>,
    /// The part (0 to 1) of that memory on `nodes`.
    pub memory_home: f64,
    /// Over its vCPUs, the mean part of that memory on the node where the vCPU is now.
    pub locality: f64,
    /// Its threads by id.
    pub threads: Vec<ThreadSeen>,
}

/// A thread as the kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct ThreadSeen {
    /// Its id.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// The index of the vCPU it runs, if any.
    pub vcpu: Option<u32>,
    /// The CPUs it may use.
    pub allowed: Vec<u32>,
    /// The CPU it ran on last.
    pub cpu: u32,
    /// CPU time it has used, in hundredths of a second.
    pub cpu_centis: u64,
}

impl ThreadSeen {
    /// The CPU it ran on last; of one that was bound elsewhere and has slept since, where it will run.
    pub fn home_cpu(&self) -> u32 {
        match self.allowed.first() {
            Some(first) if !self.allowed.contains(&self.cpu) => *first,
            _ => self.cpu,
        }
    }
}

impl GuestSeen {
    /// The threads that run vCPUs.
    pub fn vcpus(&self) -> impl Iterator<Item = &ThreadSeen> {
        self.threads.iter().filter(|thread| thread.vcpu.is_some())
    }

    /// The one node its vCPUs are confined to, if they are.
    pub fn home(&self) -> Option<u32> {
        match self.nodes.as_slice() {
            [node] => Some(*node),
            _ => None,
        }
    }
}

/// The script that prints the evidence about these guests.
pub fn script(guests: &[GuestPlan]) -> String {
    // Few processes for each guest: starting one takes long on emulated CPUs that are busy.
    let mut script = String::from("exec 2>/dev/null\n");
    for guest in guests {
        let gone = if guest.process { "pid=0" } else { "pid=" };
        let _ = write!(
            script,
            "g={}; pid=; read -r pid </run/lab/$g.pid && {{ [ -d /proc/$pid ] || {gone}; }}\n\
             if [ -n \"$pid\" ]; then\n\
             \x20   echo \"guest $g $pid\"\n\
             \x20   grep -H '^usage_usec' /sys/fs/cgroup/lab/$g/cpu.stat\n\
             \x20   grep '^{{' /run/lab/$g.console | tail -n 2\n\
             \x20   cd /proc/$pid && grep -H -E \\\n\
             \x20       '^[0-9]+ \\(|^Cpus_allowed_list:|anon=| huge' \\\n\
             \x20       task/*/stat task/*/status numa_maps\n\
             fi\n",
            guest.name
        );
    }
    script.push_str("read -r online </sys/devices/system/cpu/online\necho \"online $online\"\n");
    script
}

/// Reads what [`script`] printed; lines of another shape are left out.
pub fn parse(text: &str, host: &HostMachine) -> LabObservation {
    let mut seen = LabObservation::default();
    let mut threads: BTreeMap<u32, ThreadSeen> = BTreeMap::new();
    for line in text.lines() {
        let line = line.strip_prefix("task/").unwrap_or(line);
        if let Some(guest) = line.strip_prefix("guest ").and_then(parse_guest) {
            finish(&mut seen, &mut threads, host);
            let memory_bytes_by_node = vec![0; host.nodes as usize];
            seen.guests.push(GuestSeen { memory_bytes_by_node, ..guest });
        } else if let Some(list) = line.strip_prefix("online ") {
            seen.online = cpus(list);
        } else if let Some(guest) = seen.guests.last_mut() {
            if line.starts_with('{') {
                guest.work = work(line).or(guest.work);
                continue;
            }
            if let Some((_, used)) = line.split_once("/cpu.stat:usage_usec ") {
                guest.cpu_us = used.trim().parse().unwrap_or(0);
                continue;
            }
            match line.split_once(':').and_then(|(file, rest)| Some((file.split_once('/')?, rest)))
            {
                Some(((tid, file), rest)) if tid.parse::<u32>().is_ok() => {
                    let tid = tid.parse().unwrap_or_default();
                    let thread = threads.entry(tid).or_default();
                    thread.tid = tid;
                    read_thread(thread, file, rest);
                }
                _ => add_memory(&mut guest.memory_bytes_by_node, line),
            }
        }
    }
    finish(&mut seen, &mut threads, host);
    seen
}

/// The work done since its start, in a line of `instep-load`; `None` where the line is cut.
fn work(line: &str) -> Option<u64> {
    serde_json::from_str::<serde_json::Value>(line.trim()).ok()?.get("work")?.as_u64()
}

fn parse_guest(rest: &str) -> Option<GuestSeen> {
    let (name, pid) = rest.split_once(' ')?;
    Some(GuestSeen { name: name.to_owned(), pid: pid.parse().ok()?, ..GuestSeen::default() })
}

fn read_thread(thread: &mut ThreadSeen, file: &str, rest: &str) {
    match file {
        "stat" => {
            // The name in parentheses may hold anything; what follows has fixed places, counted
            // from field 3 (proc(5)): 14 and 15 are CPU times, 39 is the CPU.
            let (before, after) = rest.rsplit_once(')').unwrap_or_default();
            let name = before.split_once('(').map_or("", |(_, name)| name);
            thread.vcpu = name
                .strip_prefix("CPU ")
                .and_then(|name| name.split('/').next())
                .and_then(|index| index.parse().ok());
            thread.name = name.to_owned();
            let fields: Vec<&str> = after.split_whitespace().collect();
            let number = |field: usize| -> u64 {
                fields.get(field - 3).and_then(|text| text.parse().ok()).unwrap_or(0)
            };
            thread.cpu = u32::try_from(number(39)).unwrap_or(0);
            thread.cpu_centis = number(14).saturating_add(number(15));
        }
        "status" => {
            thread.allowed = rest.split_once(':').map(|(_, list)| cpus(list)).unwrap_or_default();
        }
        _ => {}
    }
}

/// Adds a line of numa_maps: `N0=12` counts pages of `kernelpagesize_kB`. File mappings count
/// only when they are huge pages, which are a guest's memory.
fn add_memory(by_node: &mut [u64], line: &str) {
    let words = || line.split_whitespace();
    let huge = words().any(|word| word == "huge");
    let own = words().any(|word| word.starts_with("anon="))
        && !words().any(|word| word.starts_with("file="));
    if !(huge || own) {
        return;
    }
    let value = |word: &str, key: &str| word.strip_prefix(key)?.parse::<u64>().ok();
    let page = words().find_map(|word| value(word, "kernelpagesize_kB=")).unwrap_or(4) << 10;
    for word in words() {
        let Some((node, pages)) = word.strip_prefix('N').and_then(|w| w.split_once('=')) else {
            continue;
        };
        let (Ok(node), Ok(pages)) = (node.parse::<usize>(), pages.parse::<u64>()) else { continue };
        if let Some(bytes) = by_node.get_mut(node) {
            *bytes = bytes.saturating_add(pages.saturating_mul(page));
        }
    }
}

/// Completes the last guest with its threads and what follows from them.
fn finish(seen: &mut LabObservation, threads: &mut BTreeMap<u32, ThreadSeen>, host: &HostMachine) {
    let Some(guest) = seen.guests.last_mut() else { return };
    guest.threads = std::mem::take(threads).into_values().collect();
    if guest.cpu_us == 0 {
        guest.cpu_us = guest
            .threads
            .iter()
            .map(|thread| thread.cpu_centis.saturating_mul(10_000))
            .fold(0, u64::saturating_add);
    }
    let each = (host.cpus() / host.nodes).max(1);
    let nodes: BTreeSet<u32> =
        guest.vcpus().flat_map(|vcpu| vcpu.allowed.iter().map(|cpu| cpu / each)).collect();
    let on = |node: u32| guest.memory_bytes_by_node.get(node as usize).copied().unwrap_or(0);
    let total: u64 = guest.memory_bytes_by_node.iter().sum();
    let part = |bytes: u64| if total == 0 { 0.0 } else { bytes as f64 / total as f64 };
    let memory_home = part(nodes.iter().map(|node| on(*node)).sum());
    let local: Vec<f64> = guest.vcpus().map(|vcpu| part(on(vcpu.cpu / each))).collect();
    let locality = local.iter().sum::<f64>() / local.len().max(1) as f64;
    guest.nodes = nodes.into_iter().collect();
    guest.memory_home = memory_home;
    guest.locality = locality;
}

fn cpus(list: &str) -> Vec<u32> {
    let set = CpuSet::parse_list(list.trim()).unwrap_or_default();
    set.iter().map(|cpu| cpu.0).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::scenario) fn machine() -> HostMachine {
        toml::from_str("nodes = 2\ncores = 2\nthreads = 2\nmemory = '1GiB'").unwrap()
    }

    /// Captured in an emulated host (Linux 7.2.13), shortened.
    pub(in crate::scenario) const CAPTURED: &str = "\
guest a 168
task/168/stat:168 (qemu-system-x86) S 1 168 1 0 -1 4194560 1 0 0 0 20 5 0 0 20 0 6 0 1433 1 1 18446744073709551615 1 1 1 0 0 0 0 4096 0 0 0 0 17 3 0 0 0 0 0
task/189/stat:189 (CPU 0/KVM) R 1 168 1 0 -1 4194560 1 0 0 0 900 50 0 0 20 0 6 0 1433 1 1 18446744073709551615 1 1 1 0 0 0 0 4096 0 0 0 0 17 0 0 0 0 0 0
task/190/stat:190 (CPU 1/KVM) R 1 168 1 0 -1 4194560 1 0 0 0 900 51 0 0 20 0 6 0 1433 1 1 18446744073709551615 1 1 1 0 0 0 0 4096 0 0 0 0 17 2 0 0 0 0 0
task/168/status:Cpus_allowed_list:\t0-7
task/189/status:Cpus_allowed_list:\t0-1
task/190/status:Cpus_allowed_list:\t2-3
/sys/fs/cgroup/lab/a/cpu.stat:usage_usec 19010000
{\"schema\":\"instep.load/1\",\"work\":812}\r
{\"schema\":\"instep.load/1\",\"wor
numa_maps:7f26c0000000 default anon=10 dirty=10 active=0 N0=30 N1=10 kernelpagesize_kB=4
numa_maps:7f26d0000000 default file=/lib/x.so anon=2 dirty=2 mapped=9 N1=900 kernelpagesize_kB=4
guest b 170
online 0-6
";

    #[test]
    fn threads_memory_and_home_are_read_from_the_kernel_s_words() {
        let seen = parse(CAPTURED, &machine());
        assert_eq!(seen.online, [0, 1, 2, 3, 4, 5, 6]);
        let guest = &seen.guests[0];
        assert_eq!((guest.pid, guest.home(), guest.threads.len()), (168, Some(0), 3));
        assert_eq!(guest.memory_bytes_by_node, [30 << 12, 10 << 12]);
        assert!((guest.memory_home - 0.75).abs() < 1e-9 && (guest.locality - 0.75).abs() < 1e-9);
        let vcpu = &guest.threads[2];
        assert_eq!((vcpu.vcpu, vcpu.cpu, vcpu.cpu_centis), (Some(1), 2, 951));
        assert_eq!((guest.cpu_us, guest.work), (19_010_000, Some(812)));
        assert_eq!((seen.guests[1].name.as_str(), seen.guests[1].work), ("b", None));
    }

    #[test]
    fn huge_pages_count_by_their_size() {
        let mut by_node = vec![0, 0];
        add_memory(
            &mut by_node,
            "7f default file=/memfd:x huge dirty=3 N1=3 kernelpagesize_kB=2048",
        );
        assert_eq!(by_node, [0, 3 << 21]);
    }

    #[test]
    fn a_thread_that_was_just_bound_is_where_it_may_be() {
        let thread = |cpu| ThreadSeen { cpu, allowed: vec![2, 3], ..ThreadSeen::default() };
        assert_eq!((thread(3).home_cpu(), thread(4).home_cpu()), (3, 2));
        assert_eq!(ThreadSeen { cpu: 4, ..ThreadSeen::default() }.home_cpu(), 4);
    }

    #[test]
    fn rubbish_is_no_evidence_and_no_panic() {
        for text in [
            "guest",
            "guest a x",
            "guest a 1\n1/stat:)",
            "guest a 1\nN0=18446744073709551615 anon=1 kernelpagesize_kB=18446744073709551615",
            "guest a 1\n1/status:Cpus_allowed_list:\t9-1",
            "guest a 1\ntask/1/stat:1 (CPU 99999999999/KVM) R\nnuma_maps:1 N99=1 anon=1",
        ] {
            assert!(parse(text, &machine()).guests.len() <= 1);
        }
    }
}
