//! Whether what must hold does hold, on an observation: each check gives a result with what was
//! found, whether it held or not.

use super::GuestPlan;
use super::evidence::{GuestSeen, LabObservation, ThreadSeen};
use super::hold::{Hold, Part};
use crate::host::machine::HostMachine;
use instep_core::wording::Count;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "LabCheck")]
pub struct Check {
    /// What was checked, in the scenario's words.
    pub what: String,
    /// Where: a guest, or a step.
    pub about: String,
    /// Whether it held.
    pub held: bool,
    /// What was found.
    pub found: String,
}

/// Checks an observation; `earlier` are those before it, by name. What `running` holds are the guests
/// that must run by now ([`Scenario::running_at`]): all of them, where the hold names none.
///
/// [`Scenario::running_at`]: super::Scenario::running_at
pub fn check(
    hold: &Hold,
    seen: &LabObservation,
    earlier: &BTreeMap<String, LabObservation>,
    running: &[&GuestPlan],
    host: &HostMachine,
) -> Vec<Check> {
    let mut checks = Vec::new();
    let unnamed = running.iter().filter(|_| hold.guests.is_empty()).map(|plan| &plan.name);
    for name in hold.named().chain(unnamed).collect::<BTreeSet<_>>() {
        if !seen.guests.iter().any(|guest| guest.name == *name) {
            checks.push(result("runs", name, false, "it does not run".to_owned()));
        }
    }
    let guests: Vec<&GuestSeen> = seen
        .guests
        .iter()
        .filter(|guest| hold.guests.is_empty() || hold.guests.contains(&guest.name))
        .collect();
    if guests.is_empty() {
        checks.push(result("runs", "any guest", false, "no guest runs".to_owned()));
    }
    for guest in &guests {
        // A guest that died has a process until that is waited for, without vCPU threads.
        if let Some(plan) = running.iter().find(|plan| plan.name == guest.name && !plan.process) {
            let (has, wanted) = (guest.vcpus().count(), plan.vcpus as usize);
            if has != wanted {
                let found = format!("{has} of {wanted} vCPU threads");
                checks.push(result("runs", &guest.name, false, found));
            }
        }
        about_guest(hold, guest, earlier, host, &mut checks);
    }
    for (name, node) in &hold.home {
        if let Some(guest) = seen.guests.iter().find(|guest| guest.name == *name) {
            let held = guest.home() == Some(*node);
            checks.push(result(&format!("home = {node}"), name, held, nodes(guest)));
        }
    }
    for guest in seen.guests.iter().filter(|guest| hold.unbound.contains(&guest.name)) {
        let is_bound = |thread: &&ThreadSeen| thread.allowed.len() < host.cpus() as usize;
        let bound = guest.threads.iter().filter(is_bound).count();
        let held = bound == 0 && !guest.threads.is_empty();
        let found = format!("{bound} of {} threads are bound", guest.threads.len());
        checks.push(result("unbound", &guest.name, held, found));
    }
    about_homes(hold, &guests, &mut checks);
    about_work(hold, seen, earlier, &mut checks);
    checks
}

fn about_homes(hold: &Hold, guests: &[&GuestSeen], checks: &mut Vec<Check>) {
    let mut homes: BTreeMap<u32, usize> = BTreeMap::new();
    for node in guests.iter().filter_map(|guest| guest.home()) {
        *homes.entry(node).or_default() += 1;
    }
    let found: Vec<String> =
        homes.iter().map(|(node, count)| format!("node {node}: {count}")).collect();
    let mut put = |what: &str, held: bool| {
        checks.push(result(what, "all guests", held, found.join(", ")));
    };
    if let Some(most) = hold.guests_per_node_at_most {
        let held = homes.values().all(|count| *count <= most);
        put(&format!("guests_per_node_at_most = {most}"), held);
    }
    if let Some(least) = hold.guests_with_home_at_least {
        let held = homes.values().sum::<usize>() >= least;
        put(&format!("guests_with_home_at_least = {least}"), held);
    }
}

