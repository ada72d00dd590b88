//! A turn on this machine: guests, their threads as the kernel shows them, and `instep` with a
//! state directory of its own.

use super::common::{Ran, Started, binary, list, schemas};
use instep_lab::{Error, Stop};
use instep_madehost::skip;
use instep_testguest::affinity::{self, Affinities};
use instep_testguest::{Assets, Guest, GuestSpec};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

static TURN: Mutex<()> = Mutex::new(());
static ASSETS: OnceLock<Result<Assets, String>> = OnceLock::new();

/// The binary under test.
const INSTEP: &str = env!("CARGO_BIN_EXE_instep");
/// How long a test waits for something that happens by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for its turn: for a test without guests that measures which program has the CPUs.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One test's turn.
pub(crate) struct Stage {
    assets: Assets,
    dir: TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// Pause between two looks at something that is waited for.
fn tick() {
    std::thread::sleep(Duration::from_millis(20));
}

impl Stage {
    /// Waits for the turn; `None`, with a note, where guests cannot be had.
    pub(crate) fn new() -> Option<Self> {
        if !skip::may_boot() {
            return None;
        }
        let turn = turn();
        let obtain = || Assets::obtain(&mut |said| eprintln!("{said}")).map_err(|e| e.to_string());
        let assets = ASSETS.get_or_init(obtain).as_ref().map_err(|error| skip::note(error)).ok()?;
        let dir = tempfile::tempdir().unwrap();
        Some(Self { assets: assets.clone(), dir, _turn: turn })
    }

    /// As [`Stage::new`], on a machine with at least two cores.
    pub(crate) fn with_two_cores() -> Option<Self> {
        let stage = Self::new()?;
        let cores = core_count();
        if cores < 2 {
            skip::note(&format!("siblings cannot be apart on {cores} core"));
            return None;
        }
        Some(stage)
    }

    /// The folder that Instep keeps its state in.
    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// A file of this test.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A guest with two busy vCPUs, a name that no other process gives, and a QMP socket.
    pub(crate) fn spec(&self, name: &str) -> GuestSpec {
        let mut spec = GuestSpec::new(format!("{name}-{}", std::process::id()), &self.assets);
        spec.qmp = Some(self.file(&format!("{name}.qmp")));
        spec.boot_limit = Duration::from_secs(120);
        spec
    }

    /// Boots guests side by side. One that is too slow is booted once more by itself: now and then QEMU's
    /// emulation hangs before a guest says anything.
    pub(crate) fn start(&self, specs: impl IntoIterator<Item = GuestSpec>) -> Vec<Guest> {
        let guests: Vec<Guest> =
            specs.into_iter().map(|spec| Guest::spawn(spec).unwrap()).collect();
        let up = |guest: Guest| match guest.wait_ready(&Stop::never()) {
            Err(error @ Error::Slow { .. }) => {
                let spec = guest.spec().clone();
                drop(guest);
                skip::retried(&error.to_string());
                Guest::start(spec).unwrap()
            }
            ready => ready.map(|_| guest).unwrap(),
        };
        guests.into_iter().map(up).collect()
    }

    /// Boots one guest.
    pub(crate) fn start_one(&self, name: &str) -> Guest {
        self.start([self.spec(name)]).remove(0)
    }

    /// Boots a guest and binds its two vCPUs to one CPU by hand. Mending that conflict changes
    /// an affinity however busy the machine is.
    pub(crate) fn start_pinned(&self, name: &str) -> Guest {
        let guest = self.start_one(name);
        for tid in vcpus(&guest) {
            affinity::bind(tid, first_cpu()).unwrap();
        }
        guest
    }

    /// Starts a command of `instep` with this test's state directory.
    pub(crate) fn background(&self, args: &[&str]) -> Started {
        self.background_in(&self.state(), args)
    }

    /// The same with another state directory; all of one test are one instance on this host.
    pub(crate) fn background_in(&self, state: &Path, args: &[&str]) -> Started {
        self.background_by(Path::new(INSTEP), state, args)
    }

    fn background_by(&self, program: &Path, state: &Path, args: &[&str]) -> Started {
        let mut command = binary(program);
        command.env("INSTEP_INSTANCE", format!("instep-test-live-{}", std::process::id()));
        Started::new(command.args(args).arg("--state-dir").arg(state))
    }

    /// Runs it to its end.
    pub(crate) fn instep(&self, args: &[&str]) -> Ran {
        self.background(args).end()
    }

    /// Starts `run --json` that mends this guest and waits for its first cycle; it does another
    /// only when `more` says so.
    pub(crate) fn mending_run(&self, guest: &Guest, more: &[&str]) -> Started {
        self.mending_run_by(Path::new(INSTEP), guest, more)
    }

