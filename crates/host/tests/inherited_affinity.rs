//! A thread gets the affinity of the thread that creates it. So threads that a placed VM creates
//! later carry Instep's sets without ever being touched: they are known and restored too.
#![expect(clippy::unwrap_used, reason = "all of this is a test, which fails by a panic")]

use instep_core::idset::CpuSet;
use instep_core::units::Tid;
use instep_host::Root;
use instep_host::apply::{
    Affinity, AffinityChange, AffinityNow, Applied, Applier, KernelAffinity, StateDir, ThreadKey,
    ThreadKind, thread,
};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

const ROLE: &str = "INSTEP_TEST_MAKER_OF_THREADS";

/// A child with two threads; for each line it is sent, the first creates a thread.
struct Maker {
    child: Child,
    stdin: ChildStdin,
    lines: Box<dyn Iterator<Item = u32>>,
    first: ThreadKey,
    second: ThreadKey,
}

impl Maker {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helper_that_makes_threads", "--nocapture"])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, pid) = (child.stdin.take().unwrap(), child.id());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.filter_map(|line| {
            let line = line.unwrap();
            line.split_once("thread: ").and_then(|(_, tid)| tid.trim().parse().ok())
        });
        let mut key = || thread::key_of(&Root::live(), pid, Tid(lines.next().unwrap())).unwrap();
        let (first, second) = (key(), key());
        Self { child, stdin, lines: Box::new(lines), first, second }
    }

    fn create(&mut self) -> ThreadKey {
        writeln!(self.stdin, "one more").unwrap();
        let tid = Tid(self.lines.next().unwrap());
        thread::key_of(&Root::live(), self.child.id(), tid).unwrap()
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn has(thread: ThreadKey) -> CpuSet {
    KernelAffinity.get(thread.tid).unwrap()
}

fn place(applier: &mut Applier, thread: ThreadKey, cpus: &CpuSet) -> Applied {
    let change = AffinityChange {
        vm: "alpha".into(),
        kind: ThreadKind::Emulator,
        thread,
        seen: has(thread),
        cpuset: CpuSet::new(),
        cpus: cpus.clone(),
    };
    applier.apply(&[change]).unwrap().remove(0).applied
}

#[test]
fn threads_created_after_placing_are_known_and_restored() {
    let own = KernelAffinity.get(Tid(std::process::id())).unwrap();
    let (Some(a), Some(b)) = (own.iter().next(), own.iter().nth(1)) else {
        return instep_madehost::skip::note("one CPU is not enough to tell affinities apart");
    };
    let (a, b) = (CpuSet::one(a), CpuSet::one(b));
    let dir = instep_madehost::scratch_dir().unwrap();
    let state = StateDir::at(dir.path().join("s"));
    let mut applier = Applier::open(state.lock().unwrap()).unwrap();
    let online = thread::online_cpus(&Root::live()).unwrap();
    let mut maker = Maker::start();
    let found = has(maker.first);
    // An operator pinned the second thread to the CPU that Instep chooses for the first.
    KernelAffinity.set(maker.second.tid, &b).unwrap();
    std::thread::sleep(Duration::from_millis(30));

    assert!(matches!(place(&mut applier, maker.first, &b), Applied::Set));
    let (one, two, three) = (maker.create(), maker.create(), maker.create());
    assert_eq!((has(one), has(two)), (b.clone(), b.clone()), "inherited");
    let initial = |thread| {
        let now = AffinityNow {
            present: &b,
            online: &online,
            cpuset: &CpuSet::new(),
            threads: &|| Vec::new().into(),
        };
        applier.journal().initial_of(thread, &now)
    };
    assert_eq!(initial(&one), found);
    assert_eq!(initial(&maker.second), b, "an operator's");
    // One is placed itself, one is changed by an operator. Times are told apart by ticks of 10 ms.
    std::thread::sleep(Duration::from_millis(30));
    assert!(matches!(place(&mut applier, one, &a), Applied::Set));
    KernelAffinity.set(three.tid, &a).unwrap();

    // The instance crashes; the next one restores.
    drop(applier);
    let mut applier = Applier::open(state.lock().unwrap()).unwrap();
    let report = applier.restore().unwrap();
    assert_eq!(report.restored, 3, "{report:?}");
    assert_eq!([has(maker.first), has(one), has(two)], [found.clone(), found.clone(), found]);
    assert_eq!((has(maker.second), has(three)), (b, a), "the operator's stay");
}

#[test]
fn thread_that_has_its_set_from_an_untouched_one_keeps_it() {
    let own = KernelAffinity.get(Tid(std::process::id())).unwrap();
    let Some(a) = own.iter().next().filter(|_| own.len() > 1) else {
        return instep_madehost::skip::note("one CPU is not enough to tell affinities apart");
    };
    let a = CpuSet::one(a);
    let dir = instep_madehost::scratch_dir().unwrap();
    let mut applier = Applier::open(StateDir::at(dir.path().join("s")).lock().unwrap()).unwrap();
    let mut maker = Maker::start();
    let all = has(maker.first);
    // An operator pinned the second thread; Instep gives it the CPUs that the first one has by itself.
    KernelAffinity.set(maker.second.tid, &a).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    assert!(matches!(place(&mut applier, maker.second, &all), Applied::Set));
    let (new, placed) = (maker.create(), maker.create());
    assert_eq!((has(new), has(placed)), (all.clone(), all.clone()), "from the first one");
    assert!(matches!(place(&mut applier, placed, &a), Applied::Set));

    assert_eq!(applier.restore().unwrap().restored, 2);
    assert_eq!((has(maker.second), has(maker.first)), (a, all.clone()));
    assert_eq!(
        (has(new), has(placed)),
        (all.clone(), all),
        "they are not restored to the second's"
    );
}

/// Run in a process of its own by [`Maker::start`]; does nothing otherwise.
#[test]
fn helper_that_makes_threads() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let tell = || {
        // SAFETY: no preconditions, cannot fail.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) };
        println!("thread: {tid}");
        std::io::stdout().flush().unwrap();
    };
    let sleep = move || {
        tell();
        std::thread::sleep(Duration::from_secs(60));
    };
    println!();
    tell();
    std::thread::spawn(sleep);
    for _ in std::io::stdin().lines() {
        std::thread::spawn(sleep);
    }
}
