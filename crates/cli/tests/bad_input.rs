//! The `instep` binary with input that is missing, cut, wrong or hostile: a clear message, exit
//! status 1 or 2, and never a panic.
#![cfg(test)]

mod common;

use common::{Ran, Started, binary, instep, list, text};
use instep_core::units::{Bytes, Milli, Nanos, NodeId};
use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm, scratch_dir};
use rustix::process::Signal;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Process of the one VM with two vCPUs, and the thread of its first.
const PID: u32 = 2000;

/// A copy of a small host to be damaged.
struct Copy(TempDir);

impl Copy {
    fn new() -> Self {
        let mut host = MadeHost::new(HostSpec::new(2, 2));
        let memory = Bytes::from_mib(512);
        let mut vm = VmSpec::new("alpha", Vmm::QemuKvm, 2, NodeId(1), memory).load(Milli(500));
        // Without it memory is read from numa_maps.
        vm.numa_stat = false;
        vm.pid = PID;
        host.push(vm);
        let dir = scratch_dir().unwrap();
        host.write(dir.path()).unwrap();
        Self(dir)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// Writes a file anew.
    fn with(self, file: &str, bytes: impl AsRef<[u8]>) -> Self {
        assert!(self.path(file).exists(), "{file}");
        fs::write(self.path(file), bytes).unwrap();
        self
    }

    /// Keeps only the first part of a file.
    fn cut(self, file: &str, keep: usize) -> Self {
        let mut bytes = fs::read(self.path(file)).unwrap();
        assert!(bytes.len() > keep, "{file}");
        bytes.truncate(keep);
        self.with(file, bytes)
    }

    fn without(self, file: &str) -> Self {
        let path = self.path(file);
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.unwrap();
        self
    }

    fn run(&self, args: &[&str]) -> Ran {
        instep(&[args, &["--root", self.0.path().to_str().unwrap()]].concat())
    }
}

fn vcpu(index: u32) -> String {
    let vm = VmSpec { pid: PID, ..VmSpec::new("alpha", Vmm::QemuKvm, 2, NodeId(1), Bytes(0)) };
    format!("proc/{PID}/task/{}", vm.vcpu_tid(index))
}

const OBSERVERS: [&str; 3] = ["topology", "status", "plan"];

#[test]
fn root_that_holds_no_host_is_refused_with_what_it_should_hold() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    for command in OBSERVERS {
        let at = |path: &Path| instep(&[command, "--root", path.to_str().unwrap()]).expect(2);
        at(dir.path()).says(&["sys/devices/system/cpu", "--root"]);
        at(&dir.path().join("absent")).says(&["absent is not a folder", "--root"]);
        at(&dir.path().join("file")).says(&["file is not a folder", "--root"]);
    }
}

#[test]
fn a_copy_without_proc_or_sys_is_refused_by_name() {
    let copy = Copy::new().without("proc");
    copy.run(&["topology"]).expect(0);
    for command in ["status", "plan"] {
        copy.run(&[command]).expect(2).says(&["/proc cannot be listed", "--root"]);
    }
    let copy = Copy::new().without("sys");
    for command in OBSERVERS {
        copy.run(&[command]).expect(2).says(&["sys/devices/system/cpu", "--root"]);
    }
}

