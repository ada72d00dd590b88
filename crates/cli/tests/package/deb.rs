//! The Debian package: what it holds, and what its scripts do.

use super::{
    cargo, check_program, has_cargo, instep, is_whole, newest, pages, root, run, said, turn,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the package must hold, besides a page for each command.
const FILES: [&str; 15] = [
    "usr/bin/instep",
    "etc/instep/instep.toml",
    "usr/lib/systemd/system/instep.service",
    "usr/lib/systemd/system/instep-serve.service",
    "usr/share/man/man1/instep.1.gz",
    "usr/share/man/man1/instep-run.1.gz",
    "usr/share/man/man1/instep-lab-run.1.gz",
    "usr/share/bash-completion/completions/instep",
    "usr/share/zsh/vendor-completions/_instep",
    "usr/share/fish/vendor_completions.d/instep.fish",
    "usr/share/doc/instep/guide.md",
    "usr/share/doc/instep/copyright",
    "usr/share/doc/instep/examples/dispatch.conf",
    "usr/share/doc/instep/examples/prometheus/instep-alerts.yml",
    "usr/share/doc/instep/examples/prometheus/instep-dashboard.json",
];

/// The package in `dir`; `None`, with a note, where it cannot be made.
pub(crate) fn package(dir: &Path, is_whole: bool) -> Option<PathBuf> {
    let _turn = turn();
    if !has_cargo("deb") {
        return None;
    }
    let made = if is_whole {
        let output = run(cargo().args(["xtask", "deb"]))?;
        assert!(output.status.success(), "{}", said(&output));
        root().join("target/package/deb")
    } else {
        pages()?;
        let mut deb = cargo();
        deb.args(["deb", "--package", "instep-cli", "--no-build", "--fast", "--output"]).arg(dir);
        if cfg!(debug_assertions) {
            deb.args(["--profile", "dev"]);
        }
        let output = run(&mut deb)?;
        assert!(output.status.success(), "{}", said(&output));
        dir.to_owned()
    };
    Some(newest(made, "deb"))
}

/// Runs a program of dpkg on the package; what it prints.
fn dpkg_deb(arguments: &[&str], package: &Path, more: &[&str]) -> Option<String> {
    let output = run(Command::new("dpkg-deb").args(arguments).arg(package).args(more))?;
    assert!(output.status.success(), "{}", said(&output));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn package_holds_what_a_host_needs_and_runs_from_where_it_is_unpacked() {
    let dir = tempfile::tempdir().unwrap();
    let Some(package) = package(&dir.path().join("made"), is_whole()) else { return };
    let (tree, control) = (dir.path().join("tree"), dir.path().join("control"));
    if dpkg_deb(&["-x"], &package, &[tree.to_str().unwrap()]).is_none() {
        return;
    }
    dpkg_deb(&["-e"], &package, &[control.to_str().unwrap()]).unwrap();
    for file in FILES {
        assert!(tree.join(file).is_file(), "{file} is not in the package");
    }
    let shipped = |name: &str| fs::read(root().join("packaging").join(name)).unwrap();
    assert_eq!(fs::read(tree.join(FILES[1])).unwrap(), shipped("instep.toml"));
    assert_eq!(fs::read(tree.join(FILES[2])).unwrap(), shipped("instep.service"));
    assert_eq!(fs::read(tree.join(FILES[3])).unwrap(), shipped("instep-serve.service"));
    check_control(&control);
    check_pages(&tree);
    check_program(&tree.join("usr/bin/instep"));
}

/// What dpkg does at installation, upgrade and removal.
fn check_control(control: &Path) {
    let read = |name: &str| fs::read_to_string(control.join(name)).unwrap();
    assert_eq!(read("conffiles").trim(), "/etc/instep/instep.toml");
    let (after, before) = (read("postinst"), read("prerm"));
    assert!(!after.contains("systemctl enable") && !after.contains("_dh_action=start"), "{after}");
    for unit in ["instep.service", "instep-serve.service"] {
        let restarts = |line: &str| line.contains("deb-systemd-invoke try-restart");
        let restarted =
            after.lines().any(|line| restarts(line) && line.contains(&format!(" {unit} ")));
        assert!(restarted, "{unit}: {after}");
    }
    assert!(
        before.contains("[ \"$1\" = remove ]") && before.contains("instep restore"),
        "{before}"
    );
    let stop = before.find("deb-systemd-invoke stop").expect("the service is stopped");
    assert!(stop < before.find("instep restore").unwrap(), "before the rest is put back: {before}");
    for script in ["postinst", "prerm", "postrm"] {
        let checked = Command::new("sh").arg("-n").arg(control.join(script)).status().unwrap();
        assert!(checked.success() && !read(script).contains("#DEBHELPER#"), "{script}");
    }
}

/// Every command that `--help` lists has a page, which has its options.
fn check_pages(tree: &Path) {
    let help = instep("--help");
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names: Vec<&str> = commands
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.contains(&"run") && names.len() > 10, "{names:?}");
    for name in names {
        let page = tree.join(format!("usr/share/man/man1/instep-{name}.1.gz"));
        assert!(page.is_file(), "{name} has no page");
    }
    let page = tree.join("usr/share/man/man1/instep-run.1.gz");
    let page = String::from_utf8(Command::new("zcat").arg(page).output().unwrap().stdout).unwrap();
    assert!(page.contains("state\\-dir") && page.contains("SIGUSR1"), "{page}");
    let complete = tree.join("usr/share/bash-completion/completions/instep");
    assert!(fs::read_to_string(complete).unwrap().contains("--state-dir"));
}
