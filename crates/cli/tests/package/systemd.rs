//! The service under a real systemd, on a machine of its own: namespaces in which systemd is the first process, with
//! this machine's files below the service's (`boot.sh`).

use super::{output_text, root};
use instep_madehost::skip;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long the test waits for something that happens by itself on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A VM of another user with two vCPUs that are bound to CPU 0 both: to see and to place it takes capabilities.
const VM: &str = "setpriv --reuid nobody --regid nogroup --clear-groups \
    qemu-system-x86_64 -name web,debug-threads=on -smp 2 -m 32 -nodefaults -no-user-config \
    -display none -S -accel tcg,thread=multi </dev/null >/dev/null 2>&1 &
    for i in $(seq 600); do
        [ $(grep -ls CPU /proc/$!/task/*/comm | wc -l) -eq 2 ] && break
        kill -0 $! || break
        sleep 0.1
    done
    for task in /proc/$!/task/*; do
        if grep -q CPU $task/comm; then taskset -pc 0 ${task##*/}; echo ${task##*/} >>/tmp/vcpus; fi
    done";

/// Looks at the CPUs of the vCPUs again and again.
const WATCH: &str =
    "(while :; do for tid in $(cat /tmp/vcpus); do taskset -pc $tid; done; done) >/tmp/seen 2>&1 &
    echo $! >/tmp/watch";
/// Starts another VM of that user while the service waits for its next cycle, and ends it. Prints for how many milliseconds each
/// is not in what the run publishes: from when both vCPU threads are there, and from when the process is gone.
const SECOND: &str = "now() { echo $(($(date +%s%N) / 1000000)); }
    known() { grep -q '\"second\"' /run/instep/host.json; }
    until_so() { n=0; until \"$@\"; do n=$((n + 1)); [ $n -lt 600 ] || exit 1; sleep 0.02; done; }
    has_vcpus() { [ $(grep -ls CPU /proc/$vm/task/*/comm | wc -l) -eq 2 ]; }
    forgotten() { ! known; }
    setpriv --reuid nobody --regid nogroup --clear-groups qemu-system-x86_64 -name second,debug-threads=on -smp 2 -m 32 \
        -nodefaults -no-user-config -display none -S -accel tcg,thread=multi </dev/null >/dev/null 2>&1 &
    vm=$!
    # What is left when a wait ends in vain would be there at the next try.
    trap 'kill -9 $vm 2>/dev/null' EXIT
    until_so has_vcpus; began=$(now); until_so known; came=$(($(now) - began))
    kill -9 $vm; wait $vm 2>/dev/null; began=$(now); until_so forgotten
    echo $came $(($(now) - began))";
/// The users of the run, its state, its lock, its history and the files in that.
const OWNERS: &str = "stat -c %U /proc/$(systemctl show -P MainPID instep) /run/instep /run/instep/lock \
    /var/lib/instep/history && stat -c %U /var/lib/instep/history/* | sort -u";
/// The seconds after which it ends even if nobody ends it.
const LIFE: &str = "300";

/// Ends with everything in it when it is dropped.
pub(crate) struct Machine {
    outer: Child,
    /// systemd, seen from here.
    first: String,
    dir: TempDir,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The end of its first process ends all the others.
        let _ = Command::new("kill").args(["-9", &self.first]).status();
        let _ = self.outer.kill();
        let _ = self.outer.wait();
    }
}

impl Machine {
    /// Boots one with what `put` puts over this machine's files; `None`, with a note, where that cannot be done.
    fn boot(put: impl FnOnce(&Path)) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(&tree).unwrap();
        put(&tree);
        Self::begin(dir, None)
    }

    /// Boots one that has the files below `root` alone; what it writes stays there.
    pub(crate) fn boot_root(root: &Path) -> Option<Self> {
        Self::begin(tempfile::tempdir().unwrap(), Some(root))
    }

    fn begin(dir: TempDir, root: Option<&Path>) -> Option<Self> {
        if !skip::may_boot() {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            skip::note("systemd in namespaces of its own takes root");
            return None;
        }
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            skip::note("one CPU is not enough to tell affinities apart");
            return None;
        }
        fs::create_dir(dir.path().join("over")).unwrap();
        let boot = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/package/boot.sh");
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let mut unshare = Command::new("timeout");
        unshare.args(["--signal=KILL", LIFE, "unshare", "--kill-child"]);
        unshare.args(["--fork", "--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup"]);
        unshare
            .arg(boot)
            .arg(dir.path())
            .args(root)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let outer = unshare.spawn().ok()?;
        let mut machine = Self { outer, first: String::new(), dir };
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && machine.outer.try_wait().is_ok_and(|ended| ended.is_none()) {
            machine.first = machine.first_process().unwrap_or_default();
            if !machine.first.is_empty()
                && machine.says("systemctl is-active basic.target") == "active"
            {
                return Some(machine);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let log = fs::read_to_string(machine.dir.path().join("log")).unwrap_or_default();
        skip::note(&format!(
            "no systemd in namespaces of its own here: {}",
            log.trim().replace('\n', "; ")
        ));
        None
    }

    fn first_process(&self) -> Option<String> {
        let child = |pid: String| {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
            children.split_whitespace().next().map(str::to_owned)
        };
        let first = child(child(self.outer.id().to_string())?)?;
        let name = fs::read_to_string(format!("/proc/{first}/comm")).ok()?;
        (name.trim() == "systemd").then_some(first)
    }

    /// Runs a script inside.
    fn runs(&self, script: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first, "--all", "timeout", "-k", "5", "90", "bash", "-c"]);
        command.arg(script).stdin(Stdio::null()).output().unwrap()
    }

    /// What a script says, whatever comes of it.
    pub(crate) fn says(&self, script: &str) -> String {
        output_text(&self.runs(script)).trim().to_owned()
    }

    /// Runs a script that must succeed.
    pub(crate) fn does(&self, script: &str) {
        let output = self.runs(script);
        let said = output_text(&output);
        assert!(output.status.success(), "{script}: {said}\n{}", self.journal());
    }

    pub(crate) fn journal(&self) -> String {
        self.says("systemctl status instep --no-pager --lines 0; journalctl --unit instep --output cat --no-pager")
    }

    /// Starts the VM; whether that can be done. Its vCPUs are as found then, unless the service runs.
    pub(crate) fn starts_vm(&self) -> bool {
        let said = self.says(VM);
        if self.cpus().len() != 2 {
            skip::note(&format!("no VM starts on a machine of its own: {said}"));
            return false;
        }
        true
    }

    /// The CPUs of the VM's vCPUs.
    fn cpus(&self) -> Vec<String> {
        let said = self.says("for tid in $(cat /tmp/vcpus); do taskset -pc $tid; done");
        said.lines().map(|line| line.rsplit(' ').next().unwrap_or_default().to_owned()).collect()
    }

    pub(crate) fn is_as_found(&self) -> bool {
        self.cpus() == ["0", "0"]
    }

    /// Waits until something is so.
    pub(crate) fn until(&self, what: &str, so: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !so() {
            assert!(Instant::now() < end, "{what} did not come: {}", self.journal());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A property of the unit.
    pub(crate) fn property(&self, name: &str) -> String {
        self.says(&format!("systemctl show --property {name} --value instep"))
    }
}

/// The configuration of the package, which places the VM once and then waits.
pub(crate) fn configuration() -> String {
    let shipped = fs::read_to_string(root().join("packaging/instep.toml")).unwrap();
    let changed = shipped
        .replace("#interval = \"60s\"", "interval = \"1h\"")
        .replace("#window = \"1s\"", "window = \"100ms\"")
        .replace("#mend_conflicts = false", "mend_conflicts = true")
        .replace("#users = []", "users = [\"nobody\"]")
        .replace("#include_pinned = false", "include_pinned = true");
    assert_ne!(shipped, changed);
    changed
}

/// The service without its package, and with a watchdog that does not let a test wait for minutes.
fn put_service(tree: &Path) {
    let drop_in = tree.join("etc/systemd/system/instep.service.d");
    for made in [
        &tree.join("usr/bin"),
        &tree.join("usr/lib/systemd/system"),
        &tree.join("etc/instep"),
        &drop_in,
    ] {
        fs::create_dir_all(made).unwrap();
    }
    for unit in ["instep.service", "instep-serve.service"] {
        let to = tree.join("usr/lib/systemd/system").join(unit);
        fs::copy(root().join("packaging").join(unit), to).unwrap();
    }
    fs::write(tree.join("etc/instep/instep.toml"), configuration()).unwrap();
    // With cgroup 1 systemd may miss that the service's cgroup is empty, and then waits for so long, thrice (seen: 57 s in
    // final-sigterm with no process left, of 90 s each).
    let own = "[Service]\nWatchdogSec=3s\nTimeoutStopSec=10s\n";
    fs::write(drop_in.join("test.conf"), own).unwrap();
    let users = tree.join("usr/lib/sysusers.d");
    fs::create_dir_all(&users).unwrap();
    fs::copy(root().join("packaging/sysusers.d/instep.conf"), users.join("instep.conf")).unwrap();
    fs::copy(root().join("packaging/hot-memory.conf"), tree.join("hot-memory.conf")).unwrap();
    // Not by this process: a program that others start meanwhile could have it open for writing.
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_instep"))
        .arg(tree.join("usr/bin/instep"))
        .status();
    assert!(copied.unwrap().success());
}

/// The same package as version 0.0.1, at `to`, whose service has no user of its own: it runs as root.
fn make_older(package: &Path, to: &Path) {
    let script = "mkdir \"$2.d\" && dpkg-deb -R \"$1\" \"$2.d/tree\" &&
        sed -i 's/^Version:.*/Version: 0.0.1-1/' \"$2.d/tree/DEBIAN/control\" &&
        sed -i '/^User=/d; /^AmbientCapabilities=/d' \"$2.d/tree/usr/lib/systemd/system/instep.service\" &&
        dpkg-deb --root-owner-group -b \"$2.d/tree\" \"$2\" && rm -r \"$2.d\"";
    let made = Command::new("sh").args(["-c", script, "sh"]).arg(package).arg(to).output().unwrap();
    assert!(made.status.success(), "{}", output_text(&made));
}

/// Installs a package over another version, whose service is this user's: the new run has what the one before placed, which was not
/// put back meanwhile.
fn replace(machine: &Machine, package: &str, version: &str, user: &str) {
    let run = machine.property("MainPID");
    machine.does(&format!("dpkg --force-confold -i {package}"));
    assert_eq!(machine.says(OWNERS), format!("{user}\n").repeat(5).trim(), "{}", machine.journal());
    assert_eq!(machine.says("dpkg-query -f '${Version}' -W instep"), version);
    assert_ne!(machine.property("MainPID"), run, "the other version runs");
    assert!(!machine.is_as_found(), "{}", machine.journal());
    let journal = machine.journal();
    assert!(!journal.contains("original affinity again"), "it was put back meanwhile: {journal}");
}

#[test]
fn upgrade_and_downgrade_keep_placement_and_removal_undoes_it() {
    let dir = tempfile::tempdir().unwrap();
    let Some(package) = super::deb::package(dir.path(), false) else { return };
    let put = |tree: &Path| {
        fs::copy(&package, tree.join("instep.deb")).unwrap();
        make_older(&package, &tree.join("older.deb"));
        fs::write(tree.join("instep.toml"), configuration()).unwrap();
    };
    let Some(machine) = Machine::boot(put) else { return };
    if !machine.starts_vm() {
        return;
    }
    assert!(machine.is_as_found());
    // Containers often have a policy that no package starts anything.
    machine.does("rm -f /usr/sbin/policy-rc.d && dpkg -i /older.deb");
    assert_eq!(machine.says("systemctl is-enabled instep"), "disabled");
    assert_eq!(machine.says("systemctl is-active instep"), "inactive");
    machine.does("test ! -e /var/lib/instep || rm -r /var/lib/instep");
    machine.does("cp /instep.toml /etc/instep/instep.toml && systemctl enable --now instep");
    assert!(!machine.is_as_found(), "{}", machine.journal());

    let own = concat!(env!("CARGO_PKG_VERSION"), "-1");
    let older = "0.0.1-1";
    for (package, version, user) in [
        ("/instep.deb", own, "instep"),
        ("/older.deb", older, "root"),
        ("/instep.deb", own, "instep"),
    ] {
        replace(&machine, package, version, user);
    }

    machine.does("dpkg --remove instep");
    assert!(machine.is_as_found(), "{}", machine.journal());
    machine.does("test -e /etc/instep/instep.toml && dpkg --purge instep && ! test -e /etc/instep");
    machine.does("! test -e /var/lib/instep && ! test -e /run/instep && getent passwd instep");
}

#[test]
fn service_does_under_systemd_what_the_guide_says() {
    let Some(machine) = Machine::boot(put_service) else { return };
    if !machine.starts_vm() {
        return;
    }
    assert!(machine.is_as_found());

    // As the scripts of the package do.
    machine.does("systemd-sysusers instep.conf");
    // It is ready once the VM is placed, and says so.
    machine.does("systemctl start instep");
    assert!(!machine.is_as_found(), "{}", machine.journal());
    machine.until("a status", || machine.property("StatusText").contains("1 VM"));

    // It has a user of its own and three capabilities, and can write to no setting of the kernel.
    let rights = "grep -E '^(Uid|CapPrm|CapBnd)' /proc/$(systemctl show -P MainPID instep)/status";
    let rights = machine.says(rights);
    assert_eq!(rights.matches("\t0000000000880004").count(), 2, "{rights}");
    assert!(!rights.contains("Uid:\t0"), "{rights}");
    machine.does(
        "nsenter --target $(systemctl show -P MainPID instep) --mount sh -c '! test -w /sys/kernel/profiling'",
    );

    // The page shows the VM. Its process has a user of its own, and no capabilities.
    machine.does("systemctl start instep-serve");
    let shown = "curl -sf http://127.0.0.1:9877/state.json | grep -q '\"name\":\"web\"'";
    machine.until("the page", || machine.says(&format!("{shown} && echo shown")) == "shown");
    machine.does("curl -sf http://127.0.0.1:9877/metrics | grep -q 'instep_vm_vcpus{name=\"web\"'");
    let rights = "grep -E '^(Uid|CapBnd)' /proc/$(systemctl show -P MainPID instep-serve)/status";
    let rights = machine.says(rights);
    assert!(
        rights.contains("CapBnd:\t0000000000000000") && !rights.contains("Uid:\t0"),
        "{rights}"
    );

    // The history is where it outlives a boot, and the page has it.
    machine.does("ls /var/lib/instep/history/*.jsonl.zst /var/lib/instep/history/day.json");
    let past = "curl -sf 'http://127.0.0.1:9877/moment.json?at=0' | grep -q '\"name\":\"web\"'";
    machine.until("the past", || machine.says(&format!("{past} && echo shown")) == "shown");
    machine.does("instep top --replay --json | grep -q '\"name\":\"web\"'");

    arrivals_are_noticed_within_a_second(&machine);

    // When it is killed, its guardian puts everything back, and it is started again.
    let run = machine.property("MainPID");
    machine.does("systemctl kill --kill-whom=main --signal=KILL instep");
    machine
        .until("the guardian", || machine.journal().contains("ended without restoring everything"));
    machine.until("another run", || {
        ![run.as_str(), "0"].contains(&machine.property("MainPID").as_str())
    });
    machine.until("another placement", || !machine.is_as_found());

    // A run that waits for its next cycle gives signs of life. The watchdog ends one that hangs; the guardian outlives
    // that, too.
    let run = machine.property("MainPID");
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(machine.property("MainPID"), run, "{}", machine.journal());
    machine.does("systemctl kill --kill-whom=main --signal=STOP instep");
    machine.until("another run", || {
        ![run.as_str(), "0"].contains(&machine.property("MainPID").as_str())
    });
    let restored = machine.journal().matches("ended without restoring everything").count();
    assert_eq!(restored, 2, "{}", machine.journal());
    machine.until("another placement", || !machine.is_as_found());

    let run = machine.property("MainPID");
    // SIGHUP reads the configuration again, and the service stays ready.
    machine.does("systemctl reload instep");
    machine.until("the reload", || machine.journal().contains("configuration was read again"));
    machine.until("readiness", || machine.property("ActiveState") == "active");
    assert_eq!(machine.property("MainPID"), run);

    // A restart, as an upgrade does it, leaves the placement to the new run.
    let placed = machine.cpus();
    machine.says(WATCH);
    machine.does("systemctl restart instep");
    machine.does("kill $(cat /tmp/watch)");
    let found = machine.says("grep -c ': 0$' /tmp/seen");
    assert!(placed.contains(&"0".to_owned()) || found == "0", "it was put back {found} times");
    assert!(!machine.is_as_found(), "{}", machine.journal());
    let journal = machine.journal();
    assert!(journal.contains("stays for the next `instep run`"), "{journal}");
    assert_eq!(journal.matches("original affinity again").count(), 2, "{journal}");
    assert_ne!(machine.property("MainPID"), run);
    let run = machine.property("MainPID");
    // The new run answers for what it found in place: when it is killed, its guardian puts that back, too.
    assert!(journal.contains("an earlier run left"), "{journal}");
    machine.does("systemctl kill --kill-whom=main --signal=KILL instep");
    let restored = || machine.journal().matches("ended without restoring everything").count() == 3;
    machine.until("the guardian", restored);
    machine.until("another run", || {
        ![run.as_str(), "0"].contains(&machine.property("MainPID").as_str())
    });
    machine.until("another placement", || !machine.is_as_found());

    // At the end everything is as it was found, and the directory of the journal is still there.
    machine.does("systemctl stop instep");
    assert!(machine.is_as_found(), "{}", machine.journal());
    machine.does("test -d /run/instep && ! test -e /run/instep/journal.json");
    let journal = machine.journal();
    for refused in ["denied", "not permitted", "cannot be read", "not readable", "SYS_"] {
        assert!(!journal.contains(refused), "a right is missing: {journal}");
    }
    root_shares_the_state_of_the_service(&machine);
    drop_in_lets_the_service_use_damon(&machine);
}

/// The next cycle is an hour away, and the run has the rights of the service's user.
fn arrivals_are_noticed_within_a_second(machine: &Machine) {
    let mut said = String::new();
    // What else the machine does may delay a look.
    for _ in 0..3 {
        said = machine.says(SECOND);
        println!("noticed after (ms): {said}");
        let times: Vec<u64> = said.split(' ').map_while(|time| time.parse().ok()).collect();
        if times.len() == 2 && times.iter().all(|time| *time < 1000) {
            return;
        }
        skip::retried(&format!("a VM that comes and ends is noticed after (ms): {said}"));
    }
    panic!("more than a second (ms): {said}\n{}", machine.journal());
}

/// With the example for memory in use it may write to DAMON's files, which are root's, and to no other setting of the kernel.
fn drop_in_lets_the_service_use_damon(machine: &Machine) {
    machine.does(
        "cp /hot-memory.conf /etc/systemd/system/instep.service.d/ && systemctl daemon-reload",
    );
    machine.does("systemctl start instep");
    machine.does(
        "grep -q 'CapEff:.*0000000000880006' /proc/$(systemctl show -P MainPID instep)/status",
    );
    machine.does(
        "! test -e /sys/kernel/mm/damon || nsenter --target $(systemctl show -P MainPID instep) --mount sh -c 'cd \
         /sys/kernel && test -w mm/damon/admin/kdamonds/nr_kdamonds && ! test -w profiling'",
    );
    machine.does("systemctl stop instep");
}

/// What the service left as all of it was killed is put back by root's `instep restore`, which follows no link that the service's
/// user made; and what root's `run --once` places the service takes over.
fn root_shares_the_state_of_the_service(machine: &Machine) {
    machine.does("systemctl start instep");
    machine.does("systemctl kill --kill-whom=all --signal=KILL instep && systemctl stop instep");
    assert!(!machine.is_as_found(), "nobody was left to put it back: {}", machine.journal());
    machine.does(
        "cd /run/instep && rm -f journal.lock && ln -s /etc/hostname journal.lock && ! instep restore",
    );
    assert!(!machine.is_as_found());
    machine.does("test -s /etc/hostname && rm /run/instep/journal.lock && instep restore");
    assert!(machine.is_as_found());
    machine.does("instep run --once --config /etc/instep/instep.toml && instep status");
    assert!(!machine.is_as_found());
    machine.does("systemctl start instep");
    machine.does("test $(stat -c %U /run/instep/lock) = instep && systemctl stop instep");
    assert!(machine.is_as_found(), "{}", machine.journal());
}