/// CPU time and work, of each guest and as parts of what some got together.
fn about_work(
    hold: &Hold,
    seen: &LabObservation,
    earlier: &BTreeMap<String, LabObservation>,
    checks: &mut Vec<Check>,
) {
    let begin = hold.since.as_ref().and_then(|name| earlier.get(name));
    let at = |seen: Option<&LabObservation>, name: &str, of: Counter| {
        let guests = seen.map_or(&[][..], |seen| &seen.guests);
        guests.iter().find(|guest| guest.name == name).map_or(0, of)
    };
    let since =
        |name: &str, of: Counter| at(Some(seen), name, of).saturating_sub(at(begin, name, of));
    let work: Counter = |guest| guest.work.unwrap_or(0);
    for (name, least) in &hold.work_at_least {
        let done = since(name, work);
        let what = format!("work_at_least = {least}");
        checks.push(result(&what, name, done >= *least, format!("{done} done")));
    }
    let mut shares = |word: &str, parts: &BTreeMap<String, Part>, of: Counter| {
        let total: u64 = parts.keys().map(|name| since(name, of)).sum();
        for (name, [least, most]) in parts {
            let share = since(name, of) as f64 / total.max(1) as f64;
            let what = format!("{word} = [{least}, {most}]");
            let held = (*least..=*most).contains(&share);
            checks.push(result(&what, name, held, format!("{share:.4} of {total}")));
        }
    };
    shares("cpu_share", &hold.cpu_share, |guest| guest.cpu_us);
    shares("work_share", &hold.work_share, work);
}

/// What a guest has used or done so far.
type Counter = fn(&GuestSeen) -> u64;

fn about_guest(
    hold: &Hold,
    guest: &GuestSeen,
    earlier: &BTreeMap<String, LabObservation>,
    host: &HostMachine,
    checks: &mut Vec<Check>,
) {
    let mut put = |what: &str, held: bool, found: String| {
        checks.push(result(what, &guest.name, held, found));
    };
    if hold.vcpus_on_home_node {
        put("vcpus_on_home_node", guest.home().is_some(), nodes(guest));
    }
    if let Some(part) = hold.memory_home_at_least {
        let what = format!("memory_home_at_least = {part}");
        put(&what, guest.memory_home >= part, format!("{:.3}", guest.memory_home));
    }
    if let Some(part) = hold.memory_home_at_most {
        let what = format!("memory_home_at_most = {part}");
        put(&what, guest.memory_home <= part, format!("{:.3}", guest.memory_home));
    }
    if let Some(part) = hold.locality_at_least {
        let what = format!("locality_at_least = {part}");
        put(&what, guest.locality >= part, format!("{:.3}", guest.locality));
    }
    let mut cores: Vec<u32> = guest.vcpus().map(|vcpu| host.core_of(vcpu.home_cpu())).collect();
    cores.sort_unstable();
    let on: Vec<String> = guest.vcpus().map(|vcpu| vcpu.cpu.to_string()).collect();
    let on = format!("on CPUs {}", on.join(", "));
    if hold.siblings_on_distinct_cores {
        let held = cores.windows(2).all(|pair| pair[0] != pair[1]);
        put("siblings_on_distinct_cores", held, on.clone());
    }
    if hold.siblings_on_one_core {
        let held = !cores.is_empty() && cores.first() == cores.last();
        put("siblings_on_one_core", held, on);
    }
    if !hold.cpus_unused.is_empty() {
        let found: Vec<&ThreadSeen> =
            guest.vcpus().filter(|vcpu| hold.cpus_unused.contains(&vcpu.cpu)).collect();
        let what = format!("cpus_unused = {:?}", hold.cpus_unused);
        put(&what, found.is_empty(), format!("used by {}", Count::of(found.len(), "vCPU")));
    }
    if let Some(name) = &hold.affinities_as {
        let before = earlier
            .get(name)
            .and_then(|seen| seen.guests.iter().find(|before| before.name == guest.name));
        let (held, found) = match before {
            None => (false, format!("{} was not seen then", guest.name)),
            Some(before) => same_affinities(before, guest),
        };
        put(&format!("affinities_as = {name}"), held, found);
    }
}

