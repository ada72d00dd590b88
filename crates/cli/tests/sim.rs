//! `instep sim` with this very binary: results repeat to the byte, and bad input is answered with
//! file, line and reason.

#![cfg(test)]

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::instep;
use std::fs;
use std::path::{Path, PathBuf};

const GOOD: &str = r#"about = "two VMs"
scheduler = "cfs"
duration = "300ms"
[host]
cores = 2
memory = "4GiB"
[[guest]]
name = "a"
vcpus = 2
memory = "1GiB"
load = "instep-load barrier --phase 200us --imbalance 20%"
[[guest]]
name = "b"
vcpus = 2
memory = "1GiB"
load = "spin"
"#;

fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/sim")
}

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("it.toml");
    fs::write(&path, text).unwrap();
    (dir, path)
}

#[test]
fn a_seed_gives_the_same_bytes_and_another_seed_others() {
    let (_dir, path) = file(GOOD);
    let run = |seed: &str| instep(&["sim", path.to_str().unwrap(), "--json", "--seed", seed]);
    let (a, b, c) = (run("7"), run("7"), run("8"));
    assert_eq!(a.code, Some(0), "{}", a.stderr);
    assert_eq!(a.stdout, b.stdout);
    assert_ne!(a.stdout, c.stdout);
    let json: serde_json::Value = serde_json::from_str(&a.stdout).unwrap();
    assert_eq!(json["schema"], "instep.sim/1");
    assert_eq!(
        (&json["scenario"], &json["version"]),
        (&"it".into(), &env!("CARGO_PKG_VERSION").into())
    );
    let version = instep(&["--version"]).stdout;
    assert!(version.contains(json["commit"].as_str().unwrap()), "{version}");
    assert_eq!((json["seed"].as_u64(), json["duration_ns"].as_u64()), (Some(7), Some(300_000_000)));
    for measure in [
        "name",
        "throughput",
        "fair_share_speed",
        "stacking",
        "co_run",
        "competing_modules",
        "locality",
        "local_access",
    ] {
        assert!(!json["vms"][0][measure].is_null(), "{measure}");
    }
    let vm = &json["vms"][0];
    let each = vm["waits_by_vcpu"].as_array().unwrap().iter();
    let each: Vec<u64> = each.map(|waits| waits["sibling_ns"].as_u64().unwrap()).collect();
    assert_eq!(each.len(), 2);
    assert_eq!(Some(each.iter().sum()), vm["waits"]["sibling_ns"].as_u64());
    assert!(each.iter().all(|ns| *ns > 0), "{each:?}");
}

