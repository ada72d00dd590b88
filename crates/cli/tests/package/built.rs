//! How packages are made, and what holds for the program in each.

use super::{root, run, said};
use instep_madehost::skip;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Libraries of every distribution with the GNU C library; libgcc_s unwinds the stack.
const LIBRARIES: [&str; 5] = ["linux-vdso", "libc.so", "libm.so", "libgcc_s.so", "ld-linux"];

/// Pages are made in one place: packages are made one after the other.
static TURN: Mutex<()> = Mutex::new(());

/// Waits until nobody else makes a package.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether packages are built as for users.
pub(crate) fn is_whole() -> bool {
    std::env::var_os("INSTEP_LAB_ALL").is_some()
}

pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root());
    command
}

/// Whether cargo has this command of others; notes where not.
pub(crate) fn has_cargo(command: &str) -> bool {
    let has = cargo().args([command, "--version"]).output().is_ok_and(|it| it.status.success());
    if !has {
        skip::note(&format!("no cargo-{command} here: cargo install cargo-{command}"));
    }
    has
}

/// The package that was made last in a directory.
pub(crate) fn newest(directory: PathBuf, extension: &str) -> PathBuf {
    let mut found: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|its| its == extension))
        .collect();
    found.sort_by_key(|path| fs::metadata(path).and_then(|meta| meta.modified()).ok());
    found.pop().expect("a package was made")
}

/// Man pages and completions where the package takes them from, by the example that cargo built beside this test.
pub(crate) fn pages() -> Option<()> {
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

/// The program in a package runs, and in a whole one it has everything and needs little.
pub(crate) fn check_program(instep: &Path) {
    let version = run(Command::new(instep).arg("--version")).unwrap();
    let said = said(&version);
    assert!(said.starts_with("instep ") && version.status.success(), "{said}");
    if is_whole() {
        check_whole(instep, &said);
    }
}

/// What makes it start anywhere with glibc 2.36.
fn check_whole(instep: &Path, version: &str) {
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
