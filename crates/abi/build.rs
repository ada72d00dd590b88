//! Makes Rust of bpf/intf.h: its numbers, mechanisms and enumerations. What it cannot read fails the build.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// Counters whose name for people is not that of bpf/intf.h in lower case. A new one needs no line here.
const SHOWN: [(&str, &str); 19] = [
    ("SWITCH", "switches"),
    ("WAKE_HOLE", "wake_holes"),
    ("WAKE_TEAR", "wake_tears"),
    ("SLOT", "slots"),
    ("GRANT", "grants"),
    ("REFUSED", "refusals"),
    ("SPAN", "spans"),
    ("SLOT_KICK", "slot_kicks"),
    ("HOLE", "holes"),
    ("MOVE_SET", "sets_moved"),
    ("MOVE_DOMAIN", "domains_moved"),
    ("MOVE_THREAD", "threads_moved"),
    ("KTHREAD", "kthreads_first"),
    ("CORE_LEFT", "cores_left"),
    ("EVENT_LOST", "events_lost"),
    ("LIMIT_LOST", "limits_lost"),
    ("GROUP_LOST", "groups_lost"),
    ("TRIAL", "trials"),
    ("HOST_WINDOW", "host_windows"),
];

/// `#define INSTEP_NAME VALUE` as name and value, those of mechanisms left out.
fn number(line: &str) -> Option<(&str, u32)> {
    let (name, rest) = line.strip_prefix("#define INSTEP_")?.split_once(' ')?;
    let word = rest.split_whitespace().next()?.trim_end_matches('u');
    let value = match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => word.parse(),
    };
    Some((name, value.ok()?))
}

/// Names of mechanisms; their bits are 0, 1, 2 and so on.
fn mechanisms(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("#define INSTEP_M_") else { continue };
        let Some((name, value)) = rest.split_once(' ') else { continue };
        if name == "ALL" {
            let all = format!("((1u << {}) - 1)", names.len());
            assert_eq!(value.trim(), all, "INSTEP_M_ALL has the bits of all mechanisms");
            continue;
        }
        let bit = format!("(1u << {})", names.len());
        assert!(value.trim_start().starts_with(&bit), "INSTEP_M_{name} is {bit}");
        names.push(name.to_lowercase());
    }
    assert!(!names.is_empty(), "bpf/intf.h defines mechanisms");
    names
}

/// The enumerators of `enum instep_NAME`, without `prefix`, each with what a comment says of it.
fn enumerators<'a>(text: &'a str, name: &str, prefix: &str) -> Vec<(&'a str, u32, &'a str)> {
    let head = format!("enum instep_{name} {{");
    let body = text.split_once(&head).and_then(|(_, rest)| rest.split_once("};"));
    let (body, _) = body.unwrap_or_else(|| panic!("bpf/intf.h has no {head}"));
    let mut found = Vec::new();
    let mut next = 0;
    for line in body.lines() {
        let Some(rest) = line.trim().strip_prefix(prefix) else { continue };
        let (head, comment) = rest.split_once(',').unwrap_or((rest, ""));
        let (name, value) = head.split_once('=').unwrap_or((head, ""));
        if !value.is_empty() {
            next = value.trim().parse().expect("an enumerator's value is a number");
        }
        let comment = comment.trim().trim_start_matches("/*").trim_end_matches("*/").trim();
        found.push((name.trim(), next, comment));
        next += 1;
    }
    assert!(!found.is_empty(), "bpf/intf.h has enumerators {prefix}*");
    found
}

/// `GANG_ON` as `GangOn`.
fn camel(name: &str) -> String {
    let word = |word: &str| word[..1].to_owned() + &word[1..].to_lowercase();
    name.split('_').map(word).collect()
}

fn write_counters(out: &mut String, counters: &[(&str, u32, &str)]) {
    let shown = |name: &str| {
        let row = SHOWN.iter().find(|(own, _)| *own == name);
        row.map_or(name.to_lowercase(), |(_, shown)| (*shown).to_owned())
    };
    let _ = writeln!(
        out,
        "/// A counter of the scheduler; its number is its place in `COUNTERS`.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq)]\npub enum Counter {{"
    );
    for (name, value, comment) in counters {
        let comment = if comment.is_empty() { name } else { comment };
        let _ = writeln!(out, "/// {comment}\n{} = {value},", camel(name));
    }
    let names: Vec<String> = counters.iter().map(|(name, ..)| shown(name)).collect();
    let _ = writeln!(
        out,
        "}}\n/// Names of the counters, in their order.\npub const COUNTERS: [&str; {}] = {names:?};",
        names.len()
    );
}

fn main() {
    let path = Path::new("../../bpf/intf.h");
    println!("cargo:rerun-if-changed={}", path.display());
    println!("cargo:rerun-if-changed=build.rs");
    let text = fs::read_to_string(path).expect("bpf/ is beside crates/");
    let mut out = String::new();
    for (name, value) in text.lines().filter_map(number) {
        let _ = writeln!(out, "/// `INSTEP_{name}`.\npub const {name}: u32 = {value};");
    }
    let names = mechanisms(&text);
    let without: Vec<String> = names.iter().map(|name| format!("without.{name}")).collect();
    let count = names.len();
    let _ = writeln!(
        out,
        "/// Names of the mechanisms, bit 0 first (`INSTEP_M_*`).\npub const MECHANISMS: [&str; {count}] = {names:?};\n\
         /// Tunings of the simulator that switch each off.\npub const WITHOUT: [&str; {count}] = {without:?};"
    );
    for (bit, name) in names.iter().enumerate() {
        let name = name.to_uppercase();
        let _ = writeln!(out, "/// `INSTEP_M_{name}`.\npub const M_{name}: u32 = 1 << {bit};");
    }
    let mut counters = enumerators(&text, "counter", "INSTEP_C_");
    counters.retain(|(name, ..)| !name.starts_with("NR_"));
    write_counters(&mut out, &counters);
    for (kind, prefix, short) in
        [("cosched", "INSTEP_COSCHED_", "COSCHED_"), ("event_kind", "INSTEP_E_", "EVENT_")]
    {
        for (name, value, _) in enumerators(&text, kind, prefix) {
            let _ = writeln!(out, "/// `{prefix}{name}`.\npub const {short}{name}: u32 = {value};");
        }
    }
    let dir = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&dir).join("intf.rs"), out).expect("OUT_DIR can be written");
}
