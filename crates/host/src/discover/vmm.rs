//! Which program a process runs and whether its command line starts a guest.
//!
//! Decides by the base names of `argv[0]` and of the executable, so a shell that mentions QEMU in
//! its arguments is none. A process with a KVM VM descriptor is a monitor whatever its name.

use super::args;
use super::facts::{Accel, Vmm};

/// The monitor that these names belong to: `argv0` and the target of `/proc/PID/exe`, either of
/// which may be missing.
pub fn by_name(argv0: Option<&str>, exe: Option<&str>) -> Option<Vmm> {
    [argv0, exe].into_iter().flatten().find_map(|path| {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let base = path.rsplit('/').next().unwrap_or(path);
        // NixOS wraps programs as `.NAME-wrapped`.
        let base = base.strip_prefix('.').and_then(|b| b.strip_suffix("-wrapped")).unwrap_or(base);
        match base {
            "qemu-kvm" | "kvm" => Some(Vmm::Qemu),
            "firecracker" => Some(Vmm::Firecracker),
            "crosvm" => Some(Vmm::Crosvm),
            _ if base.starts_with("qemu-system-") => Some(Vmm::Qemu),
            // Release binaries keep a suffix in their name: cloud-hypervisor-static,
            // firecracker-v1.7.0-x86_64.
            _ if base.starts_with("cloud-hypervisor") => Some(Vmm::CloudHypervisor),
            _ if base.starts_with("firecracker-v") => Some(Vmm::Firecracker),
            _ => None,
        }
    })
}

/// Whether a command line of `vmm` runs a guest, as far as it can tell: asking for a version or a
/// list of devices does not, nor does libvirt's probing machine without CPUs.
pub fn runs_guest(vmm: &Vmm, arguments: &[String]) -> bool {
    if ["version", "help", "V", "h"].iter().any(|option| args::has(arguments, option)) {
        return false;
    }
    match vmm {
        Vmm::Qemu => {
            let asks = |option: &str| {
                args::values(arguments, option).any(|value| value == "help" || value == "?")
            };
            !["machine", "M", "cpu", "device", "accel"].into_iter().any(asks)
                && machine_type(arguments).as_deref() != Some("none")
        }
        Vmm::Crosvm => arguments.iter().skip(1).any(|arg| arg == "run"),
        Vmm::CloudHypervisor | Vmm::Firecracker | Vmm::Other(_) => true,
    }
}

fn machine_type(arguments: &[String]) -> Option<String> {
    ["machine", "M"]
        .into_iter()
        .flat_map(|option| args::values(arguments, option))
        .last()
        .and_then(|value| args::last(&args::keys(value, "type"), "type").map(str::to_owned))
}

/// What the command line says runs the guest; descriptors and thread names know better.
pub fn accel(vmm: &Vmm, arguments: &[String]) -> Accel {
    match vmm {
        Vmm::CloudHypervisor | Vmm::Firecracker => return Accel::Kvm,
        Vmm::Crosvm | Vmm::Other(_) => return Accel::Unknown,
        Vmm::Qemu => {}
    }
    let mut named: Vec<String> = args::values(arguments, "accel")
        .filter_map(|value| args::last(&args::keys(value, "accel"), "accel").map(str::to_owned))
        .collect();
    for option in ["machine", "M"] {
        for value in args::values(arguments, option) {
            if let Some(list) = args::last(&args::keys(value, "type"), "accel") {
                named.extend(list.split(':').map(str::to_owned));
            }
        }
    }
    if args::has(arguments, "enable-kvm") {
        named.push("kvm".to_owned());
    }
    match named.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        // QEMU's default where it is built in, but distributions change it for a `kvm` binary.
        [] if by_qemu_system(arguments) => Accel::Tcg,
        [] => Accel::Unknown,
        all if all.iter().all(|one| *one == "kvm") => Accel::Kvm,
        all if all.iter().all(|one| *one == "tcg") => Accel::Tcg,
        _ => Accel::Unknown,
    }
}