#[test]
fn garbage_in_sysfs_is_named_and_gives_a_sane_result() {
    let cpu = "sys/devices/system/cpu";
    let node = "sys/devices/system/node";
    for (file, garbage, said) in [
        ("cpu/online", &b"\xff\x00\x1b[2Jgarbage"[..], "cpu/online: `"),
        ("node/node0/distance", b"10 banana", "distance: `10 banana` is not"),
        ("node/node1/distance", b"", "distance"),
        ("node/node1/meminfo", b"Node 1 MemTotal: lots kB", "meminfo"),
        ("cpu/cpu2/cache/index1/shared_cpu_map", b"zz,3", "shared_cpu_map: `zz,3` is not"),
        ("cpu/cpu1/topology/physical_package_id", b"first", "physical_package_id: `first` is not"),
    ] {
        let copy = Copy::new().with(&format!("sys/devices/system/{file}"), garbage);
        let told = copy.run(&["topology", "--json"]).expect(0).json();
        let warnings = list(&told, "warnings");
        let named = warnings.iter().any(|warning| warning.as_str().unwrap().contains(said));
        assert!(named, "{file}: {warnings:?}");
        assert_eq!((&told["counts"]["cpus"], &told["counts"]["nodes"]), (&4.into(), &2.into()));
        let status = copy.run(&["status"]).expect(0).says(&["warning: ", said]);
        assert!(!status.stderr.contains(|c: char| c.is_control() && c != '\n'), "{}", status.all());
    }
    let none = Copy::new().without(&format!("{cpu}/online")).without(node);
    none.run(&["topology", "--json"]).expect(0);
}

#[test]
fn truncated_numa_maps_is_named_and_counts_what_is_whole() {
    let maps = format!("proc/{PID}/numa_maps");
    let whole = fs::read_to_string(Copy::new().path(&maps)).unwrap();
    let guest = whole.find(" anon=13").expect("the guest's own memory");
    for keep in [10, guest, guest + 20] {
        let copy = Copy::new().cut(&maps, keep);
        let status = copy.run(&["status", "--json"]).expect(0).json();
        let vm = &list(&status, "vms")[0];
        let bytes = vm["memory_bytes_by_node"]["1"].as_u64().unwrap_or(0);
        assert!(bytes < 16 << 20, "{vm}");
        let warned = |w: &serde_json::Value| w.as_str().unwrap().contains("numa_maps:");
        assert!(keep == guest || list(&status, "warnings").iter().any(warned), "{keep}: {status}");
    }
    let garbage = Copy::new().with(&maps, [0xff, b'\n'].repeat(5000));
    garbage.run(&["status"]).expect(0).says(&["numa_maps:1: `"]);
}

#[test]
fn threads_that_vanish_or_have_cut_files_harm_nothing() {
    let (zero, one) = (vcpu(0), vcpu(1));
    let cases: [(&str, Copy, usize); 9] = [
        ("no stat of a thread", Copy::new().without(&format!("{zero}/stat")), 2),
        ("half a stat", Copy::new().cut(&format!("{zero}/stat"), 20), 2),
        ("no thread", Copy::new().without(&zero), 1),
        ("half the stat of the process", Copy::new().cut(&format!("proc/{PID}/stat"), 15), 2),
        ("no counters", Copy::new().with(&format!("{one}/schedstat"), "many"), 2),
        ("no status", Copy::new().without(&format!("{one}/status")), 2),
        ("half a status", Copy::new().cut(&format!("{one}/status"), 30), 2),
        ("no uptime", Copy::new().without("proc/uptime"), 2),
        ("no CPU times", Copy::new().with("proc/stat", "cpu what\n"), 2),
    ];
    for (what, copy, vcpus) in cases {
        let status = copy.run(&["status", "--json"]).expect(0).json();
        let vm = list(&status, "vms").first().unwrap_or_else(|| panic!("{what}: {status}"));
        assert_eq!(text(vm, "name"), "alpha", "{what}");
        assert_eq!(list(vm, "vcpus").len(), vcpus, "{what}: {vm}");
        copy.run(&["plan"]).expect(0);
    }
}

#[test]
fn loads_that_cannot_be_read_are_reported_in_json_and_in_text() {
    let mut copy = Copy::new();
    for file in ["stat", "schedstat"] {
        copy = copy.without(&format!("{}/{file}", vcpu(0))).without(&format!("{}/{file}", vcpu(1)));
    }
    for command in ["status", "plan"] {
        let told = copy.run(&[command, "--json"]).expect(0).json();
        let warnings: Vec<&str> =
            list(&told, "warnings").iter().map(|w| w.as_str().unwrap()).collect();
        assert!(warnings.len() == 1 && warnings[0].contains("its load is not known"), "{told}");
        copy.run(&[command]).expect(0).says(&["of VM alpha is missing or cut"]);
    }
}

