//! Whether this machine can build the kernel scheduler (feature `kernel`): a clang that compiles
//! BPF, and the headers of libelf and zlib for libbpf. It does not look at the running kernel.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// The oldest that scx_cargo 1.1.4 takes.
const OLDEST: u32 = 16;
/// Tried in this order; Debian's packages add the version to the name.
const NAMES: [&str; 7] =
    ["clang-19", "clang-20", "clang-21", "clang-18", "clang-17", "clang-16", "clang"];
/// What crates enable with it; others follow.
pub(crate) const FEATURE: &str = "instep-cli/kernel";

/// The clang to build with.
///
/// # Errors
/// What is missing, and the command that installs it.
pub(crate) fn clang() -> Result<String, String> {
    let next = "apt-get install clang-19 libelf-dev zlib1g-dev pkg-config";
    let named = std::env::var("BPF_CLANG").ok();
    let mut names = named.iter().map(String::as_str).chain(NAMES.iter().copied());
    let fit = |name: &&str| version_of(name).is_some_and(|version| version >= OLDEST);
    let Some(clang) = names.find(fit) else {
        return Err(format!("no clang of version {OLDEST} or newer: {next}"));
    };
    for header in ["libelf.h", "zlib.h"] {
        if !has_header(header) {
            return Err(format!("no {header}: {next}"));
        }
    }
    Ok(clang.to_owned())
}

fn version_of(clang: &str) -> Option<u32> {
    let ran = Command::new(clang).arg("--version").stderr(Stdio::null()).output().ok()?;
    parse_version(&String::from_utf8_lossy(&ran.stdout))
}

/// The major version in what `clang --version` prints.
fn parse_version(text: &str) -> Option<u32> {
    let rest = text.split("clang version ").nth(1)?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Whether the C compiler finds a header.
fn has_header(name: &str) -> bool {
    let mut cc = Command::new("cc");
    cc.args(["-E", "-x", "c", "-", "-o", "/dev/null"]).stdin(Stdio::piped());
    let Ok(mut child) = cc.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
        return false;
    };
    let line = format!("#include <{name}>\n");
    let written =
        child.stdin.take().is_some_and(|mut into| into.write_all(line.as_bytes()).is_ok());
    child.wait().is_ok_and(|status| status.success()) && written
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_madehost::program;
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_version_is_read_from_what_clang_prints() {
        assert_eq!(parse_version("Debian clang version 19.1.7 (3~deb12u1)\nTarget:"), Some(19));
        assert_eq!(parse_version("Ubuntu clang version 14.0.0-1ubuntu1.1"), Some(14));
        assert_eq!(parse_version("gcc (Debian 12.2.0) 12.2.0"), None);
        assert_eq!(parse_version("clang version next"), None);
    }

    /// A compiler that reads what it is given: one that ends before ends its caller's pipe with a failure, at times.
    const READS: &str = "while read -r line; do :; done";

    /// A directory with programs that are these scripts.
    fn programs(all: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, script) in all {
            let path = dir.path().join(name);
            program(&path, format!("#!/bin/sh\n{script}\n").as_bytes());
        }
        dir
    }

    fn script(name: &str, path: &str) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(name));
        command.env("PATH", path).env_remove("BPF_CLANG");
        command
    }

    #[test]
    fn demo_is_built_with_the_kernel_scheduler_where_that_can_be() {
        let makefile = include_str!("../../Makefile");
        assert!(makefile.contains("\n\t@scripts/demo.sh\n"), "{makefile}");
        for (clang, with) in [("echo clang-19", true), ("echo no clang here >&2; exit 1", false)] {
            let cargo = format!(
                "if [ \"$1 $2\" = 'xtask bpf-clang' ]; then {clang}; else echo \"$BPF_CLANG: $@\"; fi"
            );
            let dir = programs(&[("cargo", &cargo)]);
            let path = format!("{}:/usr/bin:/bin", dir.path().display());
            let ran = script("../scripts/demo.sh", &path).output().unwrap();
            let said = String::from_utf8(ran.stdout).unwrap();
            assert!(ran.status.success(), "{said}");
            let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("==>")).collect();
            let (name, feature) =
                if with { ("clang-19", " --features instep-cli/kernel") } else { ("", "") };
            assert_eq!(
                lines,
                [
                    format!("{name}: build --release --package instep-cli{feature}"),
                    format!("{name}: xtask load"),
                    format!(
                        "{name}: run --quiet --release --package instep-cli --bin instep-lab{feature} -- demo"
                    ),
                ]
            );
            assert_eq!(String::from_utf8(ran.stderr).unwrap().lines().count(), usize::from(!with));
        }
        let tests = include_str!("../../scripts/test.sh");
        assert!(tests.contains("\nsource scripts/kernel-feature.sh\n"), "they share it");
    }

    #[test]
    fn a_demo_needs_no_clang_where_none_can_be_installed() {
        let mut there =
            vec![("cargo", ""), ("cc", READS), ("qemu-system-x86_64", ""), ("busybox", "")];
        there.extend([("mktemp", "echo made"), ("rm", "")]);
        let dir = programs(&there);
        let ran = |path: &Path| {
            let mut command = script("../scripts/install-deps.sh", path.to_str().unwrap());
            let ran = command.arg("demo").output().unwrap();
            (ran.status.code(), String::from_utf8(ran.stderr).unwrap())
        };
        let (code, said) = ran(dir.path());
        assert!(code == Some(0) && said.contains("no apt"), "{code:?} {said}");
        assert!(
            said.contains("without: clang-19 pkg-config; the kernel scheduler is not"),
            "{said}"
        );
        // What it cannot do without ends it.
        fs::remove_file(dir.path().join("busybox")).unwrap();
        let (code, said) = ran(dir.path());
        assert!(code == Some(1) && said.contains("busybox-static clang-19"), "{code:?} {said}");
    }

    #[test]
    fn a_header_that_is_not_there_is_not_found() {
        assert!(has_header("stdio.h") && !has_header("no/such/header.h"));
    }
}
