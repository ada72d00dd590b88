//! What these tests share: the binary, a lab's turn, a lab in the background and what it left.

use instep_madehost::skip;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest that anything may take on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(900);

static TURN: Mutex<()> = Mutex::new(());

/// Labs run one test at a time: two would fight for this machine's CPUs.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/lab")
}

pub(crate) fn instep(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_instep")).args(args).output().expect("instep can be started")
}

/// Whether the lab can and may run here; says and counts it when not.
pub(crate) fn can_run() -> bool {
    if !skip::may_boot() {
        return false;
    }
    let ran = instep(&["lab", "doctor"]);
    if !ran.status.success() {
        skip::note(&format!("no lab here: {}", String::from_utf8_lossy(&ran.stdout).trim()));
    }
    ran.status.success()
}

/// An `instep lab run` in the background, which says on standard error what it does.
pub(crate) struct Lab {
    child: Child,
    dir: TempDir,
    began: Instant,
}

impl Lab {
    /// Starts a scenario; `cache` instead of the user's.
    pub(crate) fn start(file: &Path, more: &[&str], cache: Option<&Path>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_instep"));
        command.args(["lab", "run"]).arg(file).arg("--json").args(more).stdin(Stdio::null());
        if let Some(cache) = cache {
            command.env("XDG_CACHE_HOME", cache);
        }
        Self::spawn(command)
    }

    /// Starts a shell, with what feeds it.
    pub(crate) fn shell() -> (Self, ChildStdin) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_instep"));
        command.args(["lab", "shell"]).stdin(Stdio::piped());
        let mut lab = Self::spawn(command);
        let input = lab.child.stdin.take().expect("standard input is a pipe");
        (lab, input)
    }

    fn spawn(mut command: Command) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let to = |name: &str| File::create(dir.path().join(name)).unwrap();
        command.env("INSTEP_LOG", "info").env("NO_COLOR", "1").current_dir(dir.path());
        command.stdout(to("out")).stderr(to("err"));
        let child = command.spawn().expect("instep can be started");
        Self { child, dir, began: Instant::now() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote: `out` or `err`, or a file that it brought back.
    pub(crate) fn text(&self, name: &str) -> String {
        let bytes = fs::read(self.dir.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Where it runs, and puts what it brings back.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Waits until it has said this; `false` when it ended before.
    pub(crate) fn until_message(&mut self, words: &str) -> bool {
        self.until(|lab| lab.text("err").contains(words))
    }

    /// Waits until this is so; `false` when it ended before.
    pub(crate) fn until(&mut self, so: impl Fn(&Self) -> bool) -> bool {
        loop {
            if so(self) {
                return true;
            }
            if self.child.try_wait().unwrap().is_some() {
                return so(self);
            }
            assert!(self.began.elapsed() < LIMIT, "{}", self.text("err"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until it ended.
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.ends_within(LIMIT).unwrap_or_else(|| panic!("{}", self.text("err")))
    }

    /// Waits until it ended; `None` when it has not so long after its start.
    pub(crate) fn ends_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        while self.began.elapsed() < limit {
            let status = self.child.try_wait().unwrap();
            if status.is_some() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Its processes: children, and their children.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let children = children_of(self.pid());
        let grand: Vec<u32> = children.iter().flat_map(|pid| children_of(*pid)).collect();
        children.into_iter().chain(grand).collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lab's directories whose owner is this process id.
pub(crate) fn left_by(pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    let ours = |name: &str| name.starts_with("instep-lab.") && name.contains(&format!(".{pid}."));
    entries.filter(|e| ours(&e.file_name().to_string_lossy())).map(|e| e.path()).collect()
}

/// The processes whose parent is this one; any of its threads may have started them.
fn children_of(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("children"));
    let texts: Vec<String> = tasks.filter_map(|task| of(task).ok()).collect();
    texts.iter().flat_map(|text| text.split_whitespace()).filter_map(|w| w.parse().ok()).collect()
}

/// Whether a process is there and no zombie.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
