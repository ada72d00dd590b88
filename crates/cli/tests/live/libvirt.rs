//! A real libvirtd with a domain under software emulation. The daemon has folders of its own in a mount namespace, and
//! `instep` runs beside it there.

use super::common::{Ran, Started, binary, list, text};
use super::stage::{Stage, first_cpu, signal};
use instep_lab::{affinity, command};
use instep_madehost::skip;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a test waits for something that happens by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Folders that the daemon writes to.
const FOLDERS: &str = "/run /var/lib/libvirt /var/cache/libvirt /var/log/libvirt /etc/libvirt";

/// The daemon keeps to itself what it makes, and needs no other service.
const SETUP: &str = "
for folder in $FOLDERS; do mount -t tmpfs none $folder; done
mkdir -p /etc/libvirt/qemu /var/lib/libvirt/qemu
printf '%s\\n' 'user = \"root\"' 'group = \"root\"' 'security_driver = \"none\"' 'namespaces = []' \\
    'remember_owner = 0' 'stdio_handler = \"file\"' > /etc/libvirt/qemu.conf
printf '%s\\n' 'auth_unix_rw = \"none\"' > /etc/libvirt/libvirtd.conf
exec libvirtd
";

/// A domain of two vCPUs with settings of its own, and a secret.
pub(super) const DOMAIN: &str = "
<domain type='qemu'>
  <name>NAME</name>
  <memory unit='MiB'>64</memory>
  <vcpu>2</vcpu>
  <metadata>
    <instep:vm xmlns:instep='urn:instep:vm:1' cosched='relaxed' weight='200'/>
    <app:note xmlns:app='urn:app'>hunter-1</app:note>
  </metadata>
  <os><type arch='x86_64'>hvm</type></os>
  <devices><graphics type='vnc' port='-1' autoport='yes' listen='127.0.0.1' passwd='hunter-2'/></devices>
</domain>";

/// The daemon with one domain that runs.
pub(super) struct Libvirt {
    daemon: Child,
    pub(super) name: String,
    /// The domain's QEMU.
    pid: u32,
    /// Cgroups that were made for it.
    cgroups: Vec<PathBuf>,
}

impl Libvirt {
    /// Starts both; `None`, with a note, where that cannot be done.
    fn start(stage: &Stage) -> Option<Self> {
        Self::start_with(stage, DOMAIN)
    }

    /// The same with this domain.
    fn start_with(stage: &Stage, domain: &str) -> Option<Self> {
        let mut libvirt = Self::start_alone(stage)?;
        let created = libvirt.create(stage, domain);
        assert!(created.status.success(), "{created:?}");
        Some(libvirt)
    }

