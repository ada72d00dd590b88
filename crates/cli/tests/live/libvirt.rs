//! A real libvirtd with a domain under software emulation. The daemon has folders of its own in a mount namespace, and
//! `instep` runs beside it there.

use super::common::{Ran, Started, binary, list, text};
use super::stage::{Stage, first_cpu, signal};
use instep_lab::command;
use instep_madehost::skip;
use instep_testguest::affinity::{self, Affinities};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a test waits for something that happens by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Folders that the daemon writes to, or those above.
const FOLDERS: &str = "/run /var/lib /var/cache /var/log /etc/libvirt";

/// The daemon keeps to itself what it makes, and needs no other service. At its first start it asks each emulator what that
/// can, for seconds: the answers are kept in a folder ($0) for the next start.
const SETUP: &str = "
for folder in $FOLDERS; do mount -t tmpfs none $folder; done
mkdir -p /etc/libvirt/qemu /var/lib/libvirt/qemu /var/cache/libvirt/qemu
mount --bind \"$0\" /var/cache/libvirt/qemu
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
                    "there is no {program} (apt install libvirt-daemon-driver-qemu libvirt-clients)"
                ));
                return None;
            }
        }
        let mut command = Command::new("unshare");
        let answers = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libvirt");
        fs::create_dir_all(&answers).unwrap();
        command.args(["--mount", "sh", "-e", "-c", SETUP]).arg(answers).env("FOLDERS", FOLDERS);
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

    /// The affinity of each thread of the domain.
    fn affinities(&self) -> Affinities {
        affinity::of_process(self.pid).unwrap_or_default()
    }

    /// The affinity of each vCPU thread, the first vCPU first.
    fn vcpus(&self) -> BTreeMap<u32, String> {
        let vcpus = self.affinities().into_iter().filter(|(_, (name, _))| name.starts_with("CPU "));
        vcpus.map(|(tid, (_, cpus))| (tid, cpus)).collect()
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

/// A domain whose vCPUs were bound to one CPU by hand, and a run that mends that: it changes an affinity however busy the domain is.
struct Mended<'a> {
    libvirt: &'a Libvirt,
    before: Affinities,
    run: Started,
}

impl<'a> Mended<'a> {
    fn begin(libvirt: &'a Libvirt) -> Self {
        libvirt.vcpus().keys().for_each(|tid| affinity::bind(*tid, first_cpu()).unwrap());
        let mended = Self { libvirt, before: libvirt.affinities(), run: libvirt.mending() };
        mended.wait_for("its pins are mended", || !mended.is_as_before());
        mended
    }

    /// Whether every thread that was there before, and still is, has what it had.
    fn is_as_before(&self) -> bool {
        let now = self.libvirt.affinities();
        self.before.iter().all(|(tid, was)| now.get(tid).is_none_or(|now| now.1 == was.1))
    }

    fn wait_for(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < end, "{what}: {:?}\n{}", self.last(), self.run.text("err"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The last cycle that it told whole.
    fn last(&self) -> Option<Value> {
        serde_json::from_str(self.run.text("out").lines().next_back().unwrap_or_default()).ok()
    }

    /// Whether the last cycle names the domain there.
    fn is_in(&self, key: &str) -> bool {
        let record = self.last();
        let mut vms = record.iter().flat_map(|record| list(record, key));
        vms.any(|vm| vm["name"] == self.libvirt.name.as_str())
    }

    /// Waits for two more cycles: the first may have begun before.
    fn goes_on(&self, what: &str) {
        let cycles = || self.run.text("out").lines().count();
        let done = cycles();
        self.wait_for(what, || cycles() >= done + 2);
    }

    fn end(self) {
        signal(&self.run, Signal::TERM);
        self.run.end().expect(0);
    }
}

#[test]
fn run_leaves_a_domain_alone_from_the_next_cycle_on() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let Some(libvirt) = Libvirt::start(&stage) else { return };
    let mended = Mended::begin(&libvirt);
    mended.wait_for("it is in the record", || mended.is_in("vms"));
    libvirt.set_metadata("<vm ignore=\"yes\"/>");
    mended.wait_for("it is left alone, as it was found", || {
        mended.is_in("left_alone") && mended.is_as_before()
    });
    assert!(!mended.is_in("vms"));
    libvirt.set_metadata("<vm ignore=\"no\"/>");
    mended.wait_for("its pins are mended again", || mended.is_in("vms") && !mended.is_as_before());
    libvirt.done(&["destroy", &libvirt.name]);
    mended.goes_on("destroyed");
    assert!(!mended.is_in("vms"));
    mended.end();
}

/// What `virsh` may do to a domain that a run has placed: the run goes on, and its end leaves every thread as it was found.
#[test]
fn quota_suspension_and_new_vcpus_leave_nothing_behind() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let domain = DOMAIN.replace("<vcpu>2</vcpu>", "<vcpu current='2'>3</vcpu>");
    let Some(libvirt) = Libvirt::start_with(&stage, &domain) else { return };
    let free = libvirt.vcpus().into_values().next().unwrap();
    let mended = Mended::begin(&libvirt);

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
    mended.goes_on("suspended");
    assert!(!mended.is_as_before(), "it is placed no more: {:?}", mended.last());
    libvirt.done(&["resume", &libvirt.name]);

