//! How packages are made, and what holds for the program in each.

use super::{output_text, printed, root, run};
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

/// The package that was made last in a directory, among those whose file names begin so.
pub(crate) fn newest(directory: PathBuf, start: &str, extension: &str) -> PathBuf {
    let mut found: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|its| its == extension))
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(start))
        .collect();
    found.sort_by_key(|path| fs::metadata(path).and_then(|meta| meta.modified()).ok());
    found.pop().expect("a package was made")
}

/// Writes man pages and completions into a directory, by the example that cargo built beside this test.
pub(crate) fn pages_in(directory: &Path) -> Option<()> {
    let made = Path::new(env!("CARGO_BIN_EXE_instep")).with_file_name("examples").join("pages");
    if !made.exists() {
        skip::note("the example `pages` is not built: cargo build -p instep-cli --examples");
        return None;
    }
    let output = run(Command::new(made).arg(directory))?;
    assert!(output.status.success(), "{}", output_text(&output));
    Some(())
}

/// The same where the package takes them from.
pub(crate) fn pages() -> Option<()> {
    let package = root().join("target/package");
    pages_in(&package)?;
    let script = "gzip --best --no-name --force man/*/*.1";
    let output = run(Command::new("sh").args(["-c", script]).current_dir(package))?;
    assert!(output.status.success(), "{}", output_text(&output));
    Some(())
}

/// The guest program where the package of the laboratory takes it from; a note where it is not built.
pub(crate) fn guest_program() -> Option<()> {
    let built = Path::new(env!("CARGO_BIN_EXE_instep-lab")).parent()?.parent()?;
    let built = built.join("x86_64-unknown-linux-gnu/release/instep-load");
    if !built.exists() {
        skip::note("instep-load is not built: cargo xtask load");
        return None;
    }
    let package = root().join("target/package");
    fs::create_dir_all(&package).unwrap();
    fs::copy(built, package.join("instep-load")).unwrap();
    Some(())
}

/// The program in a package runs, and in a whole one it has everything and needs little.
pub(crate) fn check_program(program: &Path) {
    let version = run(Command::new(program).arg("--version")).unwrap();
    let said = output_text(&version);
    let name = program.file_name().unwrap().to_str().unwrap();
    assert!(said.starts_with(&format!("{name} ")) && version.status.success(), "{said}");
    if is_whole() {
        check_whole(program, &said);
    }
}

/// Where the sources of the laboratory's crates are: a program that holds code of them names these files, where it
/// tells the place of a panic, even when it is stripped.
const LABORATORY: [&str; 4] =
    ["crates/sim/src/", "crates/scx/src/", "crates/lab/src/", "crates/bench/src/"];

/// Whether a program holds code of each of the laboratory's crates.
pub(crate) fn holds_laboratory(program: &Path) -> [bool; 4] {
    let bytes = fs::read(program).unwrap();
    let holds = |part: &str| bytes.windows(part.len()).any(|window| window == part.as_bytes());
    LABORATORY.map(holds)
}

/// Every command that `--help` of a program lists has a page in this unpacked package, and the pages of the other
/// program are not in it.
pub(crate) fn check_pages(tree: &Path, program: &str, other: &str) {
    let names = commands(program);
    assert!(names.len() > 5, "{names:?}");
    let page = |program: &str, name: &str| {
        tree.join(format!("usr/share/man/man1/{program}-{name}.1.gz")).is_file()
    };
    for name in names {
        assert!(page(program, &name), "{name} has no page");
    }
    for name in commands(other) {
        assert!(!page(other, &name), "{name} of {other} has a page");
    }
}

/// The commands that `--help` of a program lists, but `help`.
fn commands(program: &str) -> Vec<String> {
    let help = printed(program, "--help");
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let words = commands
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next());
    words.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// What makes it start anywhere with glibc 2.36.
fn check_whole(instep: &Path, version: &str) {
    assert!(version.contains("with the kernel scheduler"), "{version}");
    let needed = output_text(&run(Command::new("ldd").arg(instep)).unwrap());
    for line in needed.lines() {
        assert!(LIBRARIES.iter().any(|known| line.contains(known)), "{needed}");
    }
    if let Some(output) = run(Command::new("readelf").args(["--sections", "--wide"]).arg(instep)) {
        let sections = output_text(&output);
        assert!(sections.contains(".text") && !sections.contains(".debug_info"), "{sections}");
    }
    let own = output_text(&run(Command::new("getconf").arg("GNU_LIBC_VERSION")).unwrap());
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