    /// Starts the daemon, which has no domain yet.
    pub(super) fn start_alone(stage: &Stage) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip::note("only root can start libvirtd");
            return None;
        }
        for program in ["/usr/sbin/libvirtd", "/usr/bin/virsh"] {
            if !Path::new(program).exists() {
                skip::note(&format!(
                    "there is no {program} (apt install libvirt-daemon-system libvirt-clients)"
                ));
                return None;
            }
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-e", "-c", SETUP]).env("FOLDERS", FOLDERS);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
        let log = fs::File::create(stage.file("libvirtd")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let cgroups = ["", "cpu", "cpuset", "memory", "freezer", "blkio", "cpu,cpuacct", "unified"];
        let cgroups = cgroups.map(|name| Path::new("/sys/fs/cgroup").join(name).join("machine"));
        let daemon = command::die_with_parent(&mut command).spawn().unwrap();
        let mut libvirt = Self {
            daemon,
            name: format!("domain-{}", std::process::id()),
            pid: 0,
            cgroups: cgroups.into_iter().filter(|path| !path.exists()).collect(),
        };
        let said = || fs::read_to_string(stage.file("libvirtd")).unwrap();
        let end = Instant::now() + PATIENCE;
        while !libvirt.virsh(&["version"]).status.success() {
            if let Some(status) = libvirt.daemon.try_wait().unwrap() {
                skip::note(&format!("libvirtd does not start here ({status}): {}", said()));
                return None;
            }
            assert!(Instant::now() < end, "libvirtd does not answer: {}", said());
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(libvirt)
    }

    /// The process of the domain.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// What came of creating the one domain.
    pub(super) fn create(&mut self, stage: &Stage, domain: &str) -> Output {
        let file = stage.file("domain.xml");
        fs::write(&file, domain.replace("NAME", &self.name)).unwrap();
        let created = self.virsh(&["create", file.to_str().unwrap()]);
        if created.status.success() {
            let pid = fs::read_to_string(self.file(&format!("{}.pid", self.name))).unwrap();
            self.pid = pid.trim().parse().unwrap();
        }
        created
    }

    /// A file of /run/libvirt/qemu.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/run/libvirt/qemu/{name}", self.daemon.id()))
    }

    /// A command where the daemon is.
    pub(super) fn beside(&self, program: &Path) -> Command {
        let mut command = binary("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.daemon.id())).arg(program);
        command
    }

    fn virsh(&self, args: &[&str]) -> Output {
        let mut command = self.beside(Path::new("timeout"));
        command.args(["20", "virsh", "-c", "qemu:///system"]).args(args).output().unwrap()
    }

    fn done(&self, args: &[&str]) {
        let output = self.virsh(args);
        assert!(output.status.success(), "virsh {args:?}: {output:?}");
    }

    /// Gives the domain, which runs, this element for Instep.
    fn set_metadata(&self, element: &str) {
        let args =
            ["metadata", &self.name, "urn:instep:vm:1", "--key", "instep", "--live", "--set"];
        self.done(&[&args[..], &[element]].concat());
    }

    fn started(&self, args: &[&str]) -> Started {
        let mut command = self.beside(Path::new(env!("CARGO_BIN_EXE_instep")));
        Started::new(command.args(args))
    }

    pub(super) fn instep(&self, args: &[&str]) -> Ran {
        self.started(args).end()
    }

    /// A run that mends the domain's pins each second.
    fn mending(&self) -> Started {
        let args = ["run", "--json", "--window", "10ms", "--interval", "1s", "--no-memory"];
        let only = ["--mend-conflicts", "--include-pinned", "--vm", &self.name];
        let state = ["--state-dir", "/run/instep-test"];
        self.started(&[&args[..], &only, &state].concat())
    }

    /// What `instep status` says of the domain.
    fn status(&self, args: &[&str]) -> Value {
        let status = self.instep(&[&["status", "--json"], args].concat()).json();
        let vm = list(&status, "vms").iter().find(|vm| vm["pid"] == self.pid);
        vm.unwrap_or_else(|| panic!("no domain in {status}")).clone()
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        if self.pid != 0 {
            self.virsh(&["destroy", &self.name]);
            // Where the daemon did not do it.
            let pid = Pid::from_raw(i32::try_from(self.pid).unwrap_or_default());
            let is_left = fs::read_to_string(format!("/proc/{}/cmdline", self.pid))
                .is_ok_and(|words| words.contains(&self.name));
            if let Some(pid) = pid.filter(|_| is_left) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        self.cgroups.iter().for_each(|path| _ = fs::remove_dir(path));
    }
}

fn setting(key: &str, value: &str) -> Value {
    json!({"key": key, "value": value, "source": "libvirt_metadata"})
}

#[test]
fn settings_of_a_domain_are_shown_and_change_while_it_runs() {
    let Some(stage) = Stage::new() else { return };
    let Some(libvirt) = Libvirt::start(&stage) else { return };
    let vm = libvirt.status(&["--window", "10ms"]);
    assert_eq!(vm["settings"], json!([setting("weight", "200"), setting("cosched", "relaxed")]));
    assert_eq!(text(&vm, "name"), libvirt.name);
    libvirt.set_metadata("<vm weight=\"300\" latency=\"prompt\"/>");
    let vm = libvirt.status(&["--window", "10ms"]);
    assert_eq!(vm["settings"], json!([setting("weight", "300"), setting("latency", "prompt")]));
    libvirt.set_metadata("<vm weight=\"0\" latency=\"prompt\"/>");
    let status = libvirt.instep(&["status", "--window", "10ms"]);
    let file = format!("(/run/libvirt/qemu/{}.xml)", libvirt.name);
    let said = status.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    let what =
        format!("the attribute weight=\"0\" of its libvirt metadata {file} counts for nothing");
    assert!(said.contains(&what), "{}", status.all());
    assert!(status.stdout.contains("latency prompt (libvirt metadata)"), "{}", status.all());
    // `virsh metadata --edit` does the same with an editor.
    libvirt.done(&["metadata", &libvirt.name, "urn:instep:vm:1", "--live", "--remove"]);
    assert_eq!(libvirt.status(&["--window", "10ms"])["settings"], json!([]));
}

#[test]
fn run_leaves_a_domain_alone_from_the_next_cycle_on() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let Some(libvirt) = Libvirt::start(&stage) else { return };
    let affinities = || affinity::of_process(libvirt.pid).unwrap();
    let vcpus = affinities().into_iter().filter(|(_, (name, _))| name.starts_with("CPU "));
    // Mending this changes an affinity however busy the domain is.
    vcpus.for_each(|(tid, _)| affinity::bind(tid, first_cpu()).unwrap());
    let before = affinities();
    let run = libvirt.mending();
    let last = || -> Option<Value> {
        serde_json::from_str(run.text("out").lines().next_back().unwrap_or_default()).ok()
    };
    let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
        let end = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < end, "{what}: {:?}\n{}", last(), run.text("err"));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let is_in = |key: &str| {
        let record = last();
        let mut vms = record.iter().flat_map(|record| list(record, key));
        vms.any(|vm| vm["name"] == libvirt.name.as_str())
    };
    let is_as_before = || {
        let now = affinities();
        before.iter().all(|(tid, was)| now.get(tid).is_none_or(|now| now.1 == was.1))
    };
    wait_for("its pins are mended", &|| is_in("vms") && !is_as_before());
    libvirt.set_metadata("<vm ignore=\"yes\"/>");
    wait_for("it is left alone, as it was found", &|| is_in("left_alone") && is_as_before());
    assert!(!is_in("vms"));
    libvirt.set_metadata("<vm ignore=\"no\"/>");
    wait_for("its pins are mended again", &|| is_in("vms") && !is_as_before());
    signal(&run, Signal::TERM);
    run.end().expect(0);
    assert!(is_as_before(), "{before:?} {:?}", affinities());
}

