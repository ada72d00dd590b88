//! What a run publishes, as last read, and what of it is lacking.
//!
//! Nothing is interpreted but when the next cycle is due: the documents go on to readers as they are.

use bytes::Bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The most that is read of one file.
const MAX_FILE: u64 = 16 << 20;
/// How late a cycle may be before the run counts as gone: it may bring memory home meanwhile.
const GRACE: Duration = Duration::from_secs(120);

/// Where a run publishes.
#[derive(Clone, Debug)]
pub struct PublishedFiles {
    /// The host after the last cycle.
    pub host: PathBuf,
    /// The last hour.
    pub history: PathBuf,
    /// The directory of the history on disk.
    pub past: PathBuf,
    /// Metrics for Prometheus.
    pub metrics: PathBuf,
}

/// The files as they are found: which they are, and whether a cycle is overdue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilesState([Option<(u64, u64, i64, i64)>; 3]);

/// What is shown.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) state: FilesState,
    /// Larger than that of anything shown before.
    pub(crate) version: u64,
    /// The document `instep.serve/1`.
    pub(crate) document: Bytes,
    /// The metrics, or why there are none.
    pub(crate) metrics: Result<Bytes, String>,
    /// When the cycle is overdue after the last one.
    overdue: Option<SystemTime>,
}

/// What is not there to be shown.
#[derive(Debug, JsonSchema, Serialize)]
struct Lacking {
    what: &'static str,
    why: String,
    /// The command that helps.
    next: String,
}

/// Everything that is shown, schema `instep.serve/1`.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Page")]
pub struct Document {
    #[schemars(extend("const" = "instep.serve/1"))]
    schema: &'static str,
    version: u64,
    lacking: Vec<Lacking>,
    #[schemars(schema_with = "host_or_null")]
    host: Option<Box<RawValue>>,
    #[schemars(schema_with = "history_or_null")]
    history: Option<Box<RawValue>>,
}

// Of the types of a run, which this crate does not know: the document of all schemas defines both.

fn host_or_null(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [{ "$ref": "#/$defs/PublishedHost" }, { "type": "null" }] })
}

fn history_or_null(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [{ "$ref": "#/$defs/History" }, { "type": "null" }] })
}

/// What is read of the host's document.
#[derive(Deserialize)]
struct Due {
    next_cycle_at: String,
}

impl PublishedFiles {
    /// What the files are now.
    pub(crate) fn state(&self) -> FilesState {
        let of = |path: &PathBuf| {
            let meta = fs::metadata(path).ok()?;
            Some((meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
        };
        FilesState([of(&self.host), of(&self.history), of(&self.metrics)])
    }

    /// Reads all of them.
    pub(crate) fn read(&self) -> Shown {
        let state = self.state();
        let now = SystemTime::now();
        let version = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let mut lacking = Vec::new();
        let mut document = |what, path: &Path| {
            let read = read(path).and_then(|bytes| {
                serde_json::from_slice::<Box<RawValue>>(&bytes).map_err(io::Error::other)
            });
            read.map_err(|error| lacking.push(self.lacking(what, path, &error))).ok()
        };
        let host = document("the host and its VMs", &self.host);
        let history = document("the last hour", &self.history);
        let overdue = host.as_ref().and_then(|host| due(host.get())).map(|due| due + GRACE);
        if overdue.is_some_and(|overdue| overdue < now) {
            lacking.push(Lacking {
                what: "a run that goes on",
                why: "its next cycle is overdue: what is shown is old".to_owned(),
                next: "systemctl status instep; journalctl -u instep".to_owned(),
            });
        }
        let metrics = read(&self.metrics).map(Bytes::from).map_err(|error| {
            let Lacking { why, next, .. } = self.lacking("metrics", &self.metrics, &error);
            format!("no metrics: {why}; {next}\n")
        });
        let shown = Document { schema: "instep.serve/1", version, lacking, host, history };
        let document = serde_json::to_vec(&shown).unwrap_or_default().into();
        Shown { state, version, document, metrics, overdue }
    }

    fn lacking(&self, what: &'static str, path: &Path, error: &io::Error) -> Lacking {
        let why = format!("cannot read {}: {error}", path.display());
        let dir = path.parent().unwrap_or(path).display();
        let next = match error.kind() {
            io::ErrorKind::NotFound => {
                format!(
                    "start a run that publishes there: systemctl start instep, or: instep run --state-dir {dir}"
                )
            }
            io::ErrorKind::PermissionDenied => {
                format!("let everybody pass through the directory: chmod a+x {dir}")
            }
            _ => "start the run anew: systemctl restart instep".to_owned(),
        };
        Lacking { what, why, next }
    }
}

impl Shown {
    /// Whether the cycle after the last one became overdue since this was read.
    pub(crate) fn is_overdue_since(&self, now: SystemTime) -> bool {
        let read = UNIX_EPOCH + Duration::from_millis(self.version);
        self.overdue.is_some_and(|overdue| read <= overdue && overdue < now)
    }
}

/// The whole file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("it has more than {} MiB", MAX_FILE >> 20)));
    }
    Ok(bytes)
}