fn same_affinities(before: &GuestSeen, now: &GuestSeen) -> (bool, String) {
    let mut compared = 0;
    for thread in &now.threads {
        let Some(old) = before.threads.iter().find(|old| old.tid == thread.tid) else { continue };
        compared += 1;
        if old.allowed != thread.allowed {
            let found = format!(
                "thread {} ({}) has CPUs {:?}, before {:?}",
                thread.tid, thread.name, thread.allowed, old.allowed
            );
            return (false, found);
        }
    }
    (compared > 0, format!("{} as before", Count::of(compared, "thread")))
}

fn nodes(guest: &GuestSeen) -> String {
    let nodes: Vec<String> = guest.nodes.iter().map(ToString::to_string).collect();
    format!("CPUs of node {}", nodes.join(", "))
}

/// A result.
pub fn result(what: &str, about: &str, held: bool, found: String) -> Check {
    Check { what: what.to_owned(), about: about.to_owned(), held, found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::evidence::{parse, tests::CAPTURED, tests::machine};

    fn plan(name: &str) -> GuestPlan {
        let text = format!("name = '{name}'\nvcpus = 2\nmemory = '128MiB'");
        toml::from_str(&text).unwrap()
    }

    fn held_of(hold: &Hold, text: &str, running: &[&GuestPlan]) -> Vec<(String, bool)> {
        let earlier = BTreeMap::new();
        let seen = parse(text, &machine());
        let checks = check(hold, &seen, &earlier, running, &machine());
        checks.into_iter().map(|check| (check.what, check.held)).collect()
    }

    #[test]
    fn a_guest_that_died_fails_whatever_is_held_of_those_that_run() {
        let (a, b, c) = (plan("a"), plan("b"), plan("c"));
        let hold = Hold { siblings_on_distinct_cores: true, ..Hold::default() };
        let word = "siblings_on_distinct_cores".to_owned();
        let runs = "runs".to_owned();
        let alive = CAPTURED.replace("guest b 170\n", "");
        assert_eq!(held_of(&hold, &alive, &[&a]), [(word.clone(), true)]);
        let found = held_of(&hold, &alive, &[&a, &c]);
        assert_eq!(found, [(runs.clone(), false), (word.clone(), true)], "c has no process");
        let found = held_of(&hold, CAPTURED, &[&a, &b]);
        assert_eq!(found, [(word.clone(), true), (runs.clone(), false), (word.clone(), true)]);
        let mut one = CAPTURED.replace("(CPU 1/KVM)", "(worker)").replace("guest b 170\n", "");
        assert_eq!(held_of(&hold, &one, &[&a]), [(runs, false), (word, true)], "a vCPU is gone");
        one = one.replace("(CPU 0/KVM)", "(worker)");
        let process = GuestPlan { process: true, ..a };
        assert!(held_of(&hold, &one, &[&process]).iter().all(|(_, held)| *held));
    }

    fn held(hold: &Hold, text: &str) -> Vec<bool> {
        let earlier = BTreeMap::from([("before".to_owned(), parse(CAPTURED, &machine()))]);
        let seen = parse(text, &machine());
        check(hold, &seen, &earlier, &[], &machine()).iter().map(|check| check.held).collect()
    }

    fn only_a() -> Hold {
        Hold { guests: vec!["a".to_owned()], ..Hold::default() }
    }

    /// Each check is shown to fail on a host that breaks it.
    #[test]
    fn every_check_holds_on_the_good_host_and_fails_on_a_broken_one() {
        let cases: [(Hold, &str, &str); 9] = [
            (Hold { vcpus_on_home_node: true, ..only_a() }, "list:\t2-3", "list:\t2-4"),
            (Hold { memory_home_at_least: Some(0.7), ..only_a() }, "N0=30", "N0=3"),
            (Hold { memory_home_at_most: Some(0.8), ..only_a() }, "N1=10", "N1=1"),
            (Hold { siblings_on_distinct_cores: true, ..only_a() }, " 17 2 0", " 17 1 0"),
            (Hold { affinities_as: Some("before".to_owned()), ..only_a() }, "\t0-7", "\t0-6"),
            (Hold { cpus_unused: vec![7], ..only_a() }, " 17 2 0", " 17 7 0"),
            (
                Hold { home: BTreeMap::from([("a".to_owned(), 0)]), ..only_a() },
                "list:\t0-1",
                "list:\t4-5",
            ),
            (Hold { locality_at_least: Some(0.7), ..only_a() }, "N0=30", "N0=3"),
            (
                Hold { work_at_least: BTreeMap::from([("a".to_owned(), 812)]), ..only_a() },
                "812",
                "811",
            ),
        ];
        for (hold, good, bad) in cases {
            assert_eq!(held(&hold, CAPTURED), [true], "{hold:?}");
            let mut broken = CAPTURED.replace(good, bad);
            assert_ne!(broken, CAPTURED);
            if hold.siblings_on_distinct_cores {
                broken = broken.replace("list:\t2-3", "list:\t0-3");
            }
            assert_eq!(held(&hold, &broken), [false], "{hold:?}");
        }
    }

    #[test]
    fn stacked_siblings_and_unbound_threads_are_recognised() {
        let stacked = Hold { siblings_on_one_core: true, ..only_a() };
        assert_eq!(held(&stacked, CAPTURED), [false]);
        let moved = CAPTURED.replace(" 17 2 0", " 17 1 0");
        assert_eq!(held(&stacked, &moved), [false], "it may not run there any more");
        assert_eq!(held(&stacked, &moved.replace("list:\t2-3", "list:\t0-3")), [true]);
        let unbound = Hold { unbound: vec!["a".to_owned()], ..only_a() };
        assert_eq!(held(&unbound, CAPTURED), [false]);
        let free = CAPTURED.replace("list:\t0-1", "list:\t0-7").replace("list:\t2-3", "list:\t0-7");
        assert_eq!(held(&unbound, &free), [true]);
    }

    #[test]
    fn shares_are_of_what_came_since() {
        let share = BTreeMap::from([("a".to_owned(), [0.9, 1.0]), ("b".to_owned(), [0.0, 0.1])]);
        let hold = Hold { cpu_share: share, ..only_a() };
        assert_eq!(held(&hold, CAPTURED), [true, true]);
        let both = CAPTURED.replace("guest b 170", "guest b 170\nx/cpu.stat:usage_usec 19010000");
        assert_eq!(held(&hold, &both), [false, false], "half and half");
        let share = BTreeMap::from([("a".to_owned(), [1.0, 1.0])]);
        let hold = Hold { work_share: share, since: Some("before".to_owned()), ..only_a() };
        assert_eq!(held(&hold, CAPTURED), [false], "nothing was done since");
        assert_eq!(held(&hold, &CAPTURED.replace("812", "813")), [true]);
    }

    #[test]
    fn too_many_guests_on_a_node_and_a_guest_that_is_gone_are_found() {
        let hold = Hold { guests_per_node_at_most: Some(0), ..only_a() };
        assert_eq!(held(&hold, CAPTURED), [false]);
        let hold = Hold { guests_with_home_at_least: Some(2), ..only_a() };
        assert_eq!(held(&hold, CAPTURED), [false]);
        assert_eq!(held(&only_a(), "online 0-7\n"), [false, false]);
    }
}
