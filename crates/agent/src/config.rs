//! The configuration file: what `run` does when the command line does not say.
//!
//! TOML; a key that is not known is an error that names the file and line. Durations and sizes
//! carry units. Knows nothing of the command line, which overrides it.

pub mod dispatch;

use dispatch::DispatchConfig;
use instep_core::expected;
use instep_core::idset::NodeSet;
use instep_core::policy::{PolicyName, PolicySettings};
use instep_core::topology::Topology;
use instep_core::units::{Bytes, SizeError};
use instep_host::discover::Trust;
use serde::{Deserialize, Deserializer};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The shortest interval between two cycles: below it, affinities would change faster than the
/// kernel's own balancing settles.
pub const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest window over which loads are measured: below it a counter may not have moved.
pub const MIN_WINDOW: Duration = Duration::from_millis(10);
/// The longest interval between two cycles, and the longest window: what is older than a day says
/// nothing of a host's load now.
pub const MAX_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest that one cycle may spend on moving memory.
pub const MAX_MEMORY_TIME: Duration = Duration::from_secs(60 * 60);

/// The most that is read of a configuration file.
const MAX_FILE: u64 = 1 << 20;

/// Everything `run` can be told.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The placement policy.
    #[serde(deserialize_with = "policy")]
    pub policy: PolicyName,
    /// Time between two cycles (60 s, systems.md 4), from [`MIN_INTERVAL`] to [`MAX_INTERVAL`].
    #[serde(deserialize_with = "duration")]
    pub interval: Duration,
    /// How long the loads are measured before the first cycle, and by commands that run once; at
    /// most [`MAX_INTERVAL`].
    #[serde(deserialize_with = "duration")]
    pub window: Duration,
    /// Mend affinity conflicts.
    pub mend_conflicts: bool,
    /// Take charge of VMs pinned by hand, too.
    pub include_pinned: bool,
    /// Only these VMs are placed; all when empty.
    pub vms: Vec<String>,
    /// The users and cgroups whose VMs count.
    pub discover: DiscoverConfig,
    /// How memory is brought home.
    pub memory: MemoryConfig,
    /// Metrics for Prometheus.
    pub metrics: MetricsConfig,
    /// The history on disk.
    pub history: HistoryConfig,
    /// The kernel scheduler.
    pub dispatch: DispatchConfig,
}

/// The users and cgroups whose VMs count, besides system users and the cgroups of VM managers; and whether VMs
/// may have settings of their own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiscoverConfig {
    /// Users, by name or number.
    pub users: Vec<String>,
    /// Cgroups, as in /proc/PID/cgroup; what is below them counts, too.
    pub cgroups: Vec<String>,
    /// Whether settings in the definitions of VMs count.
    pub vm_settings: bool,
}

impl Default for DiscoverConfig {
    fn default() -> Self {
        Self { users: Vec::new(), cgroups: Vec::new(), vm_settings: true }
    }
}

/// Metrics for Prometheus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// The file for node_exporter's textfile collector; empty for none.
    pub file: PathBuf,
}

impl MetricsConfig {
    /// A file that is replaced must be one that nothing else uses.
    fn check(&self) -> Result<(), String> {
        let is_prom = self.file.extension().is_some_and(|extension| extension == "prom");
        if is_prom || self.file.as_os_str().is_empty() {
            return Ok(());
        }
        let file = self.file.display();
        Err(format!("metrics file {file}: its name must end with .prom, others are not collected"))
    }
}

/// The least that a history may have on disk.
const LEAST_HISTORY: Bytes = Bytes::from_mib(16);

/// The history on disk.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HistoryConfig {
    /// Its directory; empty for [`history_dir`](crate::published::history_dir).
    pub dir: PathBuf,
    /// The most that it has on disk; 0 for none.
    #[serde(deserialize_with = "size")]
    pub size: Bytes,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self { dir: PathBuf::new(), size: Bytes::from_mib(64) }
    }
}

impl HistoryConfig {
    /// Whether there is a history.
    pub(crate) fn is_kept(&self) -> bool {
        self.size.0 > 0
    }

    fn check(&self) -> Result<(), String> {
        if self.is_kept() && self.size < LEAST_HISTORY {
            return Err(format!(
                "history.size {} is below {LEAST_HISTORY}; 0B keeps none",
                self.size
            ));
        }
        if self.dir.is_relative() && !self.dir.as_os_str().is_empty() {
            return Err(format!("history.dir {} does not begin with /", self.dir.display()));
        }
        Ok(())
    }
}

