//! The Debian package. Usually it is made of the program under test, which takes seconds. With `INSTEP_LAB_ALL=1` it is
//! built as `make deb` does, and the program must then need nothing but the C library.

use super::{instep, root, run, said};
use instep_madehost::skip;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// What the package must hold, besides a page for each command.
const FILES: [&str; 12] = [
    "usr/bin/instep",
    "etc/instep/instep.toml",
    "usr/lib/systemd/system/instep.service",
    "usr/share/man/man1/instep.1.gz",
    "usr/share/man/man1/instep-run.1.gz",
    "usr/share/man/man1/instep-lab-run.1.gz",
    "usr/share/bash-completion/completions/instep",
    "usr/share/zsh/vendor-completions/_instep",
    "usr/share/fish/vendor_completions.d/instep.fish",
    "usr/share/doc/instep/guide.md",
    "usr/share/doc/instep/copyright",
    "usr/share/doc/instep/examples/dispatch.conf",
];
/// Libraries of every distribution with the GNU C library; libgcc_s unwinds the stack.
const LIBRARIES: [&str; 5] = ["linux-vdso", "libc.so", "libm.so", "libgcc_s.so", "ld-linux"];

/// Pages are made in one place: packages are made one after the other.
static TURN: Mutex<()> = Mutex::new(());

fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root());
    command
}

/// The package in `dir`; `None`, with a note, where it cannot be made.
pub(crate) fn package(dir: &Path, is_whole: bool) -> Option<PathBuf> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !cargo().args(["deb", "--version"]).output().is_ok_and(|output| output.status.success()) {
        skip::note("no cargo-deb here: cargo install cargo-deb");
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
    let mut found: Vec<PathBuf> = fs::read_dir(made)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .collect();
    found.sort_by_key(|path| fs::metadata(path).and_then(|meta| meta.modified()).ok());
    Some(found.pop().expect("a package was made"))
}

/// Man pages and completions where the package takes them from, by the example that cargo built beside this test.
fn pages() -> Option<()> {
    let made = Path::new(env!("CARGO_BIN_EXE_instep")).with_file_name("examples").join("pages");
    if !made.exists() {
        skip::note("the example `pages` is not built: cargo build -p instep-cli --examples");
        return None;
    }
    let package = root().join("target/package");
    let output = run(Command::new(made).arg(&package))?;
    assert!(output.status.success(), "{}", said(&output));
    let script = "gzip --best --no-name --force man/*.1";
    let output = run(Command::new("sh").args(["-c", script]).current_dir(package))?;
    assert!(output.status.success(), "{}", said(&output));
    Some(())
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
    let is_whole = std::env::var_os("INSTEP_LAB_ALL").is_some();
    let Some(package) = package(&dir.path().join("made"), is_whole) else { return };
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
    check_control(&control);
    check_pages(&tree);

    let instep = tree.join("usr/bin/instep");
    let version = run(Command::new(&instep).arg("--version")).unwrap();
    assert!(
        said(&version).starts_with("instep ") && version.status.success(),
        "{}",
        said(&version)
    );
    if is_whole {
        check_program(&instep, &said(&version));
    }
}

/// What dpkg does at installation, upgrade and removal.
fn check_control(control: &Path) {
    let read = |name: &str| fs::read_to_string(control.join(name)).unwrap();
    assert_eq!(read("conffiles").trim(), "/etc/instep/instep.toml");
    let (after, before) = (read("postinst"), read("prerm"));
    assert!(!after.contains("systemctl enable") && !after.contains("_dh_action=start"), "{after}");
    assert!(after.contains("deb-systemd-invoke try-restart instep.service"), "{after}");
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

/// What makes it start anywhere with glibc 2.36.
fn check_program(instep: &Path, version: &str) {
    assert!(version.contains("with the kernel scheduler"), "{version}");
    let needed = said(&run(Command::new("ldd").arg(instep)).unwrap());
    for line in needed.lines() {
        assert!(LIBRARIES.iter().any(|known| line.contains(known)), "{needed}");
    }
    if let Some(output) = run(Command::new("readelf").args(["--sections", "--wide"]).arg(instep)) {
        let sections = said(&output);
        assert!(sections.contains(".text") && !sections.contains(".debug_info"), "{sections}");
    }
    let own = said(&run(Command::new("getconf").arg("GNU_LIBC_VERSION")).unwrap());
    if own.trim() != "glibc 2.36" {
        skip::note("only a package built with glibc 2.36 starts with it");
        return;
    }
    let bytes = fs::read(instep).unwrap();
    let minors = bytes.split(|byte| *byte == 0).filter_map(|name| {
        std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_2.")?.split('.').next()?.parse().ok()
    });
    let newest: u32 = minors.max().expect("it names versions of the C library");
    assert!(newest <= 36, "it needs glibc 2.{newest}");
}
