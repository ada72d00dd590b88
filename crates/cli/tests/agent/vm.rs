//! A VM of two vCPUs, both bound to one CPU, and a run that mends that.

use super::common::binary;
use instep_madehost::skip;
use instep_testguest::affinity;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a test waits for something that happens by itself.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
pub(crate) fn wait_for(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "{what} did not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A VM that is ended with the test.
pub(crate) struct Vm {
    child: Child,
    pub(crate) name: String,
    pub(crate) vcpus: Vec<u32>,
    dir: TempDir,
    state: PathBuf,
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Vm {
    /// Starts one; `None`, with a note, where that cannot be done.
    pub(crate) fn start(name: &str) -> Option<Self> {
        Self::start_with(name, |_| {})
    }

    /// The same with the command of QEMU as `change` makes it.
    pub(crate) fn start_with(name: &str, change: impl FnOnce(&mut Command)) -> Option<Self> {
        const QEMU: &str = "qemu-system-x86_64";
        if online().len() < 2 {
            skip::note("one CPU is not enough to tell affinities apart");
            return None;
        }
        let name = format!("{name}-{}", std::process::id());
        let mut command = Command::new(QEMU);
        command.args(["-name", &format!("{name},debug-threads=on"), "-smp", "2", "-m", "32"]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-S"]);
        command.args(["-accel", "tcg,thread=multi"]);
        change(&mut command);
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = started
            .inspect_err(|error| {
                skip::note(&format!(
                    "{QEMU} cannot be started: {error} (apt install qemu-system-x86)"
                ));
            })
            .ok()?;
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let mut vm = Self { child, name, vcpus: Vec::new(), dir, state };
        wait_for("the VM's vCPU threads", || {
            vm.vcpus = vm.named("CPU ");
            vm.vcpus.len() == 2
        });
        for tid in &vm.vcpus {
            affinity::bind(*tid, online()[0]).unwrap();
        }
        Some(vm)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its threads whose names begin so, in the order of their names.
    fn named(&self, start: &str) -> Vec<u32> {
        let task = PathBuf::from(format!("/proc/{}/task", self.pid()));
        let mut found: Vec<(String, u32)> = fs::read_dir(&task)
            .unwrap()
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
                let tid = entry.file_name().to_str()?.parse().ok()?;
                comm.starts_with(start).then_some((comm, tid))
            })
            .collect();
        found.sort();
        found.into_iter().map(|(_, tid)| tid).collect()
    }

    /// The CPUs that each vCPU may use.
    pub(crate) fn cpus(&self) -> Vec<String> {
        let all = affinity::of_process(self.pid()).unwrap();
        self.vcpus.iter().map(|tid| all[tid].1.clone()).collect()
    }

    /// Whether both vCPUs are bound to one CPU, as they were at first.
    pub(crate) fn is_as_found(&self) -> bool {
        self.cpus() == vec![online()[0].to_string(); 2]
    }

    /// A file of this test.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The folder that Instep keeps its state in.
    pub(crate) fn state(&self) -> PathBuf {
        self.state.clone()
    }

    /// `instep` with this test's state directory.
    pub(crate) fn instep(&self, args: &[&str]) -> Command {
        let mut command = binary(env!("CARGO_BIN_EXE_instep"));
        command.args(args).arg("--state-dir").arg(&self.state);
        command
    }

    /// From now on with this state directory, such as that of another test's VM.
    pub(crate) fn share_state(&mut self, state: PathBuf) {
        self.state = state;
    }

    /// A run that mends this VM each second, unless `more` gives an interval; not started yet.
    pub(crate) fn mending(&self, more: &[&str]) -> Command {
        let mut command = self.instep(&["run", "--window", "10ms"]);
        if !more.contains(&"--interval") {
            command.args(["--interval", "1s"]);
        }
        command.args(["--mend-conflicts", "--include-pinned", "--no-memory"]);
        command.args(["--vm", &self.name]).args(more);
        command
    }

    /// Starts it with standard error in a file, and waits until it placed the VM.
    pub(crate) fn placed_by(&self, command: &mut Command) -> Run {
        let errors = self.file("errors");
        let child = command.stderr(File::create(&errors).unwrap()).spawn().unwrap();
        let run = Run { child, errors };
        wait_for(&format!("a placement by {command:?}"), || {
            let runs = !run.has_ended();
            assert!(runs || !self.is_as_found(), "it ended: {}", run.errors_so_far());
            !self.is_as_found()
        });
        run
    }
}

impl Vm {
    /// A run that was started otherwise.
    pub(crate) fn hold(&self, child: Child) -> Run {
        Run { child, errors: self.file("errors") }
    }
}

/// The CPUs of this machine.
pub(crate) fn online() -> Vec<u32> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let set = instep_core::idset::CpuSet::parse_list(text.trim()).unwrap();
    set.iter().map(|cpu| cpu.0).collect()
}

/// An `instep` that runs; dropping it kills it.
pub(crate) struct Run {
    pub(crate) child: Child,
    errors: PathBuf,
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Run {
    /// What it said on standard error so far.
    pub(crate) fn errors_so_far(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        stat.map_or(true, |stat| stat.contains(") Z "))
    }

    /// Ends it by SIGTERM; its exit status, `None` after a signal.
    pub(crate) fn terminate(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        wait_for("its end", || self.has_ended());
        self.child.wait().unwrap().code()
    }
}