#[test]
fn memory_that_is_not_in_a_copy_is_reported() {
    let copy = Copy::new().without(&format!("proc/{PID}/numa_maps"));
    let told = copy.run(&["status", "--json"]).expect(0).json();
    let warnings = list(&told, "warnings");
    let first = warnings[0].as_str().unwrap();
    assert!(warnings.len() == 1 && first.starts_with("memory of 1 VM is not in this"), "{told}");
    copy.run(&["plan"]).expect(0).says(&["is not in this copy (first: "]);
}

#[test]
fn copies_in_the_wrong_order_or_alone_are_refused() {
    let dir = scratch_dir().unwrap();
    let (before, after) = (dir.path().join("before"), dir.path().join("after"));
    let host = MadeHost::new(HostSpec::new(1, 2));
    host.write_pair(&before, &after, Nanos::from_secs(60)).unwrap();
    let (before, after) = (before.to_str().unwrap(), after.to_str().unwrap());
    let plan = |more: &[&str]| instep(&[&["plan"], more].concat());
    plan(&["--root", after, "--before", before]).expect(0);
    let turned = plan(&["--root", before, "--before", after, "--elapsed", "60s"]).expect(2);
    turned.says(&["--before is not the earlier one", "4600", "4540"]);
    plan(&["--before", before]).expect(2).says(&["--root"]);
    plan(&["--elapsed", "60s"]).expect(2).says(&["--before"]);
    plan(&["--root", after, "--before", "/nowhere"]).expect(2).says(&["/nowhere is not a folder"]);
    let empty = tempfile::tempdir().unwrap();
    let empty = plan(&["--root", after, "--before", empty.path().to_str().unwrap()]).expect(2);
    let empty = empty.says(&["the copy given with --before: ", "/proc cannot be listed"]);
    assert!(!empty.stderr.contains("give --root"), "{}", empty.all());
}

#[test]
fn wrong_command_line_is_answered_with_the_right_one() {
    for (args, said) in [
        (&["plan", "--policy", "best"][..], "unknown policy `best`; known are instep, bnn"),
        (&["run", "--interval", "60"], "durations look like 4ms, 60s or 5m"),
        (&["run", "--interval", "0s"], "must be longer than 0"),
        (&["run", "--interval", "10ms"], "interval 10ms is below 1s"),
        (&["status", "--window", "10y"], "a window is 10ms to 1day"),
        (&["plan", "--window", "10y"], "a window is 10ms to 1day"),
        (&["status", "--window", "0"], "must be longer than 0"),
        (&["plan", "--root", "/", "--before", "/", "--elapsed", "9999y"], "longer than 584 years"),
        (&["plan", "--format", "xml"], "virsh"),
        (&["plan", "--json", "--format", "text"], "cannot be used with"),
        (&["profile"], "(instep profile -- CMD), a process (--pid PID) or a VM (--vm NAME)"),
        (
            &["analyze", "--vm", "x=1,abc", "t"],
            "NAME=TID,TID,... (threads of vCPU 0, 1, ...); `abc`",
        ),
        (&["stauts"], "status"),
        (&[], "Usage: instep"),
    ] {
        let refused = instep(args).expect(2).says(&[said]);
        assert_eq!(refused.stdout, "");
    }
}

/// The project's own scenarios.
fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

#[test]
fn scenario_of_another_command_names_that_command() {
    let file = |name: &str| scenarios().join(name).to_str().unwrap().to_owned();
    let (lab, sim) = (file("lab/hello.toml"), file("sim/spinning.toml"));
    let published = file("published/stacking.toml");
    let (to_sim, to_lab) = (format!("instep sim {sim}"), format!("instep lab run {lab}"));
    for (args, said) in [
        (&["lab", "run", &sim][..], to_sim.as_str()),
        (&["lab", "shell", &sim], &to_sim),
        (&["sim", &lab], &to_lab),
        (&["lab", "run", &published], "instep reproduce stacking"),
        (&["sim", &published], "instep reproduce stacking"),
    ] {
        instep(args).expect(2).says(&[said]);
    }
    // What is wrong with a scenario of one's own is all that is said of it.
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("own.toml");
    fs::write(&own, "about = 'x'\ncolour = 1\n").unwrap();
    let own = instep(&["lab", "run", own.to_str().unwrap()]).expect(2).says(&["colour"]);
    assert!(!own.stderr.contains("instep sim"), "{}", own.all());
}

