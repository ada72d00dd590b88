//! `instep-lab bench-cells`: runs one block of cells where it is, and prints each as a JSON line. The
//! other side of [`super::emulated`].

use crate::args::BenchCellsArgs;
use crate::{Outcome, print};
use anyhow::Context as _;
use instep_bench::here::{self, Tools};
use instep_bench::plan::{Block, DEFAULT};
use instep_cli::programs;
use instep_lab::Stop;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where it keeps its files; gone with the machine.
const DIR: &str = "/run/instep-bench";

/// What it is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// The cells.
    pub(super) block: Block,
    /// Programs that load a scheduler, by its name.
    pub(super) peers: BTreeMap<String, PathBuf>,
    /// Which boot this is.
    pub(super) boot: u32,
}

/// The next thing that a block says: a line. Waiting costs the host nothing.
pub(super) const NEXT: &str = "read -r line </run/instep-bench/cells && printf '%s\\n' \"$line\"";
/// Ends what [`begin`] left behind; what the block said on standard error.
pub(super) const END: &str =
    "read -r pid </run/instep-bench/teller; kill $pid; tail -c 4000 /run/instep-bench/said";
/// The word before a block's exit status.
const ENDED: &str = "ended ";

/// The script that begins a block, which goes on by itself: its cells, and at last its exit status, come
/// through a pipe of a name, which is kept open until [`END`], or for as long as the block may take.
pub(super) fn begin(order: &Order, limit: Duration) -> anyhow::Result<String> {
    let text = serde_json::to_string(order).context("a block's cells cannot be written as JSON")?;
    Ok(format!(
        "mkdir -p {DIR} && rm -f {DIR}/cells && mkfifo {DIR}/cells || exit 1\n\
         cat >{DIR}/block.json <<'INSTEP_BENCH_END'\n{text}\nINSTEP_BENCH_END\n\
         (exec 3<>{DIR}/cells\n\
         instep-lab bench-cells {DIR}/block.json >&3 2>{DIR}/said\n\
         echo \"{ENDED}$?\" >&3\n\
         exec sleep {}) </dev/null >/dev/null 2>&1 &\n\
         echo $! >{DIR}/teller\n",
        limit.as_secs()
    ))
}

/// The exit status, of a block's last line.
pub(super) fn ended(line: &str) -> Option<&str> {
    line.strip_prefix(ENDED).map(str::trim_end)
}

pub(crate) fn command(args: &BenchCellsArgs) -> anyhow::Result<Outcome> {
    let text = fs::read_to_string(&args.file)
        .with_context(|| format!("cannot read {}", args.file.display()))?;
    let order: Order = serde_json::from_str(&text)
        .with_context(|| format!("{} is no block of cells", args.file.display()))?;
    here::ready(order.block.program != DEFAULT)?;
    let dir = PathBuf::from(DIR);
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {DIR}"))?;
    let load = PathBuf::from("/usr/bin/instep-load");
    let stop = Stop::on_signals()?;
    let stopped = || stop.raised();
    let tools = Tools {
        instep: programs::find_instep()?,
        unit_ns: unit_ns(&dir, &load)?,
        load,
        peers: order.peers,
        dir,
        boot: order.boot,
        stop: &stopped,
    };
    let mut printed = Ok(());
    here::run(&order.block, &tools, &mut |cell| {
        let line = serde_json::to_string(&cell).map_err(anyhow::Error::from);
        let one = line.and_then(|line| print(&format!("{line}\n")));
        printed = std::mem::replace(&mut printed, Ok(())).and(one);
    })?;
    printed?;
    Ok(Outcome::Fine)
}

/// Measured once a boot, so that all cells do the same work.
fn unit_ns(dir: &Path, load: &Path) -> anyhow::Result<f64> {
    let file = dir.join("unit_ns");
    if let Some(known) = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok()) {
        return Ok(known);
    }
    let unit = here::unit_ns(load)?;
    fs::write(&file, unit.to_string())
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_bench::case::Shape;
    use instep_bench::plan::Times;
    use std::process::Command;

    /// The scripts with a shell of this machine, in a directory of their own, and a program in the place
    /// of this one.
    #[test]
    fn cells_come_one_by_one_and_the_exit_status_at_last() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("b");
        let second = Duration::from_secs(1);
        let block = Block {
            program: DEFAULT.to_owned(),
            host: Shape::default(),
            run: 0,
            jobs: Vec::new(),
            times: Times { settle: second, measure: second, trace: second },
        };
        let order = Order { block, peers: BTreeMap::new(), boot: 1 };
        let sh = |script: &str| {
            let script = script.replace(DIR, at.to_str().unwrap());
            assert_eq!(script.contains("bench-cells"), script.contains("instep-lab bench-cells"));
            let script = script.replace("instep-lab bench-cells", "cells");
            let script = format!(
                "cells() {{ grep -q '\"boot\":1' \"$1\" || return 9; echo one; sleep 0.2; \
                 printf '%s\\n' 'a\\b'; echo why >&2; return 3; }}\n{script}"
            );
            let ran = Command::new("timeout").args(["20", "sh", "-c", &script]).output().unwrap();
            String::from_utf8(ran.stdout).unwrap()
        };
        assert_eq!(sh(&begin(&order, Duration::from_secs(15)).unwrap()), "");
        assert_eq!([sh(NEXT), sh(NEXT)], ["one\n", "a\\b\n"]);
        assert_eq!(ended(&sh(NEXT)), Some("3"));
        assert_eq!(sh(END), "why\n");
        assert_eq!(ended("{}"), None);
    }
}
