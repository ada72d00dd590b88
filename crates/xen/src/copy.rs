//! A copy of what Instep reads of a Xen host, for `plan --root` on another machine.

use crate::error::Error;
use crate::source::{Query, Source};
use crate::text::node_memory;
use serde_json::{Value, json};
use std::fs::{self, DirBuilder, File};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Files of a copy, by their place below its root.
pub type CopiedFiles = Vec<(PathBuf, Vec<u8>)>;

/// Reads this host. With `memory`, where that of each domain lies, too. What a host cannot tell is left out, with a
/// warning; without its domains there is no copy.
///
/// # Errors
/// The host or its domains cannot be read.
pub fn take(source: &Source, memory: bool) -> Result<(CopiedFiles, Vec<String>), Error> {
    let mut files = CopiedFiles::new();
    let mut warnings = Vec::new();
    let scheduler = crate::text::info::parse(&source.read(Query::Info)?)?.scheduler;
    for query in Query::ALL {
        let is_other = match query {
            Query::Credit => scheduler != "credit",
            Query::Credit2 => scheduler != "credit2",
            Query::Log => !memory,
            _ => false,
        };
        if is_other {
            continue;
        }
        let output = match query {
            Query::Log => source.log_with_memory(),
            _ => source.read(query),
        };
        // The time that CPU times are of: others may take long.
        if query == Query::VcpuList
            && let Ok(uptime) = std::fs::read("/proc/uptime")
        {
            files.push((PathBuf::from("proc/uptime"), uptime));
        }
        match output {
            Ok(text) => {
                files.push((
                    PathBuf::from("xen").join(query.file()),
                    kept(query, text).into_bytes(),
                ));
            }
            Err(error) if matches!(query, Query::Info | Query::List | Query::VcpuList) => {
                return Err(error);
            }
            Err(error) => warnings.push(format!("left out of the copy: {error}")),
        }
    }
    Ok((files, warnings))
}

/// Writes each copy to the folder of its name in `dir`, which must be empty or not there. Files get mode 0600 and
/// folders 0700. Gives how many files there are.
///
/// # Errors
/// Something could not be written. What was written is removed then.
pub fn write(dir: &Path, copies: &[(&str, &CopiedFiles)]) -> Result<usize, Error> {
    let is_new = !dir.exists();
    let made = copies.iter().map(|(name, _)| dir.join(name));
    let written = copies.iter().try_fold(0, |count, (name, files)| {
        fill(&dir.join(name), files).map(|()| count + files.len())
    });
    if written.is_err() {
        // What is in the way of removing it was in the way of writing it.
        made.for_each(|folder| drop(fs::remove_dir_all(folder)));
        if is_new {
            let _ = fs::remove_dir(dir);
        }
    }
    written
}

fn fill(folder: &Path, files: &CopiedFiles) -> Result<(), Error> {
    for (place, bytes) in files {
        let path = folder.join(place);
        let failed = |source| Error::File { what: "write", path: path.clone(), source };
        let parent = path.parent().unwrap_or(folder);
        DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
        let mut options = File::options();
        let opened = options.write(true).create_new(true).mode(0o600).open(&path);
        opened.and_then(|mut file| file.write_all(bytes)).map_err(failed)?;
    }
    Ok(())
}

/// What of an output is kept. The log may hold anything, and configurations hold passwords.
fn kept(query: Query, text: String) -> String {
    match query {
        Query::Log => node_memory::table(&text).map(|line| format!("{line}\n")).collect(),
        Query::Configs => reduced(&text),
        _ => text,
    }
}

/// Configurations without all that Instep does not read.
fn reduced(text: &str) -> String {
    let all: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
    let entry = |entry: &Value| {
        let config = &entry["config"];
        let list = |name: &str| config["b_info"].get(name).cloned().unwrap_or_else(|| json!([]));
        json!({
            "domid": entry["domid"],
            "config": {
                "c_info": { "type": config["c_info"]["type"] },
                "b_info": { "avail_vcpus": list("avail_vcpus"), "vnuma_nodes": list("vnuma_nodes") },
            },
        })
    };
    Value::Array(all.iter().map(entry).collect()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_configurations_are_not_copied() {
        let text = r#"[{"domid": 3, "config": {"c_info": {"type": "pv", "name": "a"}, "vfbs":
            [{"vnc": {"passwd": "secret"}}], "b_info": {"avail_vcpus": [0, 1], "vnuma_nodes": [{"memkb": 4, "pnode": 1, "vcpus": [0]}]}}},
            {"domid": 4, "config": {"c_info": {"type": "hvm"}, "b_info": {}}}]"#;
        let kept = reduced(text);
        assert!(!kept.contains("secret"), "{kept}");
        let parsed = crate::text::config::parse;
        assert_eq!(parsed(&kept).unwrap(), parsed(text).unwrap());
        assert_eq!(parsed(&kept).unwrap().rows[&3].guest_nodes.len(), 1);
        assert_eq!(parsed(&kept).unwrap().rows[&3].available.len(), 2);
    }

    #[test]
    fn of_the_log_only_the_table_is_copied() {
        let log = "(XEN) cmdline: secret\n(XEN) Memory location of each domain:\n(XEN) Domain 0 (total: 5):\n\
                   (XEN)     Node 1: 5\n(XEN) cmdline: secret\n(d1) secret\n";
        let copy = kept(Query::Log, log.to_owned());
        assert!(!copy.contains("secret"), "{copy}");
        assert_eq!(node_memory::parse(&copy), node_memory::parse(log));
        assert_eq!(node_memory::parse(&copy)[&0].len(), 1);
        assert_eq!(kept(Query::Log, "(XEN) else".to_owned()), "");
    }
}