#[test]
fn missing_scenario_is_answered_by_the_nearest_names() {
    let dir = tempfile::tempdir().unwrap();
    let at = |dir: &Path, args: &[&str]| {
        let mut command = binary(env!("CARGO_BIN_EXE_instep"));
        Started::new(command.args(args).current_dir(dir)).end().expect(2)
    };
    let sources = scenarios().join("..");
    at(&sources, &["lab", "run", "scenarios/lab/helo.toml"])
        .says(&["did you mean scenarios/lab/hello.toml"]);
    at(&sources, &["sim", "two_8"]).says(&["did you mean two-8"]);
    let here = dir.path();
    at(here, &["lab", "run", "helo"]).says(&["No such file", "did you mean hello"]);
    at(here, &["sim", "spining.toml"]).says(&["did you mean spinning?"]);
    at(here, &["lab", "run", "scenarios/lab/hello.toml"]).says(&["did you mean hello?"]);
    at(here, &["lab", "run", "zzz"]).says(&["No such file", "built in are ", ", hello, "]);
    at(here, &["sim", "hello"]).says(&["a scenario of the lab: instep lab run hello"]);
    at(here, &["agree", "spin-10us"]).says(&["did you mean spin-100us"]);
    at(here, &["reproduce", "staking"]).says(&["did you mean stacking?"]);
    let sim = |option: &str, name: &str| at(here, &["sim", "spinning", option, name]);
    sim("--scheduler", "eevdff").says(&["known are credit", "did you mean eevdf?"]);
    sim("--placement", "spred").says(&["known are instep", "did you mean spread?"]);
    let bench = |option: &str, name: &str| at(here, &["bench", option, name]);
    bench("--case", "comput-50").says(&["no case fits `comput-50`", "did you mean compute-50"]);
    bench("--schedulers", "instep-without-gan").says(&["did you mean instep-without-gang"]);
}

/// /proc holds no directory that could be made, whoever asks.
#[test]
fn without_a_cache_or_state_place_the_variable_to_set_is_named() {
    let hello = scenarios().join("lab/hello.toml");
    let none = |args: &[&str], home: Option<&str>| {
        let mut command = binary(env!("CARGO_BIN_EXE_instep"));
        command.args(args).env_remove("XDG_CACHE_HOME").env_remove("HOME");
        command.env_remove("XDG_RUNTIME_DIR");
        if let Some(home) = home {
            command.env("HOME", home);
        }
        Started::new(&mut command).end()
    };
    for home in [None, Some("/proc/nobody"), Some("relative")] {
        let doctor = none(&["lab", "doctor"], home).expect(1);
        let said = doctor.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(said.matches("set XDG_CACHE_HOME=DIR").count(), 1, "{said}");
        none(&["lab", "clean"], home).expect(2).says(&["set XDG_CACHE_HOME=DIR"]);
        if said.contains("fine qemu-system-x86_64") {
            let run = none(&["lab", "run", hello.to_str().unwrap()], home);
            run.expect(2).says(&["set XDG_CACHE_HOME=DIR", "instep lab doctor"]);
            none(&["demo"], home).expect(2).says(&["set XDG_CACHE_HOME=DIR"]);
        }
    }
    let instep = env!("CARGO_BIN_EXE_instep");
    for args in [&["restore"][..], &["run", "--once"]] {
        let mut command = binary("setpriv");
        command.args(["--reuid", "65534", "--clear-groups", instep]).args(args);
        command.env("XDG_RUNTIME_DIR", "relative");
        if !rustix::process::geteuid().is_root() {
            return instep_madehost::skip::note("only root can be another user");
        }
        let refused = Started::new(&mut command).end();
        if refused.code == Some(2) {
            let said = ["XDG_RUNTIME_DIR names no directory; run it as root", "CAP_SYS_NICE"];
            refused.says(&said).says(&["--state-dir DIR"]);
        } else {
            // The other user cannot reach the program under test.
            instep_madehost::skip::note(refused.stderr.trim());
        }
    }
}