fn by_qemu_system(arguments: &[String]) -> bool {
    let base = arguments.first().map(|path| path.rsplit('/').next().unwrap_or(path));
    base.is_some_and(|base| base.starts_with("qemu-system-"))
}

/// Whether QEMU translates all vCPUs in one thread, by its command line (`thread=single`, or
/// `-icount`, which implies it).
pub fn one_thread_for_all(arguments: &[String]) -> bool {
    args::has(arguments, "icount")
        || args::values(arguments, "accel")
            .any(|value| args::last(&args::keys(value, "accel"), "thread") == Some("single"))
}

/// Whether QEMU's command line asks for names of threads.
pub fn names_threads(arguments: &[String]) -> bool {
    args::values(arguments, "name")
        .any(|value| args::last(&args::keys(value, "guest"), "debug-threads") == Some("on"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn qemu_names_threads_where_it_is_reported_to() {
        for (text, expected) in [
            ("q -name a,debug-threads=on", true),
            ("q -name guest=a,debug-threads=on", true),
            ("q -name a,debug-threads=off", false),
            ("q -name a", false),
        ] {
            assert_eq!(names_threads(&line(text)), expected, "{text}");
        }
    }

    #[test]
    fn monitors_are_known_by_base_name_of_argv0_or_executable() {
        let qemu = [
            "qemu-system-x86_64",
            "/usr/libexec/qemu-kvm",
            "/usr/bin/kvm",
            "/nix/store/x/bin/.qemu-system-x86_64-wrapped",
            "qemu-system-aarch64 (deleted)",
        ];
        for name in qemu {
            assert_eq!(by_name(Some(name), None), Some(Vmm::Qemu), "{name}");
        }
        assert_eq!(by_name(Some("x"), Some("/usr/bin/crosvm")), Some(Vmm::Crosvm));
        assert_eq!(by_name(Some("./firecracker"), None), Some(Vmm::Firecracker));
        for other in
            ["qemu-img", "qemu-ga", "libvirtd", "/bin/sh", "kvm-nx-lpage-re", "", "qemu-x86_64"]
        {
            assert_eq!(by_name(Some(other), None), None, "{other}");
        }
    }

    #[test]
    fn questions_and_probes_are_no_guests() {
        for no in [
            "qemu-system-x86_64 --version",
            "qemu-system-x86_64 -machine help",
            "qemu-system-x86_64 -S -nodefaults -machine none,accel=kvm:tcg -daemonize",
            "qemu-system-x86_64 -M none",
            "qemu-system-x86_64 -device help",
        ] {
            assert!(!runs_guest(&Vmm::Qemu, &line(no)), "{no}");
        }
        assert!(runs_guest(&Vmm::Qemu, &line("qemu-system-x86_64 -machine q35")));
        assert!(!runs_guest(&Vmm::Crosvm, &line("crosvm stop /run/s")));
        assert!(runs_guest(&Vmm::Crosvm, &line("crosvm run --cpus 2 k")));
    }

    #[test]
    fn the_accelerator_is_read_from_every_spelling() {
        for (text, want) in [
            ("qemu-system-x86_64 -accel kvm", Accel::Kvm),
            ("qemu-system-x86_64 -enable-kvm", Accel::Kvm),
            ("qemu-system-x86_64 -machine q35,accel=kvm", Accel::Kvm),
            ("qemu-system-x86_64 -M q35,accel=kvm:tcg", Accel::Unknown),
            ("qemu-system-x86_64 -accel tcg,thread=multi", Accel::Tcg),
            ("qemu-system-x86_64", Accel::Tcg),
            ("/usr/bin/kvm", Accel::Unknown),
        ] {
            assert_eq!(accel(&Vmm::Qemu, &line(text)), want, "{text}");
        }
    }

    #[test]
    fn one_thread_is_known_from_accel_and_icount() {
        assert!(one_thread_for_all(&line("q -accel tcg,thread=single")));
        assert!(one_thread_for_all(&line("q -icount shift=1,sleep=off")));
        assert!(!one_thread_for_all(&line("q -accel tcg,thread=multi")));
    }
}