/// What `virsh` may do to a domain that a run has placed: the run goes on, and its end leaves every thread as it was found.
#[test]
fn quota_suspension_and_more_vcpus_during_a_run_leave_nothing_behind() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let domain = DOMAIN.replace("<vcpu>2</vcpu>", "<vcpu current='2'>3</vcpu>");
    let Some(libvirt) = Libvirt::start_with(&stage, &domain) else { return };
    let affinities = || affinity::of_process(libvirt.pid).unwrap();
    let vcpus = || affinities().into_iter().filter(|(_, (name, _))| name.starts_with("CPU "));
    let free = vcpus().next().unwrap().1.1;
    vcpus().for_each(|(tid, _)| affinity::bind(tid, first_cpu()).unwrap());
    let before = affinities();
    let run = libvirt.mending();
    let cycles = || run.text("out").lines().count();
    let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
        let end = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < end, "{what}: {}", run.text("err"));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let is_as_before = || {
        let now = affinities();
        before.iter().all(|(tid, was)| now.get(tid).is_none_or(|now| now.1 == was.1))
    };
    // Two cycles: the first may have begun before.
    let goes_on = |what: &str| {
        let done = cycles();
        wait_for(what, &|| cycles() >= done + 2);
        assert!(!is_as_before(), "{what}: it is placed no more");
    };
    wait_for("its pins are mended", &|| !is_as_before());

    let quota = ["schedinfo", &libvirt.name, "--live", "vcpu_period=100000", "vcpu_quota=20000"];
    let set = libvirt.virsh(&quota);
    if set.status.success() {
        let vm = libvirt.status(&["--window", "10ms"]);
        assert_eq!(vm["quota_cpus"].as_f64(), Some(0.4), "20 % of a CPU for each vCPU: {vm}");
    } else {
        let why = String::from_utf8_lossy(&set.stderr).into_owned();
        skip::note(&format!("libvirt can set no quota here: {}", why.trim()));
    }
    libvirt.done(&["suspend", &libvirt.name]);
    goes_on("suspended");
    libvirt.done(&["resume", &libvirt.name]);

    libvirt.done(&["setvcpus", &libvirt.name, "3", "--live"]);
    wait_for("a third vCPU", &|| vcpus().count() == 3);
    goes_on("with a third vCPU");
    assert_eq!(list(&libvirt.status(&["--window", "10ms"]), "vcpus").len(), 3);
    signal(&run, Signal::TERM);
    run.end().expect(0);
    assert!(is_as_before(), "{before:?} {:?}", affinities());
    // With the set that Instep gave its siblings, the new vCPU counts as one that inherited it (journal.rs): on a host of two
    // CPUs that is the same as what libvirt gave it.
    let (_, (_, third)) = vcpus().find(|(tid, _)| !before.contains_key(tid)).unwrap();
    assert!([free, first_cpu().to_string()].contains(&third), "{third}");
}

#[test]
fn collected_copy_holds_a_domain_s_settings_and_no_secrets() {
    let Some(stage) = Stage::new() else { return };
    let Some(libvirt) = Libvirt::start(&stage) else { return };
    let status = libvirt.file(&format!("{}.xml", libvirt.name));
    let status = fs::read_to_string(status).unwrap();
    assert!(status.contains("hunter-1") && status.contains("hunter-2"), "libvirt keeps them here");
    let copy = stage.file("copy");
    libvirt.instep(&["collect", copy.to_str().unwrap(), "--interval", "50ms"]).expect(0);
    let root = copy.join("after").display().to_string();
    let vm = libvirt.status(&["--root", &root]);
    assert_eq!(vm["settings"], json!([setting("weight", "200"), setting("cosched", "relaxed")]));
    let mut bytes = Vec::new();
    super::collecting::bytes_in(&copy, &mut bytes);
    let all = String::from_utf8_lossy(&bytes);
    assert!(all.contains("urn:instep:vm:1") && !all.contains("hunter"));
}