/// How memory is brought home.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryConfig {
    /// Whether it is at all.
    pub home: bool,
    /// Also from nodes that have memory and no CPUs (CXL), which are left to the kernel's tiering else.
    pub memory_only_nodes: bool,
    /// The most that one cycle moves, over all VMs.
    #[serde(deserialize_with = "size")]
    pub per_cycle: Bytes,
    /// The most that one batch moves before the loop looks up again.
    #[serde(deserialize_with = "size")]
    pub batch: Bytes,
    /// The longest that one cycle spends on moving, at most [`MAX_MEMORY_TIME`].
    #[serde(deserialize_with = "duration")]
    pub time_per_cycle: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: PolicyName::default(),
            interval: Duration::from_secs(60),
            window: Duration::from_secs(1),
            mend_conflicts: false,
            include_pinned: false,
            vms: Vec::new(),
            discover: DiscoverConfig::default(),
            memory: MemoryConfig::default(),
            metrics: MetricsConfig::default(),
            history: HistoryConfig::default(),
            dispatch: DispatchConfig::default(),
        }
    }
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            home: true,
            memory_only_nodes: false,
            per_cycle: Bytes::from_mib(4096),
            batch: Bytes::from_mib(64),
            time_per_cycle: Duration::from_secs(20),
        }
    }
}

impl MemoryConfig {
    /// Nodes whose memory stays there, whoever it is of.
    #[must_use]
    pub fn left(&self, topology: &Topology) -> NodeSet {
        if self.memory_only_nodes { NodeSet::new() } else { topology.memory_only_nodes() }
    }
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// When it cannot be read, is larger than 1 MiB, is not TOML, has an unknown key or an unusable value.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        // One byte more tells a file that is too large from one that just fits.
        file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_FILE {
            let message = "larger than 1MiB: this is no configuration file".to_owned();
            return Err(ConfigError::Value { path: path.to_owned(), message });
        }
        let text = String::from_utf8(bytes).map_err(|error| failed(io::Error::other(error)))?;
        Self::parse(&text, path)
    }

    /// Parses the text of a configuration file; `path` is only named in errors.
    ///
    /// # Errors
    /// As [`Config::load`], except for reading.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| ConfigError::Parse {
            path: path.to_owned(),
            line: error.span().map_or(1, |span| line_of(text, span.start)),
            message: error.message().to_owned(),
        })?;
        config.check().map_err(|message| ConfigError::Value { path: path.to_owned(), message })?;
        Ok(config)
    }

    /// What the policy is told.
    #[must_use]
    pub fn settings(&self) -> PolicySettings {
        PolicySettings {
            policy: self.policy,
            mend_conflicts: self.mend_conflicts,
            include_pinned: self.include_pinned,
            memory_only_nodes: self.memory.memory_only_nodes,
        }
    }

    /// The users and cgroups whose VMs count. Users whose names have gone since the configuration was checked
    /// count for nothing.
    #[must_use]
    pub fn trust(&self) -> Trust {
        let DiscoverConfig { users, cgroups, .. } = &self.discover;
        let is_known = |user: &&String| Trust::of(std::slice::from_ref(user), &[]).is_ok();
        let users: Vec<String> = users.iter().filter(is_known).cloned().collect();
        Trust::of(&users, cgroups).unwrap_or_default()
    }

    /// Checks what types cannot: bounds of single values, names of users.
    ///
    /// # Errors
    /// A sentence that names the value and the bound.
    pub fn check(&self) -> Result<(), String> {
        let DiscoverConfig { users, cgroups, .. } = &self.discover;
        Trust::of(users, &[]).map_err(|why| format!("discover.users: {why}"))?;
        Trust::of(&[], cgroups).map_err(|why| format!("discover.cgroups: {why}"))?;
        let shown = |time: Duration| humantime::format_duration(time).to_string();
        if self.interval < MIN_INTERVAL {
            return Err(format!("interval {:?} is below {MIN_INTERVAL:?}", self.interval));
        }
        for (name, time, most) in [
            ("interval", self.interval, MAX_INTERVAL),
            ("window", self.window, MAX_INTERVAL),
            ("memory.time_per_cycle", self.memory.time_per_cycle, MAX_MEMORY_TIME),
        ] {
            if time > most {
                return Err(format!("{name} {} is above {}", shown(time), shown(most)));
            }
        }
        if self.window < MIN_WINDOW || self.window > self.interval {
            return Err(format!(
                "window {:?} is not between 10ms and the interval {:?}",
                self.window, self.interval
            ));
        }
        self.metrics.check()?;
        self.history.check()?;
        if self.memory.batch.0 == 0 {
            return Err("memory.batch is 0".to_owned());
        }
        Ok(())
    }
}

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It could not be read.
    #[error(
        "cannot read {path}: {source}; name another file with --config, or none for the defaults"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is not TOML, or has an unknown key or a value of the wrong type.
    #[error("{path}:{line}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A value is out of bounds.
    #[error("{path}: {message}")]
    Value {
        /// The file.
        path: PathBuf,
        /// Which value, and its bounds.
        message: String,
    },
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

