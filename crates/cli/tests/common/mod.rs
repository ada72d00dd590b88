//! What the tests of the `instep` binary share: running it within a time limit, alone or in the
//! background, and what came of it.

pub(crate) mod schemas;

use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest that one command may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The binary under test, without what the caller's environment could change, and as an instance
/// of its own: tests run side by side.
pub(crate) fn binary(path: impl AsRef<Path>) -> Command {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut command = Command::new(path.as_ref());
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    command.env("INSTEP_INSTANCE", format!("instep-test-{}-{count}", std::process::id()));
    command.env_remove("INSTEP_LOG").env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

/// Runs `instep` with these arguments to its end.
pub(crate) fn instep<S: AsRef<OsStr>>(args: &[S]) -> Ran {
    Started::new(binary(env!("CARGO_BIN_EXE_instep")).args(args)).end()
}

/// An `instep` that runs; dropping it kills it.
pub(crate) struct Started {
    pub(crate) child: Child,
    shown: String,
    dir: TempDir,
}

/// How `instep` ended, and what it said.
pub(crate) struct Ran {
    /// Exit status; `None` after a signal.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    shown: String,
}

impl Started {
    /// Starts the command, with its output kept in files.
    pub(crate) fn new(command: &mut Command) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| File::create(dir.path().join(name)).unwrap();
        let shown = format!("{command:?}");
        let started = command.stdout(file("out")).stderr(file("err")).spawn();
        let child = started.unwrap_or_else(|error| panic!("{shown}: {error}"));
        Self { child, shown, dir }
    }

    /// Waits until it ends, and checks what holds for every command: no panic, a documented
    /// exit status.
    pub(crate) fn end(mut self) -> Ran {
        let end = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "{} still runs\n{}", self.shown, self.text("err"));
            std::thread::sleep(Duration::from_millis(10));
        };
        let (stdout, stderr) = (self.text("out"), self.text("err"));
        let ran = Ran { code: status.code(), stdout, stderr, shown: self.shown.clone() };
        assert!(!ran.stderr.contains("panicked"), "{}", ran.all());
        assert!(ran.code.is_none_or(|code| (0..=2).contains(&code)), "{}", ran.all());
        ran
    }

    /// What it said so far: `out` or `err`.
    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.path().join(name)).unwrap()).into_owned()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ran {
    /// The same, having ended with this status.
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.all());
        self
    }

    /// The same, having said all these words on standard error.
    pub(crate) fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.stderr.contains(word), "no `{word}` in what it says:\n{}", self.all());
        }
        self
    }

    /// Standard output as one JSON document, which is as docs/schemas.json says.
    pub(crate) fn json(&self) -> Value {
        let parsed = serde_json::from_str(&self.stdout);
        let document = parsed.unwrap_or_else(|error| panic!("{error}:\n{}", self.all()));
        schemas::check(&document);
        document
    }

    /// Everything, for the message of a failed test.
    pub(crate) fn all(&self) -> String {
        let Self { code, stdout, stderr, shown } = self;
        format!("{shown}\nexit status {code:?}\n-- stdout\n{stdout}\n-- stderr\n{stderr}")
    }
}

/// The array under `key`.
pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("no array `{key}` in {value}"))
}

/// The text under `key`.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no text `{key}` in {value}"))
}
