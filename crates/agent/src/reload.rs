//! What SIGHUP asks a run for.

use crate::config::{Config, ConfigError};
use crate::sink::Sink;

/// Reads the configuration again.
pub type Reload<'a> = &'a mut dyn FnMut() -> Result<Config, ConfigError>;

/// What SIGHUP asks for: the log is opened again, and the configuration, where it can be had, read again.
pub(crate) fn read_again(reload: &mut Option<Reload<'_>>, sink: &mut dyn Sink) -> Option<Config> {
    let has_log = sink.reopen();
    let Some(reload) = reload else {
        if !has_log {
            sink.notice(
                "SIGHUP changes nothing: this run has neither a log to open again nor a \
                 configuration file to read again; start `instep run` with --log FILE or --config \
                 FILE",
            );
        }
        return None;
    };
    match reload() {
        Ok(config) => {
            sink.notice("the configuration was read again");
            Some(config)
        }
        Err(error) => {
            let old = "the old one stays in force";
            sink.notice(&format!("cannot read the configuration again: {error}; {old}"));
            None
        }
    }
}
