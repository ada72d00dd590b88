//! Test programs of other crates that need two NUMA nodes, root, or a machine they may change: run
//! in an emulated host, so that they are not only skipped.

use crate::held::held;
use crate::stage::turn;
use instep_madehost::skip;
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

/// Those of `instep-host`.
const PROGRAMS: [&str; 2] = ["two_nodes", "changed_host"];

/// The newest test program of this name beside this one.
fn program(name: &str) -> Option<PathBuf> {
    let dir = std::env::current_exe().ok()?.parent()?.to_owned();
    let ours = |file: &str| {
        let hash = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
        hash.is_some_and(|hash| hash.chars().all(|c| c.is_ascii_hexdigit()))
    };
    let built = |path: &PathBuf| fs::metadata(path).and_then(|m| m.modified()).ok();
    let entries = fs::read_dir(dir).ok()?.flatten();
    entries
        .filter(|entry| ours(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .max_by_key(|path| built(path).unwrap_or(SystemTime::UNIX_EPOCH))
}

#[test]
fn tests_that_need_two_nodes_pass_in_an_emulated_host() {
    let _turn = turn();
    let found: Vec<PathBuf> = PROGRAMS.iter().filter_map(|name| program(name)).collect();
    if found.len() < PROGRAMS.len() {
        return skip::note("the tests of instep-host are not built: cargo test --workspace");
    }
    let mut text =
        String::from("about = 'tests inside'\n[host]\nnodes = 2\ncores = 1\nmemory = '1GiB'\n");
    let paths: Vec<String> = found.iter().map(|path| format!("'{}'", path.display())).collect();
    text.insert_str(0, &format!("programs = [{}]\n", paths.join(", ")));
    for path in &found {
        let name = path.file_name().unwrap().to_string_lossy();
        text.push_str(&format!(
            "[[step]]\nlimit = '300s'\nprints = ['test result: ok']\nrun = '''\n\
             for node in /sys/devices/system/node/node[01]; do\n\
             echo 16 >$node/hugepages/hugepages-2048kB/nr_hugepages\ndone\n\
             export INSTEP_TEST_CGROUP2=/sys/fs/cgroup INSTEP_SKIP_LOG=/tmp/skipped\n\
             {name} 2>&1; status=$?; cat /tmp/skipped 2>/dev/null; exit $status\n'''\n"
        ));
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("inside.toml");
    fs::write(&file, text).unwrap();
    let Some((report, _)) = held(&file, &[]) else { return };
    for step in report["steps"].as_array().unwrap() {
        let said = step["stdout"].as_str().unwrap_or_default();
        eprintln!("{said}");
        assert!(!said.contains("skipped:"), "{said}");
    }
}
