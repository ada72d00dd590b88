//! The RPM package, made of the program under test and read back by the tools of RPM.

use super::{
    built, cargo, check_program, guest_program, has_cargo, holds_laboratory, is_whole, newest,
    output_text, pages, root, run, turn,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the package must hold, besides a page for each command, and whether it belongs to the settings.
const FILES: [(&str, bool); 19] = [
    ("/usr/bin/instep", false),
    ("/etc/instep/instep.toml", true),
    ("/usr/lib/systemd/system/instep.service", false),
    ("/usr/lib/systemd/system/instep-serve.service", false),
    ("/usr/share/man/man1/instep-run.1.gz", false),
    ("/usr/share/bash-completion/completions/instep", false),
    ("/usr/share/zsh/site-functions/_instep", false),
    ("/usr/share/fish/vendor_completions.d/instep.fish", false),
    ("/usr/share/licenses/instep/COPYING", false),
    ("/usr/share/instep/schemas.json", false),
    ("/usr/share/doc/instep/guide.md", false),
    ("/usr/share/doc/instep/schemas.json", false),
    ("/usr/share/doc/instep/decisions/0020-service-and-package.md", false),
    ("/usr/share/doc/instep/models/validation.md", false),
    ("/usr/share/doc/instep/recordings/slow-guest.instep", false),
    ("/usr/lib/sysusers.d/instep.conf", false),
    ("/usr/share/doc/instep/examples/hot-memory.conf", false),
    ("/usr/share/doc/instep/examples/prometheus/instep-alerts.yml", false),
    ("/usr/share/doc/instep/examples/prometheus/instep-dashboard.json", false),
];

/// What the package of the laboratory must hold.
const LABORATORY: [&str; 7] = [
    "/usr/bin/instep-lab",
    "/usr/bin/instep-load",
    "/usr/share/instep-lab/scenarios/example/sim.toml",
    "/usr/share/instep-lab/scenarios/lab/hello.toml",
    "/usr/share/man/man1/instep-lab-sim.1.gz",
    "/usr/share/bash-completion/completions/instep-lab",
    "/usr/share/licenses/instep-lab/COPYING",
];

/// The package of a program in `dir`, by the directory that describes it; `None`, with a note, where it cannot be made.
fn package(program: &str, described: &str, dir: &Path, is_whole: bool) -> Option<PathBuf> {
    if !has_cargo("generate-rpm") {
        return None;
    }
    let output = if is_whole {
        run(cargo().args(["xtask", "rpm"]))?
    } else {
        pages()?;
        // Not by this process: a program that others start meanwhile could have it open for writing.
        let packed = root().join("target/package").join(program);
        let copied = Command::new("cp").arg(built(program)).arg(packed).status();
        assert!(copied.unwrap().success());
        fs::create_dir(dir).unwrap();
        let mut rpm = cargo();
        rpm.args(["generate-rpm", "--package", described, "--payload-compress", "none"]);
        // The same on a machine of RPM and on others.
        run(rpm.args(["--auto-req", "builtin", "--output"]).arg(dir))?
    };
    assert!(output.status.success(), "{}", output_text(&output));
    let made = if is_whole { root().join("target/package/rpm") } else { dir.to_owned() };
    Some(newest(made, &format!("{program}-{}", env!("CARGO_PKG_VERSION")), "rpm"))
}

/// What `rpm` says of the package.
fn query(package: &Path, arguments: &[&str]) -> Option<String> {
    let output =
        run(Command::new("rpm").args(["--query", "--package"]).args(arguments).arg(package))?;
    assert!(output.status.success(), "{}", output_text(&output));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn rpm_package_is_complete_and_runs_unpacked() {
    let dir = tempfile::tempdir().unwrap();
    let _turn = turn();
    let made = dir.path().join("made");
    let Some(package) = package("instep", "crates/cli", &made, is_whole()) else { return };
    let Some(listed) = query(&package, &["--queryformat", "[%{FILENAMES} %{FILEFLAGS:fflags}\n]"])
    else {
        return;
    };
    let flags = |name: &str| {
        let line = listed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in the package: {listed}")).to_owned()
    };
    for (name, is_setting) in FILES {
        assert_eq!(flags(name).contains("cn"), is_setting, "a changed setting stays: {name}");
    }
    let about = query(&package, &["--queryformat", "%{NAME} %{LICENSE} %{ARCH}"]).unwrap();
    assert_eq!(about, format!("instep GPL-2.0-only {}", std::env::consts::ARCH));
    let scripts = query(&package, &["--scripts"]).unwrap();
    check_scripts(&scripts);
    check_directories(&scripts, &listed);
    let needs = query(&package, &["--requires"]).unwrap();
    assert!(needs.contains("libc.so.6"), "{needs}");
    // As the package of Debian.
    let suggested = query(&package, &["--suggests"]).unwrap();
    assert!(suggested.contains("instep-lab") && suggested.contains("libvirt"), "{suggested}");

    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let mut archive =
        Command::new("rpm2cpio").arg(&package).stdout(Stdio::piped()).spawn().unwrap();
    let mut cpio = Command::new("cpio");
    cpio.args(["--extract", "--make-directories", "--quiet"]).current_dir(&tree);
    let unpacked = run(cpio.stdin(archive.stdout.take().unwrap()));
    assert!(archive.wait().is_ok());
    let Some(unpacked) = unpacked else { return };
    assert!(unpacked.status.success(), "{}", output_text(&unpacked));
    let shipped = fs::read(root().join("packaging/instep.service")).unwrap();
    assert_eq!(fs::read(tree.join("usr/lib/systemd/system/instep.service")).unwrap(), shipped);
    check_program(&tree.join("usr/bin/instep"));
    assert_eq!(holds_laboratory(&tree.join("usr/bin/instep")), [false; 4]);
}

#[test]
fn rpm_package_of_the_laboratory_needs_the_same_version() {
    let dir = tempfile::tempdir().unwrap();
    let _turn = turn();
    if guest_program().is_none() {
        return;
    }
    let made = dir.path().join("made");
    let Some(package) = package("instep-lab", "crates/lab", &made, is_whole()) else { return };
    let Some(listed) = query(&package, &["--list"]) else { return };
    for name in LABORATORY {
        assert!(listed.lines().any(|line| line == name), "{name} is not in the package: {listed}");
    }
    assert!(!listed.contains("/usr/bin/instep\n") && !listed.contains("/etc/"), "{listed}");
    let own = query(&package, &["--queryformat", "%{NAME} = %{VERSION}-%{RELEASE}"]).unwrap();
    let same = own.replacen("instep-lab", "instep", 1);
    let needs = query(&package, &["--requires"]).unwrap();
    assert!(needs.lines().any(|need| need == same), "{same}: {needs}");
    let recommended = query(&package, &["--recommends"]).unwrap();
    assert!(recommended.contains("qemu-system-x86"), "{recommended}");
    assert_eq!(query(&package, &["--scripts"]).unwrap(), "", "it has no service");
}

/// Removal leaves no directory of Instep's own, and removes those below another one first.
fn check_directories(scripts: &str, listed: &str) {
    let (_, removed) = scripts.rsplit_once("rmdir ").expect("removal removes directories");
    let removed: Vec<&str> =
        removed.split_whitespace().take_while(|word| *word != "2>/dev/null").collect();
    let files = listed.lines().filter_map(|line| line.split(' ').next());
    let is_own = |path: &&Path| path.iter().any(|part| part == "instep");
    for file in files {
        let own = Path::new(file).ancestors().skip(1).take_while(is_own);
        let places: Vec<usize> = own
            .map(|directory| {
                let place = removed.iter().position(|path| Path::new(path) == directory);
                place.unwrap_or_else(|| panic!("{} stays: {removed:?}", directory.display()))
            })
            .collect();
        assert!(places.is_sorted(), "{file}: {removed:?}");
    }
}

/// What rpm does at installation, upgrade and removal.
fn check_scripts(scripts: &str) {
    let part = |name: &str| {
        let rest = scripts.split_once(&format!("{name} scriptlet (using /bin/sh):\n"));
        let rest = rest.unwrap_or_else(|| panic!("there is no {name}: {scripts}")).1;
        rest.split("scriptlet (using").next().unwrap().to_owned()
    };
    let (after, before, upgraded) =
        (part("postinstall"), part("preuninstall"), part("postuninstall"));
    let reloads = after.contains("systemctl daemon-reload");
    assert!(after.contains("systemd-sysusers instep.conf"), "{after}");
    assert!(reloads && after.matches("systemctl").count() == 1, "it does more: {after}");
    assert!(before.contains("[ \"$1\" -eq 0 ]") && !before.contains("try-restart"), "{before}");
    let stop = before.find("disable --now").expect("the service is stopped");
    assert!(stop < before.find("instep restore").unwrap(), "before the rest is put back: {before}");
    assert!(upgraded.contains("[ \"$1\" -ge 1 ]"), "{upgraded}");
    let (_, removed) = upgraded.split_once("else\n").expect("nothing is done at removal");
    assert!(removed.contains("rmdir /etc/instep ") && !removed.contains("rm -r"), "{removed}");
    assert!(upgraded.contains("try-restart instep.service instep-serve.service"), "{upgraded}");
    for script in ["post.sh", "preun.sh", "postun.sh"] {
        let path = root().join("packaging/rpm").join(script);
        assert!(Command::new("sh").arg("-n").arg(path).status().unwrap().success(), "{script}");
    }
}
