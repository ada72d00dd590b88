//! Names and values of bpf/intf.h are those that the C compiler sees.
#![cfg(test)]

use instep_abi::{COUNTERS, NAMED_VALUES};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/intf.h");
/// What is defined there and is no number: the guard.
const NO_NUMBER: &str = "INSTEP_INTF_H";

/// Runs the C compiler that builds the workspace on a program.
fn compile(arguments: &[&str], program: &str) -> Output {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut child = Command::new(compiler)
        .args(arguments)
        .args(["-x", "c", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a C compiler builds the workspace");
    child.stdin.take().unwrap().write_all(program.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Asserts at compile time that each name has this value.
fn assertions<'a>(values: impl Iterator<Item = (&'a str, i64)>) -> String {
    let mut program = format!("#include \"{HEADER}\"\n");
    for (name, value) in values {
        let _ = writeln!(program, "_Static_assert((s64){name} == {value}LL, \"{name}\");");
    }
    program
}

#[test]
fn every_value_is_that_of_the_c_compiler() {
    let output = compile(&["-fsyntax-only"], &assertions(NAMED_VALUES.iter().copied()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let count = ("INSTEP_NR_COUNTERS", COUNTERS.len() as i64);
    let output = compile(&["-fsyntax-only"], &assertions([count].into_iter()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn another_value_would_be_found() {
    for (name, value) in [("INSTEP_MAX_CPUS", 1025), ("INSTEP_C_GANG_OFF", 0), ("INSTEP_NO", 1)] {
        let output = compile(&["-fsyntax-only"], &assertions([(name, value)].into_iter()));
        assert!(!output.status.success(), "{name}");
    }
}

#[test]
fn every_name_of_the_header_is_known() {
    let output = compile(&["-dM", "-E"], &assertions([].into_iter()));
    let text = String::from_utf8(output.stdout).unwrap();
    let defined = text.lines().filter_map(|line| line.strip_prefix("#define INSTEP_"));
    let defined = defined.filter_map(|rest| rest.split_whitespace().next());
    let known: BTreeSet<&str> = NAMED_VALUES.iter().map(|(name, _)| *name).collect();
    let unknown: Vec<String> = defined
        .map(|name| format!("INSTEP_{name}"))
        .filter(|name| name != NO_NUMBER && !known.contains(name.as_str()))
        .collect();
    assert_eq!(unknown, [""; 0], "the build drops them");
    assert!(known.contains("INSTEP_NO_NODE") && known.contains("INSTEP_M_ALL"));
}