#[test]
fn bad_configuration_is_named_with_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let (config, state) = (dir.path().join("instep.toml"), dir.path().join("state"));
    for (toml, said) in [
        ("policy = \"bnn\"\nintervall = \"60s\"\n", "instep.toml:2: unknown field `intervall`"),
        ("[memory]\nfast = true\n", "instep.toml:2: unknown field `fast`"),
        ("policy = \"best\"\n", "instep.toml:1: unknown policy `best`"),
        ("interval = 60\n", "instep.toml:1: invalid type: integer"),
        ("interval = \"60\"\n", "no duration such as 60s"),
        ("policy = \n", "instep.toml:1:"),
        ("interval = \"10ms\"\n", "interval 10ms is below 1s"),
    ] {
        fs::write(&config, toml).unwrap();
        let (config, state) = (config.to_str().unwrap(), state.to_str().unwrap());
        let refused = instep(&["run", "--once", "--config", config, "--state-dir", state]);
        refused.expect(2).says(&[said]);
        instep(&["plan", "--config", config]).expect(2).says(&[said]);
        assert!(!Path::new(state).exists());
    }
    let absent = instep(&["plan", "--config", "/nowhere/instep.toml"]).expect(2);
    let absent = absent.says(&["cannot read /nowhere/instep.toml: No such file", "--config"]);
    assert_eq!(absent.stderr.matches("No such file").count(), 1, "told once: {}", absent.stderr);
}

#[test]
fn a_damaged_journal_is_kept_until_the_user_sets_it_aside() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    let journal = state.join("journal.json");
    let run = |args: &[&str]| instep(&[args, &["--state-dir", state.to_str().unwrap()]].concat());
    for damage in [&b"{\"schema\":\"instep.journal/1\",\"threads\":["[..], b"", b"\xff\xfe", b"[]"]
    {
        fs::write(&journal, damage).unwrap();
        for command in [&["restore"][..], &["run", "--once"]] {
            let refused = run(command).expect(2);
            refused.says(&["is damaged", "nothing was changed", "--discard-damaged"]);
            assert_eq!(fs::read(&journal).unwrap(), damage, "it stays as it was");
        }
        let dry = run(&["run", "--once", "--dry-run", "--window", "10ms"]);
        dry.says(&["original affinities are unknown", "is damaged"]);
        run(&["restore", "--discard-damaged"]).expect(0).says(&["is now", "journal.json.damaged"]);
        assert!(!journal.exists());
        assert_eq!(fs::read(state.join("journal.json.damaged")).unwrap(), damage);
        run(&["restore"]).expect(0);
    }
    fs::write(&journal, "{\"schema\":\"instep.journal/9\"}").unwrap();
    run(&["restore"]).expect(2).says(&["instep.journal/9", "with the version of Instep"]);
}

#[test]
fn a_process_as_a_vm_needs_the_kernel_scheduler() {
    let run = |args: &[&str]| {
        let mut all = vec!["run", "--once", "--dry-run", "--window", "10ms"];
        all.extend(args);
        instep(&all)
    };
    let alone = run(&["--process-vm", "job=1"]).expect(2);
    alone.says(&["--process-vm is for the kernel scheduler alone", "--dispatch auto"]);
    run(&["--process-vm", "job", "--dispatch", "auto"]).expect(2).says(&["NAME=PID"]);
}

