//! Restoring on a host that changed meanwhile: a cpuset that narrows and widens, CPUs that go
//! offline. These tests change the machine they run on, so they run only in an emulated one: set
//! `INSTEP_TEST_CGROUP2` to a cgroup2 mount with the controller cpuset; skipped elsewhere.
#![expect(clippy::unwrap_used, reason = "all of this is a test, which fails by a panic")]

use instep_core::idset::CpuSet;
use instep_core::units::Tid;
use instep_host::Root;
use instep_host::apply::{
    Affinity, AffinityChange, Applied, Applier, KernelAffinity, StateDir, ThreadKind, thread,
};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// One test at a time: they change the same CPUs.
static HOST: Mutex<()> = Mutex::new(());

struct Scene {
    cgroup: PathBuf,
    sleeper: Child,
    applier: Applier,
    _dir: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

fn cpus(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

fn online(cpu: u32, yes: bool) {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    fs::write(path, if yes { "1" } else { "0" }).unwrap();
    // The kernel updates cpusets from a work queue.
    std::thread::sleep(Duration::from_millis(300));
}

impl Scene {
    fn new(name: &str) -> Option<Self> {
        let Ok(mount) = std::env::var("INSTEP_TEST_CGROUP2") else {
            instep_madehost::skip::note(
                "changes the host; set INSTEP_TEST_CGROUP2 in an emulated machine",
            );
            return None;
        };
        let alone = HOST.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let cgroup = PathBuf::from(mount).join(name);
        fs::create_dir(&cgroup).unwrap();
        let sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(cgroup.join("cgroup.procs"), sleeper.id().to_string()).unwrap();
        let dir = instep_madehost::scratch_dir().unwrap();
        let lock = StateDir::at(dir.path().join("s")).lock().unwrap();
        let applier = Applier::open(lock).unwrap();
        Some(Self { cgroup, sleeper, applier, _dir: dir, _alone: alone })
    }

    fn allow(&self, list: &str) {
        fs::write(self.cgroup.join("cpuset.cpus"), list).unwrap();
    }

    fn has(&self) -> CpuSet {
        KernelAffinity.get(Tid(self.sleeper.id())).unwrap()
    }

    /// Sets `list` on the sleeper, whose cpuset is `cpuset`.
    fn place(&mut self, cpuset: &str, list: &str) -> Applied {
        let pid = self.sleeper.id();
        let change = AffinityChange {
            vm: "alpha".into(),
            kind: ThreadKind::Vcpu(0),
            thread: thread::key_of(&Root::live(), pid, Tid(pid)).unwrap(),
            seen: self.has(),
            cpuset: cpus(cpuset),
            cpus: cpus(list),
        };
        self.applier.apply(&[change]).unwrap().remove(0).applied
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.sleeper.kill();
        let _ = self.sleeper.wait();
        let _ = fs::write("/sys/devices/system/cpu/cpu1/online", "1");
        let _ = fs::remove_dir(&self.cgroup);
    }
}

#[test]
fn cpus_outside_the_cpuset_are_refused_or_dropped_and_reported() {
    let Some(mut scene) = Scene::new("outside") else { return };
    scene.allow("0");
    let Applied::Failed(error) = scene.place("0", "1") else { panic!("not refused") };
    assert!(error.to_string().contains("cpuset"), "{error}");
    let applied = scene.place("0", "0-1");
    assert!(matches!(&applied, Applied::Narrowed(got) if *got == cpus("0")), "{applied:?}");
    let report = scene.applier.restore().unwrap();
    assert_eq!((report.restored, scene.has()), (1, cpus("0")));
}

#[test]
fn a_restored_thread_follows_its_cpuset_as_one_never_touched() {
    let Some(mut scene) = Scene::new("follows") else { return };
    scene.allow("0-1");
    assert!(matches!(scene.place("0-1", "1"), Applied::Set));
    assert_eq!(scene.applier.restore().unwrap().restored, 1);
    scene.allow("0");
    assert_eq!(scene.has(), cpus("0"));
    scene.allow("0-1");
    assert_eq!(scene.has(), cpus("0-1"));
}

#[test]
fn thread_found_in_a_narrow_cpuset_gets_wide_one_after_restore() {
    let Some(mut scene) = Scene::new("widens") else { return };
    scene.allow("0-1");
    assert!(matches!(scene.place("0-1", "1"), Applied::Set));
    scene.allow("1");
    assert_eq!(scene.has(), cpus("1"));
    let report = scene.applier.restore().unwrap();
    assert_eq!((report.restored, report.narrowed.len()), (1, 1));
    scene.allow("0-1");
    assert_eq!(scene.has(), cpus("0-1"), "{report:?}");
}

#[test]
fn a_thread_whose_cpus_all_went_offline_is_still_known_as_ours() {
    let Some(mut scene) = Scene::new("offline") else { return };
    assert!(matches!(scene.place("0-1", "1"), Applied::Set));
    online(1, false);
    assert_eq!(scene.has(), cpus("0"), "the kernel takes another CPU");
    let report = scene.applier.restore().unwrap();
    assert_eq!((report.restored, report.left_alone.len()), (1, 0), "{report:?}");
    online(1, true);
    assert_eq!(scene.has(), cpus("0-1"));
}

#[test]
fn an_original_that_is_offline_leaves_what_is_online() {
    let Some(mut scene) = Scene::new("original") else { return };
    KernelAffinity.set(Tid(scene.sleeper.id()), &cpus("1")).unwrap();
    assert!(matches!(scene.place("0-1", "0"), Applied::Set));
    online(1, false);
    let report = scene.applier.restore().unwrap();
    assert_eq!((report.restored, report.narrowed.len()), (1, 1), "{report:?}");
    assert_eq!(scene.has(), cpus("0"));
}