/// When the next cycle begins by this document.
fn due(host: &str) -> Option<SystemTime> {
    let Due { next_cycle_at } = serde_json::from_str(host).ok()?;
    humantime::parse_rfc3339(&next_cycle_at).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &Path) -> PublishedFiles {
        PublishedFiles {
            host: dir.join("host.json"),
            history: dir.join("history.json"),
            past: dir.join("history"),
            metrics: dir.join("metrics.prom"),
        }
    }

    fn document(shown: &Shown) -> serde_json::Value {
        serde_json::from_slice(&shown.document).unwrap()
    }

    #[test]
    fn what_is_lacking_is_reported_with_what_helps() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let shown = files.read();
        let lacking = document(&shown)["lacking"].clone();
        assert_eq!(lacking.as_array().unwrap().len(), 2);
        assert!(
            lacking[0]["next"].as_str().unwrap().contains("instep run --state-dir"),
            "{lacking}"
        );
        assert!(shown.metrics.unwrap_err().contains("systemctl start instep"));
        fs::write(&files.host, "{\"next_cycle_at\": ").unwrap();
        assert!(
            document(&files.read())["lacking"][0]["next"].as_str().unwrap().contains("restart")
        );
        let big = File::create(&files.history).unwrap();
        big.set_len(MAX_FILE + 1).unwrap();
        assert!(document(&files.read())["lacking"].to_string().contains("more than 16 MiB"));
    }

    #[test]
    fn documents_are_passed_on_and_changes_seen() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let at = |seconds| humantime::format_rfc3339(SystemTime::now() + seconds).to_string();
        let host = format!("{{\"next_cycle_at\":\"{}\",\"vms\":[1]}}", at(Duration::from_secs(60)));
        for (path, text) in
            [(&files.host, host.as_str()), (&files.history, "{}"), (&files.metrics, "x 1\n")]
        {
            let before = files.state();
            fs::write(path, text).unwrap();
            assert_ne!(files.state(), before);
        }
        let shown = files.read();
        assert_eq!(
            (document(&shown)["host"]["vms"][0].as_u64(), files.state()),
            (Some(1), shown.state.clone())
        );
        assert_eq!(document(&shown)["lacking"].as_array().unwrap().len(), 0);
        assert_eq!(shown.metrics.as_deref(), Ok(&b"x 1\n"[..]));
        let now = SystemTime::now();
        assert!(!shown.is_overdue_since(now));
        assert!(shown.is_overdue_since(now + Duration::from_secs(200)));
    }

    #[test]
    fn run_whose_cycle_is_overdue_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        fs::write(&files.host, "{\"next_cycle_at\":\"2026-01-01T00:00:00Z\"}").unwrap();
        fs::write(&files.history, "{}").unwrap();
        let shown = files.read();
        assert!(document(&shown)["lacking"][0]["why"].as_str().unwrap().contains("overdue"));
        assert!(!shown.is_overdue_since(SystemTime::now() + Duration::from_secs(1)));
    }
}