#[test]
fn wrong_configuration_is_named_by_line_and_nothing_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let (file, state) = (dir.path().join("i.toml"), dir.path().join("state"));
    let vm = |text: &str| format!("[dispatch]\nmode = \"off\"\n[dispatch.vm.web]\n{text}");
    for (text, said) in [
        (vm("weight = 0"), "i.toml:4: weight 0 is not between 1 and 10000"),
        (vm("weight = 10001"), "i.toml:4: weight 10001 is not between 1 and 10000"),
        (vm("wieght = 200"), "i.toml:4: unknown field `wieght`, expected one of `weight`"),
        (vm("latency = \"5ms\""), "i.toml:4: `5ms` is none of normal, prompt"),
        (vm("period = \"96m"), "i.toml:4: invalid basic string"),
        (vm("weight ="), "i.toml:4: "),
        ("[dispatch]\n[dispatch.vm.we".to_owned(), "i.toml:2: unclosed table"),
    ] {
        fs::write(&file, &text).unwrap();
        let (file, state) = (file.to_str().unwrap(), state.to_str().unwrap());
        let ran = instep(&["run", "--config", file, "--state-dir", state]).expect(2).says(&[said]);
        assert!(ran.stdout.is_empty() && !Path::new(state).exists(), "{}", ran.all());
    }
    let run = |mode: &str| instep(&["run", "--once", "--dry-run", "--dispatch", mode]);
    run("kernal").expect(2).says(&["unknown dispatch `kernal`: known are auto, kernel, off"]);
}

#[test]
fn settings_of_vms_while_kernel_scheduler_is_off_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("i.toml");
    fs::write(&file, "[dispatch.vm.web]\nweight = 200\n").unwrap();
    let run = |args: &[&str]| {
        let usual = ["run", "--once", "--dry-run", "--window", "10ms", "--config"];
        instep(&[&usual[..], &[file.to_str().unwrap()], args].concat()).expect(0).stderr
    };
    let said = "the kernel scheduler, which is off: add --dispatch auto";
    assert!(run(&[]).contains(said) && !run(&["--dispatch", "auto"]).contains(said));
}

