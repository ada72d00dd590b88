//! DAMON's files in a made tree. That the kernel does with them what it should is shown in the lab
//! (scenarios/lab/hot-first.toml).

use super::*;
use crate::apply::instance::InstanceLife;
use crate::apply::testing::Sleeper;
use std::fs;

/// A tree with these files of the monitors, and a state directory.
fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Damon) {
    let dir = instep_madehost::scratch_dir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(KDAMONDS).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::create_dir(dir.path().join("state")).unwrap();
    let state = StateDir::at(dir.path().join("state"));
    let damon = Damon::new(Root::at(dir.path()), state);
    (dir, damon)
}

fn text(dir: &tempfile::TempDir, name: &str) -> String {
    fs::read_to_string(dir.path().join(KDAMONDS).join(name)).unwrap().trim().to_owned()
}

const TARGET: &str = "0/contexts/0/targets/0/pid_target";

#[test]
fn kernel_without_damon_is_reported_with_what_has_it() {
    let (_dir, damon) = host(&[]);
    let said = damon.watch(7, 1).unwrap_err().to_string();
    assert!(said.contains("has no DAMON") && said.contains("CONFIG_DAMON_SYSFS"), "{said}");
    assert_eq!(is_recorded(&damon.state).unwrap(), None);
}

#[test]
fn somebody_elses_monitors_are_left_alone_and_reported() {
    let (dir, damon) = host(&[("nr_kdamonds", "2\n")]);
    let said = damon.watch(7, 1).unwrap_err().to_string();
    assert!(
        said.contains("another program uses DAMON") && said.contains("nr_kdamonds is 2"),
        "{said}"
    );
    assert_eq!(
        (text(&dir, "nr_kdamonds").as_str(), is_recorded(&damon.state).unwrap()),
        ("2", None)
    );
}

#[test]
fn kernels_own_user_is_named_with_what_makes_room() {
    let (dir, damon) = host(&[]);
    let said = || Files::of(&damon.root).busy().to_string();
    assert_eq!(said(), "the kernel uses DAMON for itself; Instep leaves that alone");
    for (module, text) in [("damon_stat", "N\n"), ("damon_reclaim", "Y\n")] {
        let parameters = dir.path().join("sys/module").join(module).join("parameters");
        fs::create_dir_all(&parameters).unwrap();
        fs::write(parameters.join("enabled"), text).unwrap();
    }
    assert!(said().contains("(damon_reclaim)"), "{}", said());
    assert!(
        said().contains("`echo N > /sys/module/damon_reclaim/parameters/enabled`"),
        "{}",
        said()
    );
}

#[test]
fn monitor_that_cannot_be_finished_is_removed_with_its_record() {
    let one = [("nr_kdamonds", "0\n"), ("0/state", "off\n"), ("0/contexts/nr_contexts", "0\n")];
    let (dir, damon) = host(&[&one[..], &[("0/contexts/0/avail_operations", "paddr\n")]].concat());
    let said = damon.watch(7, 1).unwrap_err().to_string();
    assert!(said.contains("CONFIG_DAMON_VADDR"), "{said}");
    assert_eq!(
        (text(&dir, "nr_kdamonds").as_str(), is_recorded(&damon.state).unwrap()),
        ("0", None)
    );
}

#[test]
fn only_the_monitor_that_was_recorded_is_removed() {
    let left = |files: &[(&str, &str)]| {
        let (dir, damon) = host(files);
        Record::of(4711).unwrap().write(&damon.state).unwrap();
        assert_eq!(
            is_recorded(&damon.state).unwrap(),
            Some((crate::apply::journal::this_instance().unwrap(), InstanceLife::Runs))
        );
        let undone = undo(&damon.root, &damon.state).unwrap().unwrap();
        assert_eq!(undo(&damon.root, &damon.state).unwrap(), None, "twice does nothing more");
        (undone, text(&dir, "nr_kdamonds"))
    };
    let removed = (Undone::Removed { target: 4711 }, "0".to_owned());
    assert_eq!(left(&[("nr_kdamonds", "1\n"), ("0/state", "on\n"), (TARGET, "4711\n")]), removed);
    assert_eq!(left(&[("nr_kdamonds", "1\n"), ("0/state", "off\n"), (TARGET, "4711\n")]), removed);
    assert_eq!(left(&[("nr_kdamonds", "1\n"), ("0/state", "off\n")]), removed, "not finished");
    let (_dir, none) = host(&[]);
    Record::of(4711).unwrap().write(&none.state).unwrap();
    assert_eq!(undo(&none.root, &none.state).unwrap(), Some(Undone::Gone), "no DAMON");
    assert_eq!(left(&[("nr_kdamonds", "0\n")]), (Undone::Gone, "0".to_owned()));
    let others = |count: &str| (Undone::Others, count.to_owned());
    assert_eq!(left(&[("nr_kdamonds", "2\n"), (TARGET, "4711\n")]), others("2"));
    let other = [("nr_kdamonds", "1\n"), ("0/state", "on\n"), (TARGET, "12\n")];
    assert_eq!(left(&other), others("1"));
    assert_eq!(left(&[("nr_kdamonds", "1\n"), ("0/state", "on\n")]), others("1"), "of all memory");
}

#[test]
fn damaged_record_is_reported_with_what_to_do() {
    let (dir, damon) = host(&[("nr_kdamonds", "1\n")]);
    fs::write(dir.path().join("state/damon.json"), "{").unwrap();
    let said = undo(&damon.root, &damon.state).unwrap_err().to_string();
    assert!(said.contains("damon.json is damaged") && said.contains("remove it"), "{said}");
}

#[test]
fn regions_of_the_kernel_are_read_with_their_accesses() {
    let regions = "0/contexts/0/schemes/0/tried_regions";
    let names: Vec<String> = ["start", "end", "nr_accesses"]
        .iter()
        .flat_map(|name| [0, 1].map(|number| format!("{regions}/{number}/{name}")))
        .collect();
    let values = ["8192\n", "0\n", "12288\n", "4096\n", "20\n", "0\n"];
    let mut files: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(values).collect();
    files.extend([("nr_kdamonds", "1\n"), ("0/state", "on\n")]);
    let (dir, damon) = host(&files);
    let Damon { root, state } = damon;
    let watch = HeatMonitor { files: Files::of(&root), root, state };
    let shown: Vec<_> =
        watch.regions().unwrap().iter().map(|r| (r.start, r.end, r.accesses)).collect();
    assert_eq!(shown, [(0, 4096, 0), (8192, 12288, 20)]);
    assert_eq!(text(&dir, "0/state"), "update_schemes_tried_regions");
    fs::write(dir.path().join(KDAMONDS).join(&names[0]), "fish\n").unwrap();
    let said = watch.regions().unwrap_err().to_string();
    assert!(said.contains("tried_regions: `fish 12288 20` is not"), "{said}");
}

/// The running kernel's own: it watches a process, or says why not, and either way nothing stays.
#[test]
fn running_kernel_watches_a_process_or_says_why_not() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let damon = Damon::new(Root::live(), StateDir::at(dir.path()));
    let (sleeper, monitors) = (Sleeper::start(), || Files::of(&Root::live()).monitors().ok());
    let (key, before) = (sleeper.key(), monitors());
    match damon.watch(key.pid, key.pid_start) {
        Ok(watch) => assert!(!watch.regions().unwrap().is_empty()),
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains("DAMON"), "{said}");
            instep_madehost::skip::note(&said);
        }
    }
    assert_eq!((monitors(), is_recorded(&damon.state).unwrap()), (before, None));
}