    libvirt.done(&["setvcpus", &libvirt.name, "3", "--live"]);
    mended.wait_for("a third vCPU", || libvirt.vcpus().len() == 3);
    mended.goes_on("with a third vCPU");
    assert_eq!(list(&libvirt.status(&["--window", "10ms"]), "vcpus").len(), 3);
    let before = mended.before.clone();
    mended.end();
    for (tid, now) in libvirt.vcpus() {
        // What libvirt gave the third is not taken for what Instep gave its siblings.
        assert_eq!(&now, before.get(&tid).map_or(&free, |(_, was)| was), "thread {tid}");
    }
}

#[test]
fn virsh_shows_what_is_configured_and_what_holds_and_its_pin_stays() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let Some(libvirt) = Libvirt::start(&stage) else { return };
    let free = libvirt.vcpus().into_values().next().unwrap();
    let said = |command: &str| {
        let output = libvirt.virsh(&[command, &libvirt.name]);
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().filter(|line| command == "vcpupin" || line.contains("Affinity"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let configured = said("vcpupin");
    libvirt.vcpus().keys().for_each(|tid| affinity::bind(*tid, first_cpu()).unwrap());
    let found = said("vcpuinfo");
    let mended = Mended::begin(&libvirt);
    assert_eq!(said("vcpupin"), configured);
    assert_ne!(said("vcpuinfo"), found);

    // Other CPUs than it has from the run.
    let (tid, now) = libvirt.vcpus().pop_last().unwrap();
    let pin = if now == free { first_cpu().to_string() } else { free };
    libvirt.done(&["vcpupin", &libvirt.name, "1", &pin, "--live"]);
    mended.goes_on("pinned by hand");
    let before = mended.before.clone();
    mended.end();
    for (thread, now) in libvirt.vcpus() {
        assert_eq!(now, if thread == tid { pin.as_str() } else { &before[&thread].1 });
    }
}

#[test]
fn collected_copy_holds_a_domain_s_settings_and_no_secrets() {
    let Some(stage) = Stage::new() else { return };
    let Some(libvirt) = Libvirt::start(&stage) else { return };
    let status = libvirt.file(&format!("{}.xml", libvirt.name));
    let status = fs::read_to_string(status).unwrap();
    assert!(status.contains("hunter-1") && status.contains("hunter-2"), "libvirt keeps them here");
    let copy = stage.file("copy");
    libvirt.instep(&["collect", copy.to_str().unwrap(), "--window", "50ms"]).expect(0);
    let root = copy.join("after").display().to_string();
    let vm = libvirt.status(&["--root", &root]);
    assert_eq!(vm["settings"], json!([setting("weight", "200"), setting("cosched", "relaxed")]));
    let mut bytes = Vec::new();
    super::collecting::bytes_in(&copy, &mut bytes);
    let all = String::from_utf8_lossy(&bytes);
    assert!(all.contains("urn:instep:vm:1") && !all.contains("hunter"));
}