#[test]
fn dispatch_kernel_that_cannot_load_ends_the_run_unchanged() {
    if Path::new("/sys/kernel/sched_ext").exists() {
        return instep_madehost::skip::note(
            "this kernel has sched_ext: loading is the lab's to test",
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let args = ["run", "--policy", "none", "--dispatch", "kernel", "--state-dir"];
    let ran = instep(&[&args[..], &[state.to_str().unwrap()]].concat()).expect(2);
    let ran =
        ran.says(&["cannot load the kernel scheduler: ", "`--dispatch auto` goes on without"]);
    assert!(ran.stdout.is_empty() && !state.join("journal.json").exists(), "{}", ran.all());
}

#[test]
fn a_dry_run_says_what_would_become_of_the_scheduler() {
    let own = format!("own={}", std::process::id());
    let args = ["run", "--once", "--dry-run", "--window", "10ms", "--process-vm", &own];
    let said = |mode| instep(&[&args[..], &["--dispatch", mode]].concat()).expect(0).stderr;
    let (auto, kernel) = (said("auto"), said("kernel"));
    if auto.contains("would load") {
        assert!(auto.contains("own: ") && auto.contains("weight 100, period 24ms"), "{auto}");
    } else {
        let stays = "the kernel's default scheduler is in force, and";
        assert!(auto.contains(&format!("{stays} it would stay: ")), "{auto}");
        assert!(kernel.contains(&format!("{stays} a run would end here: ")), "{kernel}");
    }
    assert!(!Path::new("/sys/kernel/sched_ext/root/ops").exists() || auto.contains("is loaded"));
}

#[test]
fn a_state_directory_that_cannot_be_used_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    for (state, said) in [
        (file.clone(), "file is, or lies below, a file"),
        (file.join("below"), "below is, or lies below, a file"),
        (PathBuf::from("/proc/instep"), "cannot create /proc/instep"),
        (open, "others could change what is in it"),
    ] {
        let refused = |command: &[&str]| {
            instep(&[command, &["--state-dir", state.to_str().unwrap()]].concat()).expect(2)
        };
        refused(&["run", "--once"]).says(&[said, "a folder of your own", "--state-dir"]);
        let restore = refused(&["restore"]);
        if state.exists() {
            restore.says(&[said, "a folder of your own", "--state-dir"]);
        } else {
            restore.says(&["there is no state directory", "--state-dir"]);
        }
    }
    let state = dir.path().join("state");
    let log = ["run", "--once", "--log", "/nowhere/log", "--state-dir", state.to_str().unwrap()];
    instep(&log).expect(2).says(&["cannot append to the log /nowhere/log", "with --log FILE"]);
}

#[test]
fn run_without_a_configuration_file_or_a_change_claims_neither() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = binary(env!("CARGO_BIN_EXE_instep"));
    // By a name that no VM has, nothing is changed.
    command.args(["run", "--vm", "no-vm-has-this-name", "--window", "10ms", "--json"]);
    let run = Started::new(command.arg("--state-dir").arg(dir.path().join("state")));
    let until = |what: &str, name: &str, word: &str| {
        let end = Instant::now() + Duration::from_secs(60);
        while !run.text(name).contains(word) {
            assert!(Instant::now() < end, "no {what}: {}", run.text("err"));
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let pid = rustix::process::Pid::from_child(&run.child);
    let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
    until("cycle", "out", "instep.record/1");
    signal(Signal::HUP);
    until("answer", "err", "nor a configuration file to read again");
    assert!(!run.text("err").contains("was read again"), "{}", run.text("err"));
    signal(Signal::TERM);
    let ended = run.end().expect(0).says(&["there was no affinity to put back", "--config FILE"]);
    assert!(!ended.stderr.contains("0 threads"), "{}", ended.stderr);
}

#[test]
fn a_reader_that_goes_away_ends_the_output_quietly() {
    let copy = Copy::new();
    let root = copy.0.path().to_str().unwrap();
    for args in [&["topology"][..], &["status", "--json"], &["plan", "--format", "taskset"]] {
        let mut command = binary(env!("CARGO_BIN_EXE_instep"));
        command.args(args).args(["--root", root]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{args:?}: {out:?}");
        assert!(out.stderr.is_empty(), "{args:?}: {out:?}");
    }
}

#[test]
fn closed_pipe_is_fine_and_full_disk_fails_a_single_run() {
    for json in [&["--json"][..], &[]] {
        let dir = tempfile::tempdir().unwrap();
        let run = |stdout: Stdio| {
            let mut command = binary(env!("CARGO_BIN_EXE_instep"));
            command.args(["run", "--once", "--dry-run", "--window", "10ms"]).args(json);
            command.arg("--state-dir").arg(dir.path().join("state"));
            command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap()
        };
        let mut child = run(Stdio::piped());
        drop(child.stdout.take());
        let out = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(0), "{said}");

        let full = File::options().write(true).open("/dev/full").unwrap();
        let out = run(full.into()).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let told = said.contains("cannot write standard output: No space left");
        assert_eq!((out.status.code(), told), (Some(1), true), "{said}");
    }
}

#[test]
fn a_full_disk_is_reported_and_a_full_error_log_harms_nothing() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let copy = Copy::new().with("sys/devices/system/cpu/online", "what");
    let root = copy.0.path().to_str().unwrap();
    let mut command = binary(env!("CARGO_BIN_EXE_instep"));
    let out = command.args(["status", "--root", root]).stdout(full()).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((out.status.code(), said.contains("No space left")), (Some(2), true), "{said}");
    let mut command = binary(env!("CARGO_BIN_EXE_instep"));
    let out = command.args(["status", "--root", root]).stderr(full()).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    assert!(String::from_utf8_lossy(&out.stdout).contains("alpha"));
}

#[test]
fn name_that_no_vm_has_ends_a_single_run_and_leaves_no_journal() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let mut command = binary(env!("CARGO_BIN_EXE_instep"));
    let name = "no-vm-has-this-name";
    command.args(["run", "--once", "--window", "10ms", "--vm", name, "--state-dir"]).arg(&state);
    let refused = Started::new(&mut command).end().expect(2);
    refused.says(&["no VM is called `no-vm-has-this-name`", "instep status"]);
    assert!(!state.join("journal.json").exists());
}
