//! What a guest is to be, and the QEMU command line that makes it so.
//!
//! Pure: a [`GuestSpec`] in, arguments out.

use crate::Assets;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a guest does after boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestLoad {
    /// Nothing but a heartbeat each second.
    Idle,
    /// This many endless loops, one pinned to each guest CPU in turn.
    Spin(u32),
    /// On each guest CPU a loop that is busy for this percentage (0 to 100) of each fifth of a
    /// second, by the guest's clock; starting and waking cost some percent more.
    Duty(u32),
}

impl fmt::Display for GuestLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuestLoad::Idle => f.write_str("idle"),
            GuestLoad::Spin(loops) => write!(f, "spin:{loops}"),
            GuestLoad::Duty(percent) => write!(f, "duty:{}", (*percent).min(100)),
        }
    }
}

/// A guest to be started.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    /// The name given to QEMU (`-name`).
    pub name: String,
    /// vCPUs, at least 1.
    pub vcpus: u32,
    /// vCPUs that may be plugged in later, `vcpus` included.
    pub max_vcpus: Option<u32>,
    /// Guest memory in MiB; 128 is enough for the kernel and the load.
    pub memory_mib: u32,
    /// MiB that the guest writes to before its load starts, so that the host holds them.
    pub touch_mib: u32,
    /// What it does.
    pub load: GuestLoad,
    /// QEMU's machine type. `q35` has a PM timer, by which the guest calibrates its clock even when
    /// the host is busy; `microvm` has none and then often hangs at boot (seen, Linux 6.1).
    pub machine: String,
    /// The kernel image.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initrd: PathBuf,
    /// Where to put a QMP socket; none without it. A unix socket path has at most 107 bytes.
    pub qmp: Option<PathBuf>,
    /// Whether QEMU names its threads (`CPU 0/TCG`), as libvirt and Proxmox ask it to.
    pub debug_threads: bool,
    /// Further arguments, put last.
    pub extra: Vec<String>,
    /// How long it may take to boot.
    pub boot_limit: Duration,
    /// The guest is killed when it has lived this long, whatever its owner does.
    pub life_limit: Duration,
}

impl GuestSpec {
    /// A guest with 2 vCPUs and 128 MiB that spins on each vCPU, executed by QEMU's translator (TCG), one host thread a vCPU.
    pub fn new(name: impl Into<String>, assets: &Assets) -> Self {
        Self {
            name: name.into(),
            vcpus: 2,
            max_vcpus: None,
            memory_mib: 128,
            touch_mib: 0,
            load: GuestLoad::Spin(2),
            machine: "q35".to_owned(),
            kernel: assets.kernel.clone(),
            initrd: assets.initrd.clone(),
            qmp: None,
            debug_threads: true,
            extra: Vec::new(),
            boot_limit: Duration::from_secs(60),
            life_limit: Duration::from_secs(600),
        }
    }

    /// QEMU's arguments; the guest's console goes to the file `console`.
    pub fn arguments(&self, console: &Path) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        let mut put = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
        let threads = if self.debug_threads { ",debug-threads=on" } else { "" };
        put("-name", format!("guest={}{threads}", escaped(&self.name)));
        put("-machine", self.machine.clone());
        put("-accel", "tcg,thread=multi".to_owned());
        let most = self.max_vcpus.map(|max| format!(",maxcpus={max}")).unwrap_or_default();
        put("-smp", format!("{}{most}", self.vcpus));
        put("-m", self.memory_mib.to_string());
        put("-kernel", self.kernel.display().to_string());
        put("-initrd", self.initrd.display().to_string());
        put("-append", self.command_line());
        put("-display", "none".to_owned());
        put("-serial", format!("file:{}", console.display()));
        if let Some(socket) = &self.qmp {
            put(
                "-qmp",
                format!("unix:{},server=on,wait=off", escaped(&socket.display().to_string())),
            );
        }
        for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
            args.push(flag.to_owned());
        }
        args.extend(self.extra.iter().cloned());
        args
    }

    /// The kernel's command line. Under an overcommitted host a guest's clocks and watchdogs see
    /// what looks like a broken machine: they are told to trust it.
    fn command_line(&self) -> String {
        format!(
            "console=ttyS0 quiet panic=-1 nowatchdog rcupdate.rcu_cpu_stall_suppress=1 \
             tsc=reliable no_timer_check mitigations=off cryptomgr.notests init_on_alloc=0 \
             load={} touch={}",
            self.load, self.touch_mib
        )
    }
}

/// A value inside one of QEMU's comma-separated options.
fn escaped(value: &str) -> String {
    value.replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> GuestSpec {
        let assets = Assets { kernel: "/k/vmlinuz".into(), initrd: "/k/initrd".into() };
        GuestSpec::new("a,b", &assets)
    }

    fn value(args: &[String], flag: &str) -> Option<String> {
        args.iter().position(|arg| arg == flag).map(|at| args[at + 1].clone())
    }

    #[test]
    fn a_comma_in_a_name_does_not_become_an_option() {
        let args = spec().arguments(Path::new("/t/console"));
        assert_eq!(value(&args, "-name").unwrap(), "guest=a,,b,debug-threads=on");
    }

    #[test]
    fn threads_have_no_names_and_there_is_no_socket_unless_asked_for() {
        let quiet = GuestSpec { debug_threads: false, ..spec() };
        let args = quiet.arguments(Path::new("/t/console"));
        assert_eq!(value(&args, "-name").unwrap(), "guest=a,,b");
        assert_eq!(value(&args, "-qmp"), None);
        let socket = GuestSpec { qmp: Some("/t/q".into()), ..spec() };
        let args = socket.arguments(Path::new("/t/console"));
        assert_eq!(value(&args, "-qmp").unwrap(), "unix:/t/q,server=on,wait=off");
    }

    #[test]
    fn the_load_reaches_the_guest_on_the_kernel_command_line() {
        for (load, word) in [
            (GuestLoad::Idle, "load=idle"),
            (GuestLoad::Spin(3), "load=spin:3"),
            (GuestLoad::Duty(250), "load=duty:100"),
        ] {
            let spec = GuestSpec { load, touch_mib: 64, ..spec() };
            let line = value(&spec.arguments(Path::new("/c")), "-append").unwrap();
            assert!(line.contains(word) && line.contains("touch=64"), "{line}");
        }
    }

    #[test]
    fn further_arguments_come_last_and_vcpus_to_plug_in_are_announced() {
        let spec =
            GuestSpec { max_vcpus: Some(4), extra: vec!["-uuid".into(), "u".into()], ..spec() };
        let args = spec.arguments(Path::new("/c"));
        assert_eq!(value(&args, "-smp").unwrap(), "2,maxcpus=4");
        assert_eq!(args[args.len() - 2..], ["-uuid", "u"]);
    }
}