#[test]
fn built_in_scenario_gives_what_its_file_gives() {
    let run = |scenario: &str, how: &[&str]| {
        let ran = instep(&[&["sim", scenario, "--json"], how].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stdout
    };
    let file = scenarios().join("spinning.toml");
    for how in [&["--seeds", "2"][..], &["--check"], &["--sweep", "scheduler=cfs,credit"]] {
        let built_in = run("spinning", how);
        assert_eq!(built_in, run(file.to_str().unwrap(), how));
        assert!(built_in.contains(r#""scenario": "spinning""#), "{built_in}");
    }
}

#[test]
fn tuning_of_another_scheduler_is_reported_as_left_out() {
    let (_dir, path) = file(&GOOD.replace("[host]", "tuning = { latency = \"1ms\" }\n[host]"));
    let path = path.to_str().unwrap();
    let run = |more: &[&str]| instep(&[&["sim", path, "--json"], more].concat());
    let (tuned, same, other) =
        (run(&[]), run(&["--scheduler", "cfs"]), run(&["--scheduler", "credit"]));
    assert_eq!((tuned.stdout, tuned.stderr), (same.stdout, same.stderr));
    assert!(other.stderr.contains("tuning (latency)"), "{}", other.stderr);
    assert_eq!(other.code, Some(0));
}

#[test]
fn every_scheduler_runs_the_same_scenario() {
    let (_dir, path) = file(GOOD);
    for name in instep_sim::sched::NAMES {
        let ran = instep(&["sim", path.to_str().unwrap(), "--scheduler", name]);
        assert_eq!(ran.code, Some(0), "{name}: {}", ran.stderr);
        assert!(ran.stdout.starts_with(name), "{}", ran.stdout);
    }
}

#[test]
fn swarm_repeats_to_byte_and_a_sound_schedule_passes_its_check() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    let (dir, path) = file(GOOD);
    let args = ["sim", "--swarm", "6", "--seed", "3", "--scheduler", "balance"];
    let (one, two) = (instep(&args), instep(&args));
    assert_eq!(one.code, Some(0), "{}{}", one.stdout, one.stderr);
    assert!(one.stdout.starts_with("seed 3: 6 runs"), "{}", one.stdout);
    assert_eq!(one.stdout, two.stdout);
    let checked = instep(&["sim", path.to_str().unwrap(), "--check"]);
    assert_eq!((checked.code, checked.stdout.ends_with("no finding\n")), (Some(0), true));
    let bad = instep(&["sim", "--swarm", "1", "--scheduler", "best"]);
    assert_eq!(bad.code, Some(2));
    assert!(bad.stderr.contains("known are"), "{}", bad.stderr);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is written");
}

#[test]
fn swarm_that_cannot_write_its_finding_is_refused_before_it_runs() {
    let args = ["sim", "--swarm", "2", "--scheduler", "balance", "--out"];
    let ran = instep(&[&args[..], &["/nowhere/small.toml"]].concat());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("cannot write /nowhere/small.toml: No such"), "{}", ran.stderr);
    assert!(!ran.stderr.contains(".tmp"), "{}", ran.stderr);
    // Without a finding a file that is there stays what it is.
    let (dir, path) = file(GOOD);
    let ran = instep(&[&args[..], &[path.to_str().unwrap()]].concat());
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert_eq!(fs::read_to_string(&path).unwrap(), GOOD);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left");
}

#[test]
fn the_projects_scenarios_are_scenarios() {
    let mut found = 0;
    for entry in fs::read_dir(scenarios()).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        // Shortened, without guests that come or go at a time of the whole: a debug build is slow.
        let is_time = |line: &str| line.starts_with("from =") || line.starts_with("until =");
        let short: String = text
            .lines()
            .filter(|line| !is_time(line))
            .map(|line| if line.starts_with("duration") { "duration = \"20ms\"" } else { line })
            .flat_map(|line| [line, "\n"])
            .collect();
        let (_dir, path) = file(&short);
        let ran = instep(&["sim", path.to_str().unwrap(), "--json"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        found += 1;
    }
    assert!(found > 2);
}

#[test]
fn bad_input_is_answered_with_file_line_and_reason() {
    let cases = [
        ("cores = 2", "cores = 2\nspeed = 3", 6, "speed"),
        ("cores = 2", "cores = 0", 4, "0 CPUs"),
        ("cores = 2", "cores = 2\nnodes = 3\nsockets = 2", 4, "cannot be spread"),
        ("cores = 2", "cores = 2\nnodes = 2\ndistances = [[10]]", 4, "2 rows of 2"),
        ("cores = 2", "cores = 2\nmachine = \"abacus\"", 4, "known are generic"),
        ("cores = 2", "cores = 2\ntopology = \"t.json\"", 4, "not from both"),
        ("vcpus = 2", "vcpus = 0", 9, "0 vCPUs"),
        ("\"1GiB\"", "\"8GiB\"", 10, "the host"),
        ("\"1GiB\"", "\"1\"", 10, "no size"),
        ("name = \"b\"", "name = \"a\"", 12, "used twice"),
        ("load = \"spin\"", "load = \"make\"", 16, "known are spin"),
        ("load = \"spin\"", "weight = 0", 16, "1 to 10000"),
        ("load = \"spin\"", "allowed = \"9\"", 16, "no CPU 9"),
        ("load = \"spin\"", "prefer_nodes = [4]", 16, "no node 4"),
        ("load = \"spin\"", "home_node = 4", 16, "no node 4"),
        ("load = \"spin\"", "parts = [1]", 16, "2 numbers"),
        ("load = \"spin\"", "cosched = \"gang\"", 16, "cosched: `gang` is none of auto"),
        ("load = \"spin\"", "latency = \"low\"", 16, "latency: `low` is none of normal"),
        ("load = \"spin\"", "period = \"2s\"", 16, "not between 1ms and 1s"),
        ("load = \"spin\"", "weights = 5", 16, "unknown field `weights`"),
        ("load = \"spin\"", "profile = \"odd\"", 16, "known are plain"),
        ("load = \"spin\"", "profile = { memory = 900, l3 = 1 }", 16, "unknown field `l3`"),
        ("load = \"spin\"", "profile = { memory = 900, llc = 200 }", 16, "1000 in all"),
        ("load = \"spin\"", "load = \"stream\"", 16, "no program"),
        ("load = \"spin\"", "start = { memory_node = 7 }", 16, "no node 7"),
        ("load = \"spin\"", "start = { cpus = [[0], [1]] }", 16, "pinned"),
        (
            "load = \"spin\"",
            "[[guest.stage]]\nname = \"x\"\nwork = \"1ms\"\nfrom = [\"x\"]",
            16,
            "cyclic",
        ),
        ("\"cfs\"", "\"best\"", 2, "known are credit"),
        ("\"cfs\"", "\"cfs\"\ntuning = { period = \"1ms\" }", 2, "known are: latency"),
        ("\"300ms\"", "\"300\"", 3, "duration = \"300\": durations look like"),
        ("\"300ms\"", "\"300ms\"\nwarmup = \"1\"", 4, "warmup = \"1\": durations look like"),
        ("name = \"b\"", "name = \"\"", 12, "guest \"\": a name has"),
        ("\"300ms\"", "\"0s\"", 3, "duration"),
        ("\"300ms\"", "\"1000000h\"", 3, "up to 100000s"),
        ("\"cfs\"", "\"cfs\"\ntuning = { tick = \"0s\" }", 3, "tick = 0ns: it is 100us at least"),
        ("\"cfs\"", "\"cfs\"\ntuning = { tick = \"4\" }", 3, "durations look like"),
        ("cores = 2", "cores = 2\ndistance = 0", 4, "distance 0 between nodes"),
        ("load = \"spin\"", "load = []", 16, "an empty list"),
        ("\"1GiB\"", "\"99999999999999999999GiB\"", 10, "more than 1EiB"),
        ("\"1GiB\"", "\"100GiB\"", 10, "have 100GiB, the host 4GiB"),
        (
            "cores = 2\nmemory = \"4GiB\"\n[[guest]]\nname = \"a\"\nvcpus = 2\nmemory = \"1GiB\"",
            "cores = 1\nnodes = 2\nmemory = \"8GiB\"\n[[guest]]\nname = \"a\"\nvcpus = 2\nmemory = \"7GiB\"\n\
             start = { memory_node = 0 }",
            12,
            "node 0 has 4GiB, it 7GiB",
        ),
        (
            "cores = 2\nmemory = \"4GiB\"\n[[guest]]\nname = \"a\"\nvcpus = 2\nmemory = \"1GiB\"",
            "cores = 1\nnodes = 2\nmemory = \"8GiB\"\n[[guest]]\nname = \"z\"\nvcpus = 2\nmemory = \"3GiB\"\n\
             start = { memory_node = 0 }\n[[guest]]\nname = \"a\"\nvcpus = 2\nmemory = \"2GiB\"\n\
             start = { memory_node = 0 }",
            17,
            "guest a: start.memory_node: node 0 has 4GiB, guests before it 3GiB of them, it 2GiB",
        ),
        (
            "cores = 2\nmemory = \"4GiB\"\n[[guest]]\nname = \"a\"\nvcpus = 2\nmemory = \"1GiB\"",
            "cores = 1\nnodes = 2\nmemory = \"8GiB\"\n[[guest]]\nname = \"a\"\nvcpus = 2\nmemory = \"2GiB\"\n\
             count = 3\nstart = { memory_node = 0 }",
            13,
            "node 0 has 4GiB, it 3 times 2GiB",
        ),
        ("[host]", "[host", 4, ""),
    ];
    for (from, to, line, reason) in cases {
        let (_dir, path) = file(&GOOD.replacen(from, to, 1));
        let shown = path.to_str().unwrap();
        let ran = instep(&["sim", shown, "--json"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{to}: {}", ran.stderr);
        let place = if line == 0 { format!("{shown}: ") } else { format!("{shown}:{line}: ") };
        assert!(ran.stderr.contains(&place), "{to}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{to}: {}", ran.stderr);
    }
}

#[test]
fn description_and_memory_may_be_left_out() {
    let (_dir, path) =
        file(&GOOD.replace("about = \"two VMs\"", "").replace("[host]", "[host]\nx = 1"));
    let ran = instep(&["sim", path.to_str().unwrap()]);
    assert!(ran.stderr.contains(":5: ") && ran.stderr.contains("`x`"), "{}", ran.stderr);
    for left_out in ["about = \"two VMs\"\n", "memory = \"4GiB\"\n", "memory = \"1GiB\"\n"] {
        let (_dir, path) = file(&GOOD.replace(left_out, ""));
        let ran = instep(&["sim", path.to_str().unwrap()]);
        assert_eq!(ran.code, Some(0), "{left_out}: {}", ran.stderr);
    }
}

#[test]
fn impossible_host_is_refused_with_file_and_reason() {
    let shape = "cores = 2\nmemory = \"4GiB\"";
    let (dir, path) = file(&GOOD.replacen(shape, "topology = \"t.json\"", 1));
    let text = r#"{"schema":"instep.topology/1",
        "cpus":[{"id":0,"core":0,"llc":0,"package":0,"node":0},
                {"id":0,"core":1,"llc":0,"package":0,"node":77}],
        "nodes":[{"id":0,"memory_bytes":8589934592,"cpus":[0],"distances":[10]}]}"#;
    fs::write(dir.path().join("t.json"), text).unwrap();
    let ran = instep(&["sim", path.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{}", ran.stderr);
    for said in ["it.toml:4: ", "t.json: ", "described twice", "of node 77"] {
        assert!(ran.stderr.contains(said), "{said}: {}", ran.stderr);
    }
}

#[test]
fn files_that_are_read_or_written_are_not_written_over() {
    let (dir, path) = file(GOOD);
    let (shown, page) = (path.to_str().unwrap(), dir.path().join("p.html"));
    let page = page.to_str().unwrap();
    let link = dir.path().join("link.toml");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for args in [
        ["--perfetto", shown, "--html", page],
        ["--html", link.to_str().unwrap(), "--parquet", page],
        ["--html", page, "--parquet", page],
    ] {
        let ran = instep(&[&["sim", shown], &args[..]].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{}", ran.stderr);
        assert!(ran.stderr.contains("which is named, too"), "{}", ran.stderr);
        assert_eq!(fs::read_to_string(&path).unwrap(), GOOD);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is written");
    }
}

#[test]
fn the_file_of_a_scenarios_host_is_not_written_over() {
    let shape = "cores = 2\nmemory = \"4GiB\"";
    let (dir, path) = file(&GOOD.replacen(shape, "topology = \"t.json\"", 1));
    let host = dir.path().join("t.json");
    let text = r#"{"schema":"instep.topology/1",
        "cpus":[{"id":0,"core":0,"llc":0,"package":0,"node":0},
                {"id":1,"core":1,"llc":0,"package":0,"node":0}],
        "nodes":[{"id":0,"memory_bytes":8589934592,"cpus":[0,1],"distances":[10]}]}"#;
    fs::write(&host, text).unwrap();
    let (shown, host) = (path.to_str().unwrap(), host.to_str().unwrap());
    let ran = instep(&["sim", shown, "--html", host]).expect(2);
    ran.says(&["cannot write ", "t.json, which is named, too"]);
    assert_eq!(fs::read_to_string(host).unwrap(), text);
    instep(&["sim", shown, "--check"]).expect(0);
}

#[test]
fn a_check_and_a_swarm_tell_their_result_in_json() {
    let (_dir, path) = file(GOOD);
    let json = instep(&["sim", path.to_str().unwrap(), "--check", "--json"]).expect(0).json();
    assert_eq!(
        (&json["schema"], &json["finding"]),
        (&"instep.sim.check/1".into(), &serde_json::Value::Null)
    );
    assert_eq!((&json["scheduler"], &json["seed"]), (&"cfs".into(), &1.into()));
    assert!(json["events"].as_u64() > Some(100) && json["simulated_ns"].as_u64() > Some(1));
    assert!(json["finding"].is_null(), "{json}");
    let args = ["sim", "--swarm", "2", "--seed", "3", "--scheduler", "balance", "--json"];
    let json = instep(&args).expect(0).json();
    assert_eq!((&json["schema"], &json["runs"]), (&"instep.swarm/1".into(), &2.into()));
    assert_eq!(json["seed"], 3);
    assert!(json["events"].as_u64() > Some(1) && json["simulated_ns"].as_u64() > Some(1));
    assert!(json["scenario"].is_null() && json["findings"] == serde_json::json!([]), "{json}");
}

#[test]
fn what_is_no_scenario_is_reported_with_the_next_step() {
    let guests = GOOD.find("[[guest]]").unwrap();
    let (dir, path) = file(&GOOD[..guests]);
    let shown = path.to_str().unwrap();
    instep(&["sim", shown]).expect(2).says(&["there is no guest: add a [[guest]]", "load"]);
    fs::write(&path, b"about = \"\xff\"\n").unwrap();
    instep(&["sim", shown]).expect(2).says(&["it.toml: it is no text in UTF-8", "another file"]);
    let trace = dir.path().join("host.instep");
    fs::write(&trace, [&instep_trace::rec::MAGIC[..], &[0xff; 2 << 20]].concat()).unwrap();
    let trace = trace.to_str().unwrap();
    instep(&["sim", trace]).expect(2).says(&[&format!("a recording: instep analyze {trace}")]);
}

#[test]
fn seeds_beyond_the_last_are_refused() {
    let (_dir, path) = file(GOOD);
    let last = u64::MAX.to_string();
    let run = |seeds| instep(&["sim", path.to_str().unwrap(), "--seed", &last, "--seeds", seeds]);
    run("3").expect(2).says(&["--seed and --seeds go beyond 2^64"]);
    run("1").expect(0);
}

#[test]
fn without_a_scenario_the_swarm_is_named() {
    let ran = instep(&["sim"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("--swarm RUNS"), "{}", ran.stderr);
}

#[test]
fn file_that_is_not_there_is_named_with_what_is_built_in() {
    let ran = instep(&["sim", "nowhere.toml"]);
    assert_eq!(ran.code, Some(2));
    for word in ["nowhere.toml", "built in are ", "consolidated, "] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
}

#[test]
fn tables_keep_to_80_columns_and_have_every_vm() {
    let long = GOOD.replace("name = \"a\"", "name = \"a-very-long-name-of-a-virtual-machine\"");
    let (_dir, path) = file(&long);
    for seeds in ["1", "3"] {
        let ran = instep(&["sim", path.to_str().unwrap(), "--seeds", seeds]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let widest = ran.stdout.lines().map(|line| line.chars().count()).max();
        assert!(widest.unwrap() <= 80, "{}", ran.stdout);
        let of = |name| ran.stdout.lines().any(|line| line.starts_with(name));
        assert!(of("a-very-long-n~ ") && of("b "), "{}", ran.stdout);
    }
}

#[test]
fn files_are_whole_and_named_and_several_seeds_are_a_list() {
    let (dir, path) = file(GOOD);
    let to = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (html, trace, rows) = (to("p.html"), to("t.pftrace"), to("r.parquet"));
    let shown = path.to_str().unwrap();
    let drawn = ["--html", &html, "--perfetto", &trace, "--parquet", &rows];
    let ran = instep(&[&["sim", shown, "--json", "--seeds", "2"], &drawn[..]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let one = instep(&["sim", shown, "--json", "--seeds", "1"]);
    let one: serde_json::Value = serde_json::from_str(&one.stdout).unwrap();
    assert_eq!(one.as_array().map(Vec::len), Some(1), "one seed, too");
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let seeds: Vec<_> = json.as_array().unwrap().iter().map(|run| run["seed"].as_u64()).collect();
    assert_eq!(seeds, [Some(1), Some(2)]);
    let page = fs::read_to_string(&html).unwrap();
    assert!(page.contains("\"name\":\"a 1\"") && !page.contains("/*DATA*/"));
    let trace = fs::read(&trace).unwrap();
    let has = |word: &[u8]| trace.windows(word.len()).any(|part| part == word);
    assert!(has(b"vCPU 1 (3)") && has(b"runs on CPU 1") && has(b"waits for CPU 0"));
    let rows = fs::read(&rows).unwrap();
    assert!(rows.starts_with(b"PAR1") && rows.ends_with(b"PAR1"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4, "nothing else is left");
}

#[test]
fn nothing_is_written_where_nothing_is_simulated() {
    let (dir, path) = file(&GOOD.replace("vcpus = 2", "vcpus = 0"));
    let to = dir.path().join("p.html");
    let (shown, to) = (path.to_str().unwrap(), to.to_str().unwrap());
    let ran = instep(&["sim", shown, "--html", to]);
    assert_eq!((ran.code, fs::read_dir(dir.path()).unwrap().count()), (Some(2), 1));
    let ran = instep(&["sim", shown, "--out", to]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{}", ran.stderr);
    let (_dir, path) = file(GOOD);
    let ran = instep(&["sim", path.to_str().unwrap(), "--html", "/nowhere/p.html"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("cannot write /nowhere/p.html: No such file"), "{}", ran.stderr);
    assert!(!ran.stderr.contains(".tmp"), "{}", ran.stderr);
}

#[test]
fn files_repeat_to_the_byte_on_any_number_of_threads() {
    let (dir, path) = file(GOOD);
    let run = |name: &str, threads: &str| {
        let to = |end: &str| dir.path().join(format!("{name}.{end}")).to_str().unwrap().to_owned();
        let (html, trace, rows) = (to("html"), to("pftrace"), to("parquet"));
        let mut command = common::binary(env!("CARGO_BIN_EXE_instep"));
        command.env("RAYON_NUM_THREADS", threads);
        command.args(["sim", path.to_str().unwrap(), "--json", "--seeds", "3", "--html", &html]);
        command.args(["--perfetto", &trace, "--parquet", &rows]);
        let ran = common::Started::new(&mut command).end();
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        (ran.stdout, [html, trace, rows].map(|file| fs::read(file).unwrap()))
    };
    assert!(run("one", "1") == run("two", "2"), "the bytes differ");
}

#[test]
fn a_file_without_end_is_refused() {
    let ran = instep(&["sim", "/dev/zero"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("/dev/zero: it is larger than 1 MiB"), "{}", ran.stderr);
}

#[test]
fn an_interrupt_leaves_what_was_finished() {
    let (dir, path) = file(&GOOD.replace("300ms", "3s"));
    let rows = dir.path().join("r.parquet");
    let shown = [path.to_str().unwrap(), rows.to_str().unwrap()];
    let many = ["sim", shown[0], "--seeds", "5000", "--json", "--parquet", shown[1]];
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_instep"))
        .args(many)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    // A busy machine gives little time: what counts is what it had, in ticks of 10 ms.
    let had = || -> u64 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
        fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    };
    let began = std::time::Instant::now();
    while had() < 100 && began.elapsed().as_secs() < 300 {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("interrupted: the results are those of the runs"), "{told}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // A list, however few were finished.
    let runs = json.as_array().unwrap().len();
    assert!((1..5000).contains(&runs), "{runs}");
    assert!(rows.exists());
}

/// The lines of a CSV file without quotes, cell by cell.
fn cells(path: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

#[test]
fn sweep_has_every_combination_and_equals_single_runs() {
    let (dir, path) = file(GOOD);
    let (out, path) = (dir.path().join("out.csv"), path.to_str().unwrap());
    let page = dir.path().join("page.html");
    let sweep =
        ["--sweep", "guest.a.weight=100,50", "--sweep", "scheduler=cfs,eevdf", "--seeds", "2"];
    let files = ["--csv", out.to_str().unwrap(), "--html", page.to_str().unwrap()];
    let args = [&["sim", path], &sweep[..], &files].concat();
    let ran = instep(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    // Two weights, two schedulers and two VMs.
    assert_eq!(ran.stdout.lines().count(), 1 + 8, "{}", ran.stdout);
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 80), "{}", ran.stdout);
    let rows = cells(&out);
    assert_eq!(rows.len(), 1 + 16);
    let column = |name: &str| rows[0].iter().position(|other| other == name).unwrap();
    let (weight, scheduler, throughput) =
        (column("guest.a.weight"), column("scheduler"), column("throughput"));
    assert_eq!(rows[0].iter().filter(|name| *name == "scheduler").count(), 1);
    // The same as CSV of a scenario in which the value is written down: seed 2 of weight 50 under EEVDF.
    let (single_dir, single) = file(&GOOD.replacen("vcpus = 2", "vcpus = 2\nweight = 50", 1));
    let alone = single_dir.path().join("alone.csv");
    let args = ["sim", single.to_str().unwrap(), "--scheduler", "eevdf", "--seed", "2", "--csv"];
    let ran = instep(&[&args[..], &[alone.to_str().unwrap()]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let wanted = cells(&alone);
    let is = |row: &&Vec<String>| {
        row[weight] == "50" && row[scheduler] == "eevdf" && row[column("seed")] == "2"
    };
    let found: Vec<Vec<String>> = rows.iter().filter(is).map(|row| row[1..].to_vec()).collect();
    assert_eq!(found, wanted[1..]);
    assert_ne!(rows[1][throughput], rows[9][throughput], "another weight gives another result");
    // A plot for each of four measures, in it a line for both VMs under either scheduler, with both weights.
    let page = fs::read_to_string(page).unwrap();
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("<polyline")).collect();
    assert_eq!((page.matches("<svg ").count(), lines.len()), (4, 16));
    assert!(lines.iter().all(|line| line.matches(',').count() == 2), "{page}");
    assert!(page.contains("a, scheduler eevdf"), "{page}");
    let json = instep(&[&["sim", path], &sweep[..], &["--json"]].concat()).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["schema"], json["points"].as_array().unwrap().len()),
        (&"instep.sweep/1".into(), 4)
    );
    assert_eq!(json["points"][3]["values"], serde_json::json!(["50", "eevdf"]));
    assert_eq!(json["points"][3]["runs"][1]["seed"], 2);
}

#[test]
fn a_sweep_that_cannot_be_is_refused_before_anything_runs() {
    let (dir, path) = file(GOOD);
    let path = path.to_str().unwrap();
    for (args, said) in [
        (vec!["--sweep", "weight=1"], "there are 2 guests: guest.a.weight, guest.b.weight"),
        (vec!["--sweep", "guest.a.weight=1,0"], "--sweep guest.a.weight=0: "),
        (vec!["--sweep", "scheduler=cfs", "--scheduler", "cfs"], "it is given by --scheduler, too"),
        (
            vec!["--sweep", "host.cores=2", "--csv", "/no/such/dir/x.csv"],
            "cannot write /no/such/dir/x.csv",
        ),
        (vec!["--sweep", "host.cores=2", "--csv", path], "which is named, too"),
        (vec!["--sweep", "host.cores"], "PLACE=VALUE"),
        (vec!["--sweep", "host.cores=2", "--perfetto", "x"], "cannot be used with"),
    ] {
        let ran = instep(&[&["sim", path], &args[..]].concat());
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(said), "{args:?}: {}", ran.stderr);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left");
}
