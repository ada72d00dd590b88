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

/// All names with their values, as they are in C: what a test compares with the C compiler.
type NamedValues = Vec<(String, i64)>;

/// The value of a number in C: decimal or hexadecimal, unsigned or negative in parentheses.
fn number(text: &str) -> Option<i64> {
    let text = text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(text);
    let digits = text.trim_end_matches('u');
    match digits.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => digits.parse().ok(),
    }
}

/// The text of a line in front of its comment.
fn code(line: &str) -> &str {
    line.split("/*").next().unwrap_or_default().trim()
}

/// What `#define INSTEP_NAME VALUE` defines, without the guard: names, and values as text.
fn definitions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("#define INSTEP_"));
    let parts = lines.map(|rest| rest.split_once([' ', '\t']).unwrap_or((rest, "")));
    parts.filter(|(name, _)| *name != "INTF_H").map(|(name, value)| (name, code(value)))
}

/// The numbers that are no mechanisms.
fn numbers(text: &str) -> Vec<(&str, i64)> {
    let all = definitions(text).filter(|(name, _)| !name.starts_with("M_"));
    let read = |(name, value)| {
        let number = number(value);
        (name, number.unwrap_or_else(|| panic!("INSTEP_{name} {value}: this is no number")))
    };
    all.map(read).collect()
}

/// Names of mechanisms; their bits are 0, 1, 2 and so on.
fn mechanisms(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (name, value) in definitions(text) {
        let Some(name) = name.strip_prefix("M_") else { continue };
        if name == "ALL" {
            let all = format!("((1u << {}) - 1)", names.len());
            assert_eq!(value, all, "INSTEP_M_ALL has the bits of all mechanisms");
            continue;
        }
        assert_eq!(value, format!("(1u << {})", names.len()), "the bit of INSTEP_M_{name}");
        names.push(name.to_lowercase());
    }
    assert!(!names.is_empty(), "bpf/intf.h defines mechanisms");
    names
}

/// The enumerators of `enum instep_NAME`, without `prefix`, each with what a comment says of it. The last may be their
/// number, `INSTEP_NR_...`, which is left out.
fn enumerators<'a>(text: &'a str, name: &str, prefix: &str) -> Vec<(&'a str, u32, &'a str)> {
    let head = format!("enum instep_{name} {{");
    let body = text.split_once(&head).and_then(|(_, rest)| rest.split_once("};"));
    let (body, _) = body.unwrap_or_else(|| panic!("bpf/intf.h has no {head}"));
    let mut found = Vec::new();
    let mut next = 0;
    for line in body.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if code(line).starts_with("INSTEP_NR_") {
            continue;
        }
        let rest = line.strip_prefix(prefix);
        let rest = rest.unwrap_or_else(|| panic!("{head} {line}: no enumerator {prefix}*"));
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

/// The enumerations that are read, with the prefixes of their enumerators in C and in Rust.
const ENUMERATIONS: [(&str, &str, &str); 3] = [
    ("counter", "INSTEP_C_", ""),
    ("cosched", "INSTEP_COSCHED_", "COSCHED_"),
    ("event_kind", "INSTEP_E_", "EVENT_"),
];

/// Fails where the header has an enumeration that nobody reads.
fn check_enumerations(text: &str) {
    for line in text.lines().filter_map(|line| line.strip_prefix("enum instep_")) {
        let name = line.split_whitespace().next().unwrap_or_default();
        let is_known = ENUMERATIONS.iter().any(|(known, ..)| *known == name);
        assert!(is_known, "enum instep_{name} of bpf/intf.h is not read by crates/abi/build.rs");
    }
}

/// `GANG_ON` as `GangOn`.
fn camel(name: &str) -> String {
    let word = |word: &str| word[..1].to_owned() + &word[1..].to_lowercase();
    name.split('_').map(word).collect()
}

fn write_counters(out: &mut String, counters: &[(&str, u32, &str)]) {
    for (own, _) in SHOWN {
        assert!(counters.iter().any(|(name, ..)| *name == own), "there is no INSTEP_C_{own}");
    }
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
    check_enumerations(&text);
    let mut out = String::new();
    let mut values = NamedValues::new();
    for (name, value) in numbers(&text) {
        let kind = if value < 0 { "i32" } else { "u32" };
        let _ = writeln!(out, "/// `INSTEP_{name}`.\npub const {name}: {kind} = {value};");
        values.push((format!("INSTEP_{name}"), value));
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
        values.push((format!("INSTEP_M_{name}"), 1 << bit));
    }
    values.push(("INSTEP_M_ALL".to_owned(), (1 << count) - 1));
    for (kind, prefix, short) in ENUMERATIONS {
        let all = enumerators(&text, kind, prefix);
        values.extend(
            all.iter().map(|(name, value, _)| (format!("{prefix}{name}"), i64::from(*value))),
        );
        if kind == "counter" {
            write_counters(&mut out, &all);
            continue;
        }
        for (name, value, _) in all {
            let _ = writeln!(out, "/// `{prefix}{name}`.\npub const {short}{name}: u32 = {value};");
        }
    }
    let _ = writeln!(
        out,
        "/// All of them as they are called in C.\npub const NAMED_VALUES: [(&str, i64); {}] = {values:?};",
        values.len()
    );
    let dir = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&dir).join("intf.rs"), out).expect("OUT_DIR can be written");
}
