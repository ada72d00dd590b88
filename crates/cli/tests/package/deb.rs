//! The Debian package: what it holds, and what its scripts do.

use super::{
    cargo, check_pages, check_program, guest_program, has_cargo, holds_laboratory, is_whole,
    newest, output_text, pages, root, run, turn,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the package must hold, besides a page for each command.
const FILES: [&str; 21] = [
    "usr/bin/instep",
    "etc/instep/instep.toml",
    "usr/lib/systemd/system/instep.service",
    "usr/lib/systemd/system/instep-serve.service",
    "usr/share/man/man1/instep.1.gz",
    "usr/share/man/man1/instep-run.1.gz",
    "usr/share/bash-completion/completions/instep",
    "usr/share/zsh/vendor-completions/_instep",
    "usr/share/fish/vendor_completions.d/instep.fish",
    "usr/share/instep/schemas.json",
    "usr/share/doc/instep/guide.md",
    "usr/share/doc/instep/schemas.json",
    "usr/share/doc/instep/decisions/0020-service-and-package.md",
    "usr/share/doc/instep/models/validation.md",
    "usr/share/doc/instep/recordings/slow-guest.instep",
    "usr/share/doc/instep/copyright",
    "usr/lib/sysusers.d/instep.conf",
    "usr/share/doc/instep/examples/dispatch.conf",
    "usr/share/doc/instep/examples/hot-memory.conf",
    "usr/share/doc/instep/examples/prometheus/instep-alerts.yml",
    "usr/share/doc/instep/examples/prometheus/instep-dashboard.json",
];

/// What the package of the laboratory must hold, besides a page for each command.
const LABORATORY: [&str; 10] = [
    "usr/bin/instep-lab",
    "usr/bin/instep-load",
    "usr/share/instep-lab/scenarios/example/sim.toml",
    "usr/share/instep-lab/scenarios/lab/hello.toml",
    "usr/share/instep-lab/scenarios/sim/spinning.toml",
    "usr/share/man/man1/instep-lab.1.gz",
    "usr/share/man/man1/instep-lab-lab-run.1.gz",
    "usr/share/bash-completion/completions/instep-lab",
    "usr/share/zsh/vendor-completions/_instep-lab",
    "usr/share/fish/vendor_completions.d/instep-lab.fish",
];

/// The package of the operator's program in `dir`; `None`, with a note, where it cannot be made.
pub(crate) fn package(dir: &Path, is_whole: bool) -> Option<PathBuf> {
    let _turn = turn();
    made("instep-cli", "instep_", dir, is_whole)
}

/// The package that this package of cargo describes.
fn made(package: &str, start: &str, dir: &Path, is_whole: bool) -> Option<PathBuf> {
    if !has_cargo("deb") {
        return None;
    }
    let made = if is_whole {
        let output = run(cargo().args(["xtask", "deb"]))?;
        assert!(output.status.success(), "{}", output_text(&output));
        root().join("target/package/deb")
    } else {
        pages()?;
        let mut deb = cargo();
        deb.args(["deb", "--package", package, "--no-build", "--fast", "--output"]).arg(dir);
        if cfg!(debug_assertions) {
            deb.args(["--profile", "dev"]);
        }
        let output = run(&mut deb)?;
        assert!(output.status.success(), "{}", output_text(&output));
        dir.to_owned()
    };
    Some(newest(made, start, "deb"))
}

/// Runs a program of dpkg on the package; what it prints.
pub(crate) fn dpkg_deb(arguments: &[&str], package: &Path, more: &[&str]) -> Option<String> {
    let output = run(Command::new("dpkg-deb").args(arguments).arg(package).args(more))?;
    assert!(output.status.success(), "{}", output_text(&output));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn package_is_complete_and_runs_unpacked() {
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
    check_pages(&tree, "instep", "instep-lab");
    check_page_of_run(&tree);
    check_program(&tree.join("usr/bin/instep"));
    assert_eq!(holds_laboratory(&tree.join("usr/bin/instep")), [false; 4]);
}

#[test]
fn package_of_the_laboratory_needs_the_same_version_and_runs() {
    let dir = tempfile::tempdir().unwrap();
    let package = {
        let _turn = turn();
        if guest_program().is_none() {
            return;
        }
        made("instep-lab", "instep-lab_", &dir.path().join("made"), is_whole())
    };
    let Some(package) = package else { return };
    let tree = dir.path().join("tree");
    if dpkg_deb(&["-x"], &package, &[tree.to_str().unwrap()]).is_none() {
        return;
    }
    for file in LABORATORY {
        assert!(tree.join(file).is_file(), "{file} is not in the package");
    }
    let field = |name| dpkg_deb(&["-f"], &package, &[name]).unwrap().trim().to_owned();
    assert_eq!(field("Package"), "instep-lab");
    let same = format!("instep (= {})", field("Version"));
    assert!(field("Depends").split(", ").any(|need| need == same), "{}", field("Depends"));
    assert!(field("Recommends").contains("qemu-system-x86"), "{}", field("Recommends"));
    let scripts = dpkg_deb(&["-I"], &package, &[]).unwrap();
    assert!(!scripts.contains("postinst") && !scripts.contains("prerm"), "{scripts}");
    assert!(!tree.join("etc").exists() && !tree.join("usr/lib/systemd").exists());
    check_pages(&tree, "instep-lab", "instep");
    check_program(&tree.join("usr/bin/instep-lab"));
    assert_eq!(holds_laboratory(&tree.join("usr/bin/instep-lab")), [true; 4]);
}

/// What dpkg does at installation, upgrade and removal.
fn check_control(control: &Path) {
    let read = |name: &str| fs::read_to_string(control.join(name)).unwrap();
    assert_eq!(read("conffiles").trim(), "/etc/instep/instep.toml");
    let (after, before) = (read("postinst"), read("prerm"));
    let user = after.find("systemd-sysusers instep.conf").expect("the service's user is made");
    assert!(user < after.find("try-restart").unwrap(), "before the service needs it: {after}");
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

/// The page and the completions have the options.
fn check_page_of_run(tree: &Path) {
    let page = tree.join("usr/share/man/man1/instep-run.1.gz");
    let page = String::from_utf8(Command::new("zcat").arg(page).output().unwrap().stdout).unwrap();
    assert!(page.contains("state\\-dir") && page.contains("SIGUSR1"), "{page}");
    let complete = tree.join("usr/share/bash-completion/completions/instep");
    assert!(fs::read_to_string(complete).unwrap().contains("--state-dir"));
}
