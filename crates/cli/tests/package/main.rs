//! The service and its package: how exposed the unit is, what the package holds, and that the service does under a
//! real systemd what the guide says.
//!
//! Packages are usually made of the program under test, which takes seconds. With `INSTEP_LAB_ALL=1` they are built as `make
//! deb` and `make rpm` do, and the program must then need nothing but the C library.
#![cfg(test)]

mod built;
mod completions;
mod deb;
mod debian;
mod rpm;
mod systemd;

pub(crate) use built::{
    cargo, check_pages, check_program, guest_program, has_cargo, holds_laboratory, is_whole,
    newest, pages, pages_in, turn,
};

use instep_madehost::skip;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Runs a command to its end; `None`, with a note, where there is no such program.
fn run(command: &mut Command) -> Option<Output> {
    match command.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip::note(&format!("no {} here", command.get_program().to_string_lossy()));
            None
        }
        Err(error) => panic!("{command:?}: {error}"),
    }
}

/// Both streams.
fn output_text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// The program of this name under test.
fn built(program: &str) -> &'static Path {
    Path::new(match program {
        "instep" => env!("CARGO_BIN_EXE_instep"),
        "instep-lab" => env!("CARGO_BIN_EXE_instep-lab"),
        _ => panic!("there is no program {program}"),
    })
}

/// What a program under test prints.
fn printed(program: &str, argument: &str) -> String {
    let output = Command::new(built(program)).arg(argument).output().unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// What systemd thinks of a unit with this text, by a command of systemd-analyze; whether it is content, and what it
/// says. `None` where it cannot be asked.
fn judged(text: &str, arguments: &[&str]) -> Option<(bool, String)> {
    let dir = tempfile::tempdir().unwrap();
    let unit = dir.path().join("instep.service");
    // The program need not be installed.
    let text = text.replace("/usr/bin/instep", env!("CARGO_BIN_EXE_instep"));
    fs::write(&unit, text).unwrap();
    let output = run(Command::new("systemd-analyze").args(arguments).arg(&unit))?;
    Some((output.status.success(), output_text(&output)))
}

fn unit() -> String {
    fs::read_to_string(root().join("packaging/instep.service")).unwrap()
}

/// The unit of the page.
fn unit_of_page() -> String {
    fs::read_to_string(root().join("packaging/instep-serve.service")).unwrap()
}

/// The unit with what each drop-in adds that is among the examples.
fn units_with_more() -> [String; 2] {
    ["dispatch.conf", "hot-memory.conf"].map(|name| {
        let more = fs::read_to_string(root().join("packaging").join(name)).unwrap();
        unit().replace("[Install]", &format!("{more}[Install]"))
    })
}

#[test]
fn operators_program_holds_no_code_of_the_laboratory() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    assert_eq!(holds_laboratory(built("instep")), [false; 4]);
    assert_eq!(holds_laboratory(built("instep-lab")), [true; 4], "so it would be found");
}

#[test]
fn exposure_of_the_unit_is_at_most_three() {
    let security = ["security", "--offline=true", "--threshold=30"];
    for text in [unit(), unit_of_page()].into_iter().chain(units_with_more()) {
        let Some((is_content, said)) = judged(&text, &security) else { return };
        assert!(is_content && said.contains("Overall exposure level"), "{said}");
    }
    let open = "[Service]\nExecStart=/usr/bin/instep run\n";
    let (is_content, said) = judged(open, &security).unwrap();
    assert!(!is_content, "a service with all rights is exposed: {said}");
}

#[test]
fn systemd_has_nothing_to_object_to_in_the_unit() {
    let verify = ["verify", "--man=no"];
    for text in [unit(), unit_of_page()].into_iter().chain(units_with_more()) {
        let Some((is_content, said)) = judged(&text, &verify) else { return };
        let own: Vec<&str> = said.lines().filter(|line| line.contains("instep.service")).collect();
        assert!(is_content && own.is_empty(), "{said}");
    }
    let (_, said) = judged(&unit().replace("KillMode=", "KillMood="), &verify).unwrap();
    assert!(said.contains("KillMood"), "systemd names a mistake: {said}");
}

#[test]
fn version_tells_commit_and_whether_kernel_scheduler_is_in() {
    let with = if cfg!(feature = "kernel") { "with" } else { "without" };
    let expected = format!(
        "{} ({}, {with} the kernel scheduler)\n",
        env!("CARGO_PKG_VERSION"),
        env!("INSTEP_COMMIT")
    );
    for program in ["instep", "instep-lab"] {
        assert_eq!(printed(program, "--version"), format!("{program} {expected}"));
    }
    if std::env::var_os("INSTEP_COMMIT").is_some() {
        return;
    }
    if env!("INSTEP_COMMIT") == "unknown commit" {
        skip::note("git did not tell the commit when this was built");
        return;
    }
    // Not the newest: somebody may commit while tests run.
    let known = ["merge-base", "--is-ancestor", env!("INSTEP_COMMIT"), "HEAD"];
    let git = run(Command::new("git").args(known).current_dir(root())).expect("it told the commit");
    assert!(git.status.success(), "{expected} names no commit: {}", output_text(&git));
}