    /// The same by a copy of `instep`.
    pub(crate) fn mending_run_by(&self, program: &Path, guest: &Guest, more: &[&str]) -> Started {
        let mut args = vec!["run", "--json", "--window", "200ms"];
        if !more.contains(&"--interval") {
            args.extend(["--interval", "1h"]);
        }
        args.extend(["--mend-conflicts", "--include-pinned", "--vm", &guest.spec().name]);
        args.extend(more);
        let run = self.background_by(program, &self.state(), &args);
        wait_for("the first cycle", &run, || records(&run).len() == 1);
        run
    }

    /// Whether only these guests run here; waits a while for others to end, then notes a skip.
    pub(crate) fn alone_with(&self, guests: &[Guest]) -> bool {
        let end = Instant::now() + PATIENCE;
        loop {
            let others = self.others(guests);
            if others.is_empty() {
                return true;
            }
            if Instant::now() > end {
                skip::note(&format!("other VMs run on this machine: {}", others.join(", ")));
                return false;
            }
            tick();
        }
    }

    fn others(&self, guests: &[Guest]) -> Vec<String> {
        let status = self.instep(&["status", "--json", "--window", "10ms"]).json();
        let ours = |vm: &&Value| guests.iter().any(|guest| vm["pid"] == guest.pid());
        let others = list(&status, "vms").iter().filter(|vm| !ours(vm));
        others.map(|vm| format!("{} (process {})", vm["name"], vm["pid"])).collect()
    }
}

/// Cores of this machine, by `instep topology`.
pub(crate) fn core_count() -> u64 {
    topology()["counts"]["cores"].as_u64().unwrap()
}

pub(crate) fn topology() -> Value {
    super::common::instep(&["topology", "--json"]).expect(0).json()
}

/// The lowest CPU of this machine.
pub(crate) fn first_cpu() -> u32 {
    u32::try_from(topology()["cpus"][0]["id"].as_u64().unwrap()).unwrap()
}

/// The vCPU threads in the order of their index, by QMP; the socket is free again afterwards.
pub(crate) fn vcpus(guest: &Guest) -> Vec<u32> {
    let cpus = guest.vcpu_threads().unwrap();
    cpus.into_iter().map(|(_, tid)| tid).collect()
}

/// The affinity of every thread of the guest's process.
pub(crate) fn affinities(guest: &Guest) -> Affinities {
    affinity::of_process(guest.pid()).unwrap()
}

/// The affinity of each vCPU thread.
pub(crate) fn of_vcpus(guest: &Guest) -> Vec<String> {
    let all = affinities(guest);
    vcpus(guest).into_iter().map(|tid| all[&tid].1.clone()).collect()
}

/// Checks that every thread that was there before has the affinity it had.
pub(crate) fn assert_as_before(guest: &Guest, before: &Affinities) {
    let mut now = affinities(guest);
    // Workers of QEMU's pool come and go.
    now.retain(|tid, _| before.contains_key(tid));
    let mut before = before.clone();
    before.retain(|tid, _| now.contains_key(tid));
    assert!(vcpus(guest).iter().all(|tid| now.contains_key(tid)));
    assert_eq!(now, before);
}

/// The cycles that `run --json` told so far.
pub(crate) fn records(run: &Started) -> Vec<Value> {
    parse_records(&run.text("out"))
}

/// Whole lines of JSON.
pub(crate) fn parse_records(text: &str) -> Vec<Value> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let parsed = |line| {
        let record = serde_json::from_str(line).unwrap();
        schemas::check(&record);
        record
    };
    whole.lines().map(parsed).collect()
}

/// Waits until something is so while `run` goes on.
pub(crate) fn wait_for(what: &str, run: &Started, so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    let gone = format!("/proc/{}/stat", run.child.id());
    while !so() {
        let runs = fs::read_to_string(&gone).is_ok_and(|stat| !stat.contains(") Z "));
        let told = || format!("{}\n{}", run.text("out"), run.text("err"));
        assert!(runs || so(), "it ended before {what}:\n{}", told());
        assert!(Instant::now() < end, "{what} did not come:\n{}", told());
        tick();
    }
}

/// Sends a signal.
pub(crate) fn signal(run: &Started, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(run.child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Ends a run by SIGTERM.
pub(crate) fn terminate(run: Started) -> Ran {
    signal(&run, Signal::TERM);
    run.end()
}

/// Ends a run as a crash would.
pub(crate) fn crash(run: Started) {
    signal(&run, Signal::KILL);
    assert_eq!(run.end().code, None);
}

/// Run time and run-queue wait of a thread, nanoseconds.
pub(crate) fn schedstat(pid: u32, tid: u32) -> (u64, u64) {
    let path = format!("/proc/{pid}/task/{tid}/schedstat");
    let text = fs::read_to_string(Path::new(&path)).unwrap();
    let mut numbers = text.split_ascii_whitespace().map(|word| word.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}
