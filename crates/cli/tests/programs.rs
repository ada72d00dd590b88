//! The two programs: `instep` passes the commands of the laboratory on to `instep-lab`, whose exit status and streams
//! are then its own, and says what to install where that is missing.
#![cfg(test)]

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{Started, binary, instep};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the laboratory has.
const COMMANDS: [&str; 6] = ["sim", "reproduce", "agree", "lab", "bench", "demo"];

/// A bench for which nothing is built before.
const BENCH: [&str; 5] = ["bench", "--schedulers", "default", "--case", "compute-50"];

/// A copy of `instep` alone in a directory below `dir`.
fn alone(dir: &Path) -> PathBuf {
    let bin = dir.join("bin");
    fs::create_dir(&bin).unwrap();
    // Not by this process: a program that others start meanwhile could have it open for writing.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_instep")).arg(&bin).status();
    assert!(copied.unwrap().success());
    bin.join("instep")
}

/// Makes a script named instep-lab in `dir`.
fn laboratory(dir: &Path, script: &str) {
    fs::create_dir_all(dir).unwrap();
    let file = dir.join("instep-lab");
    instep_madehost::program(&file, format!("#!/bin/sh\n{script}\n").as_bytes());
}

#[test]
fn missing_laboratory_is_named_with_its_package() {
    let dir = tempfile::tempdir().unwrap();
    let instep = alone(dir.path());
    let run = |args: &[&str]| Started::new(binary(&instep).args(args).env("PATH", "/none")).end();
    for command in COMMANDS {
        let said = [&format!("`{command}` is a command of the laboratory"), "package instep-lab"];
        let ran = run(&[command]).expect(2).says(&said.map(|word| word as &str));
        ran.says(&["cargo build --release -p instep-cli", dir.path().to_str().unwrap()]);
    }
    run(&["help", "sim"]).expect(2).says(&["install the package instep-lab"]);
    // The operator's own commands do without.
    run(&["topology"]).expect(0);
    run(&["simm"]).expect(2).says(&["unrecognized subcommand"]);
    let file = dir.path().join("x.toml");
    let began = dir.path().join("began");
    let command = ["touch", began.to_str().unwrap()];
    let args = ["profile", "--scenario", file.to_str().unwrap(), "--"];
    let ran = run(&[&args[..], &command].concat()).expect(2);
    ran.says(&["--scenario tries the program in the simulator", "install the package instep-lab"]);
    assert!(!began.exists(), "nothing is profiled in vain");
}

#[test]
fn arguments_streams_and_status_are_those_of_the_laboratory() {
    let dir = tempfile::tempdir().unwrap();
    let instep = alone(dir.path());
    let there = dir.path().join("there");
    let script =
        "cat; printf '<%s>' \"$@\"; echo said >&2; [ $PPID = $WANTED ] || exit 99; exit $STATUS";
    laboratory(&there, script);
    let odd = OsStr::from_bytes(b"not UTF-8: \xff");
    for status in [0, 1, 2] {
        let input = dir.path().join("input");
        fs::write(&input, "input ").unwrap();
        let mut command = Command::new(&instep);
        command
            .args(["sim", "two words", "", "--", "*"])
            .arg(odd)
            .env("STATUS", status.to_string());
        // In the place of `instep`: its parent is the one of `instep`.
        command.env("WANTED", std::process::id().to_string());
        command.env("PATH", format!("{}:/usr/bin:/bin", there.display()));
        let ran = command.stdin(fs::File::open(input).unwrap()).output().unwrap();
        assert_eq!(ran.stdout, b"input <sim><two words><><--><*><not UTF-8: \xff>");
        assert_eq!((ran.stderr.as_slice(), ran.status.code()), (&b"said\n"[..], Some(status)));
    }
    // The one beside comes first, and a signal that ends it is its own.
    laboratory(&dir.path().join("bin"), "kill -TERM $$");
    let mut command = Command::new(&instep);
    let ran = command.arg("lab").env("PATH", &there).stdin(Stdio::null()).output().unwrap();
    assert_eq!(ran.status.signal(), Some(15));
}

#[test]
fn laboratory_that_cannot_be_run_is_an_error_of_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let instep = alone(dir.path());
    let file = dir.path().join("bin/instep-lab");
    fs::write(&file, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let ran = Started::new(binary(&instep).arg("demo")).end().expect(2);
    ran.says(&["cannot run", "bin/instep-lab"]);
}

#[test]
fn laboratory_refuses_instep_that_is_missing_or_of_another_build() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_instep-lab")).arg(&bin).status();
    assert!(copied.unwrap().success());
    let hello = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/lab/hello.toml");
    let hello = hello.to_str().unwrap();
    let run = |args: &[&str]| {
        Started::new(binary(bin.join("instep-lab")).args(args).env("PATH", "/none")).end()
    };
    let all = [&["lab", "run", hello][..], &["demo"], &BENCH];
    for args in all {
        run(args).expect(2).says(&["instep is neither in", "install the package instep"]);
    }
    instep_madehost::program(&bin.join("instep"), b"#!/bin/sh\necho instep 0.0.9 '(abc)'\n");
    for args in all {
        let ran = run(args).expect(2);
        ran.says(&["bin/instep is of another build (0.0.9 (abc))", env!("CARGO_PKG_VERSION")]);
    }
    // What needs no `instep` goes on.
    run(&["reproduce", "--list"]).expect(0);
    run(&["imitate"]).expect(2).says(&["standard input holds no profile"]);
}

#[test]
fn help_of_both_fits_80_columns_and_names_the_other() {
    let of = |program: &str, args: &[&str]| {
        let ran = Started::new(binary(program).args(args).env("COLUMNS", "80")).end().expect(0);
        // Lines of examples are for copying, and so are not wrapped.
        let text = ran.stdout.split("Examples:").next().unwrap().to_owned();
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert_eq!(long, [] as [&str; 0], "{program} {args:?}");
        text
    };
    let instep = of(env!("CARGO_BIN_EXE_instep"), &["--help"]);
    let line = format!("With instep-lab: {}.", COMMANDS.join(", "));
    assert!(instep.lines().any(|found| found == line), "{instep}");
    let laboratory = of(env!("CARGO_BIN_EXE_instep-lab"), &["--help"]);
    for command in COMMANDS {
        let has = |help: &str| help.lines().any(|line| line.starts_with(&format!("  {command} ")));
        assert!(has(&laboratory) && !has(&instep), "{command}");
        of(env!("CARGO_BIN_EXE_instep-lab"), &[command, "-h"]);
        // By way of `instep`, in both forms.
        let passed = of(env!("CARGO_BIN_EXE_instep"), &[command, "--help"]);
        assert!(passed.contains(&format!("instep-lab {command}")), "{passed}");
        assert_eq!(passed, of(env!("CARGO_BIN_EXE_instep"), &["help", command]));
    }
}

#[test]
fn laboratory_runs_by_way_of_instep() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/sim/spinning.toml");
    let ran = instep(&["sim", file.to_str().unwrap(), "--json"]).expect(0);
    assert_eq!(ran.json()["schema"], "instep.sim/1");
    instep(&["sim", "/nowhere.toml"]).expect(2).says(&["/nowhere.toml"]);
}