fn policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PolicyName, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

pub(crate) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = expected::text(deserializer, "a duration such as \"60s\" or \"4ms\"")?;
    humantime::parse_duration(&text).map_err(|error| {
        serde::de::Error::custom(format!("`{text}` is no duration such as 60s or 4ms: {error}"))
    })
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let text = expected::text(deserializer, "a size such as \"64MiB\" or \"2GiB\"")?;
    let wrong = |why: &dyn std::fmt::Display| {
        serde::de::Error::custom(format!("`{text}` is no size such as 64MiB or 2GiB: {why}"))
    };
    text.parse().map_err(|error: SizeError| wrong(&error))
}

#[cfg(test)]
mod shipped;

#[cfg(test)]
mod tests {
    use super::*;
    use instep_host::discover::Owner;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("instep.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parse("").unwrap(), Config::default());
    }

    #[test]
    fn a_file_without_end_is_refused() {
        for path in ["/dev/zero", "/dev/urandom"] {
            let error = Config::load(Path::new(path)).unwrap_err().to_string();
            assert!(error.starts_with(path) && error.contains("1MiB"), "{error}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "#".repeat(1 << 20)).unwrap();
        assert_eq!(Config::load(file.path()).unwrap(), Config::default());
        std::fs::write(file.path(), [0xff; 4]).unwrap();
        let error = Config::load(file.path()).unwrap_err().to_string();
        assert!(error.contains("invalid utf-8"), "{error}");
    }

    #[test]
    fn user_whose_name_has_gone_takes_no_trust_from_others() {
        let mut config = parse("[discover]\nusers = [\"4321\"]\ncgroups = [\"/a\"]\n").unwrap();
        config.discover.users.push("no-such-user".to_owned());
        let counts = |uid, cgroup: &str| {
            let cgroups = vec![cgroup.to_owned()];
            let owner = Owner { uid: Some(uid), cgroups, ..Owner::default() };
            config.trust().refusal(&owner).is_none()
        };
        assert!(counts(4321, "/b") && counts(4322, "/a/b") && !counts(4322, "/b"));
    }

    #[test]
    fn values_carry_units() {
        let config = parse(
            "policy = \"bnn\"\ninterval = \"5m\"\nvms = [\"a\"]\n[memory]\nbatch = \"16MiB\"\n",
        )
        .unwrap();
        assert_eq!(config.policy, PolicyName::Bnn);
        assert_eq!(config.interval, Duration::from_secs(300));
        assert_eq!(config.memory.batch, Bytes::from_mib(16));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let error = parse("policy = \"bnn\"\nintervall = \"60s\"\n").unwrap_err();
        assert!(error.starts_with("instep.toml:2: unknown field `intervall`"), "{error}");
    }

    #[test]
    fn bad_values_say_what_would_be_good() {
        for (text, said) in [
            ("policy = \"best\"", "unknown policy `best`"),
            ("interval = \"60\"", "no duration such as 60s"),
            ("interval = \"10ms\"", "below 1s"),
            ("window = \"2m\"", "between 10ms"),
            ("interval = \"500000000000years\"", "is above 1day"),
            ("interval = \"25h\"", "interval 1day 1h is above 1day"),
            ("window = \"2days\"\ninterval = \"1day\"", "window 2days is above 1day"),
            ("[memory]\ntime_per_cycle = \"61m\"", "memory.time_per_cycle 1h 1m is above 1h"),
            ("[memory]\nbatch = \"fish\"", "no size such as 64MiB"),
            ("[memory]\nbatch = \"64\"", "`64` is no size such as 64MiB or 2GiB: it has no unit"),
            ("[memory]\nbatch = 64", "integer `64`, expected a size such as \"64MiB\""),
            ("interval = 60", "integer `60`, expected a duration such as \"60s\""),
            ("[memory]\nbatch = \"0B\"", "memory.batch is 0"),
            ("[history]\nsize = \"1MiB\"", "history.size 1MiB is below 16MiB; 0B keeps none"),
            ("[history]\ndir = \"here\"", "history.dir here does not begin with /"),
            ("[discover]\nusers = [\"no-such-user\"]", "discover.users: `no-such-user` is no user"),
            (
                "[discover]\ncgroups = [\"user.slice\"]",
                "discover.cgroups: `user.slice` is no cgroup",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
