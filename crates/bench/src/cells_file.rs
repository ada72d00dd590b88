//! Finished cells in a file, as they come, so that a run of hours that is cut keeps what it has: JSON
//! lines, each `{"order": ...}`, `{"boot": ...}` or `{"cell": ...}`.
//!
//! ```text
//! order   what was to be run: cases, schedulers, times, and the programs' builds
//! boot    a machine came up: its number, kernel and kind
//! cell    one that is finished
//! ```
//! An order comes whenever a run begins or goes on. A cell that is run again replaces the one before.
//! The last line may be torn. It knows nothing of how cells are run.

use crate::case::Case;
use crate::cell::{ALONE, BenchCell};
use crate::error::Error;
use crate::gather::{dilution, gather};
use crate::plan::{Scheduler, Times};
use crate::report::{BenchReport, SCHEMA as REPORT_SCHEMA, TookPart};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The schema's name, in each order.
pub const SCHEMA: &str = "instep.bench.cells/1";
/// The most that is read.
const MAX: u64 = 64 << 20;

/// What was to be run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// [`SCHEMA`].
    pub schema: String,
    /// The cases.
    pub cases: Vec<Case>,
    /// Who takes part.
    pub schedulers: Vec<Scheduler>,
    /// Who cannot, and why.
    pub absent: BTreeMap<String, String>,
    /// How often every cell is run.
    pub runs: u32,
    /// How long things take.
    pub times: Times,
    /// What tells one build of a scheduler's program from another.
    pub builds: BTreeMap<String, String>,
}

/// A machine that came up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Boot {
    /// Its number: of cells with the same one speeds are compared.
    pub boot: u32,
    /// The release of its kernel.
    pub kernel: String,
    /// What it is.
    pub machine: String,
    /// What it cannot show.
    pub does_not_show: String,
    /// Whether it was booted for this; else it is the machine itself.
    pub booted: bool,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Order(Box<Order>),
    Boot(Boot),
    Cell(Box<BenchCell>),
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// The orders put together; cases and schedulers of all of them.
    pub order: Option<Order>,
    /// The machines.
    pub boots: Vec<Boot>,
    /// The finished cells, of those run twice the later.
    pub cells: Vec<BenchCell>,
    /// What is wrong with it.
    pub warnings: Vec<String>,
}

/// A file that cells are added to.
#[derive(Debug)]
pub struct Keeper {
    path: PathBuf,
    file: File,
}

impl Kept {
    /// What a file's text says; `None` when it is of another kind.
    pub fn parse(text: &str) -> Option<Self> {
        let mut kept = Self::default();
        let mut bad = 0;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match serde_json::from_str(line) {
                Ok(Line::Order(order)) if order.schema == SCHEMA => kept.ordered(*order),
                Ok(Line::Boot(boot)) if kept.order.is_some() => kept.boots.push(boot),
                Ok(Line::Cell(cell)) if kept.order.is_some() => kept.put(*cell),
                _ if kept.order.is_none() => return None,
                _ => bad += 1,
            }
        }
        if bad > 0 {
            kept.warnings.push(format!("{bad} lines of the kept cells are torn and left out"));
        }
        kept.order.is_some().then_some(kept)
    }

    /// Reads a file; nothing is in one that is not there or empty.
    ///
    /// # Errors
    /// It cannot be read, is too large, or is of another kind.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failed = |error| Error::io("read", path, error);
        match fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(failed(error)),
            Ok(meta) if meta.len() == 0 => return Ok(Self::default()),
            Ok(meta) if meta.len() > MAX => return Err(wrong(path, "is too large")),
            Ok(_) => {}
        }
        let bytes = fs::read(path).map_err(failed)?;
        Self::parse(&String::from_utf8_lossy(&bytes))
            .ok_or_else(|| wrong(path, "holds no cells of instep bench"))
    }

    /// Adds what is to be run now.
    pub fn ordered(&mut self, order: Order) {
        let Some(own) = &mut self.order else {
            self.order = Some(order);
            return;
        };
        if own.builds.iter().any(|(name, build)| order.builds.get(name).is_some_and(|b| b != build))
        {
            let text = "the kept cells are of several builds of a scheduler's program";
            self.warnings.push(text.to_owned());
            self.warnings.dedup();
        }
        let cases =
            order.cases.into_iter().filter(|case| own.cases.iter().all(|c| c.name != case.name));
        own.cases.extend(cases.collect::<Vec<_>>());
        let others = order.schedulers.into_iter().filter(|other| !own.schedulers.contains(other));
        own.schedulers.extend(others.collect::<Vec<_>>());
        own.builds.extend(order.builds);
        own.absent = order.absent;
        own.runs = own.runs.max(order.runs);
    }

    /// Adds a cell in the place of the same one; the work alone is another one in each boot.
    pub fn put(&mut self, cell: BenchCell) {
        let key = |cell: &BenchCell| {
            let boot = (cell.scheduler == ALONE).then_some(cell.boot);
            (cell.case.clone(), cell.scheduler.clone(), cell.run, boot)
        };
        let own = key(&cell);
        match self.cells.iter_mut().find(|known| key(known) == own) {
            Some(known) => *known = cell,
            None => self.cells.push(cell),
        }
    }

    /// Whether a run of these cases and times can go on here.
    ///
    /// # Errors
    /// What is otherwise, for `path`.
    pub fn fits(&self, order: &Order, path: &Path) -> Result<(), Error> {
        let Some(own) = &self.order else { return Ok(()) };
        let next = "name another file by --resume, or give the options of the run before";
        if own.times != order.times {
            return Err(wrong(
                path,
                &format!("has cells of other times (--settle, --measure); {next}"),
            ));
        }
        let differs = |case: &&Case| own.cases.iter().any(|c| c.name == case.name && c != *case);
        match order.cases.iter().find(differs) {
            Some(case) => {
                let what = format!("has another definition of case {}; {next}", case.name);
                Err(wrong(path, &what))
            }
            None => Ok(()),
        }
    }

    /// Cells that need not be run again: case, scheduler, run.
    pub fn done(&self) -> BTreeSet<(String, String, u32)> {
        let good =
            self.cells.iter().filter(|cell| cell.failed.is_none() && cell.scheduler != ALONE);
        good.map(|cell| (cell.case.clone(), cell.scheduler.clone(), cell.run)).collect()
    }

    /// A number that no machine has had.
    pub fn next_boot(&self) -> u32 {
        let cells = self.cells.iter().map(|cell| cell.boot);
        let last = cells.chain(self.boots.iter().map(|boot| boot.boot)).max().unwrap_or(0);
        last.saturating_add(1)
    }

    /// The figures of what is finished.
    pub fn report(self) -> Option<BenchReport> {
        let order = self.order?;
        let machine = self.boots.last().cloned().unwrap_or_default();
        let mut kernels: Vec<&str> = self.boots.iter().map(|boot| boot.kernel.as_str()).collect();
        kernels.dedup();
        let mut warnings: Vec<String> = dilution(&self.cells).into_iter().collect();
        warnings.extend(self.warnings);
        if kernels.len() > 1 {
            warnings.push(format!("put together of kernels {}", kernels.join(", ")));
        }
        warnings.extend(self.cells.iter().flat_map(|cell| cell.warnings.clone()));
        warnings.dedup();
        Some(BenchReport {
            schema: REPORT_SCHEMA.to_owned(),
            kernel: machine.kernel,
            cpus: order.cases.iter().map(|case| case.host.cpus()).max().unwrap_or(0),
            machine: machine.machine,
            does_not_show: machine.does_not_show,
            runs: order.runs,
            boots: u32::try_from(self.boots.iter().filter(|b| b.booted).count()).unwrap_or(0),
            settle_s: order.times.settle.as_secs_f64(),
            measure_s: order.times.measure.as_secs_f64(),
            schedulers: TookPart::all(&order.schedulers, &order.absent, &self.cells),
            cases: gather(&order.cases, &order.schedulers, &self.cells),
            warnings,
        })
    }
}

impl Keeper {
    /// Opens a file for more, with the order of what comes.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn open(path: &Path, order: &Order) -> Result<Self, Error> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.map_err(|error| Error::io("write", path, error))?;
        let mut keeper = Self { path: path.to_owned(), file };
        // Ends a line that was torn; an empty one is none.
        keeper.write("\n")?;
        keeper.line(&Line::Order(Box::new(order.clone())))?;
        Ok(keeper)
    }

    /// Adds a machine.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn boot(&mut self, boot: &Boot) -> Result<(), Error> {
        self.line(&Line::Boot(boot.clone()))
    }

    /// Adds a finished cell.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn cell(&mut self, cell: &BenchCell) -> Result<(), Error> {
        self.line(&Line::Cell(Box::new(cell.clone())))
    }

    fn line(&mut self, line: &Line) -> Result<(), Error> {
        let text = serde_json::to_string(line)
            .map_err(|error| Error::io("write", &self.path, error.into()))?;
        self.write(&(text + "\n"))
    }

    fn write(&mut self, text: &str) -> Result<(), Error> {
        let written = self.file.write_all(text.as_bytes());
        written.map_err(|error| Error::io("write", &self.path, error))
    }
}

fn wrong(path: &Path, what: &str) -> Error {
    Error::Cases { path: path.to_owned(), what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn order() -> Order {
        let text = "[[case]]\nname = 'a'\nabout = 'x'\nwork = { load = 'x', vcpus = 2 }\n\
                    beside = [{ load = 'x', vcpus = 2 }]\n";
        let second = Duration::from_secs(1);
        Order {
            schema: SCHEMA.to_owned(),
            cases: crate::case::parse(text, Path::new("x")).unwrap(),
            schedulers: ["default", "scx_a"].map(|name| Scheduler::of(name, &[]).unwrap()).to_vec(),
            absent: BTreeMap::new(),
            runs: 2,
            times: Times { settle: second, measure: second, trace: second },
            builds: [("scx_a".to_owned(), "1".to_owned())].into(),
        }
    }

    fn cell(scheduler: &str, run: u32, boot: u32, rate: Option<f64>) -> BenchCell {
        let failed = rate.is_none().then(|| "it died".to_owned());
        let (case, scheduler) = ("a".to_owned(), scheduler.to_owned());
        BenchCell { case, scheduler, run, boot, rate, failed, ..BenchCell::default() }
    }

    #[test]
    fn finished_cells_survive_a_cut_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cells");
        assert_eq!(Kept::read(&path).unwrap(), Kept::default());
        let mut keeper = Keeper::open(&path, &order()).unwrap();
        let boot = |boot: u32| {
            let kernel = "7".to_owned();
            Boot { boot, kernel, booted: true, ..Boot::default() }
        };
        keeper.boot(&boot(1)).unwrap();
        for cell in [
            cell("alone", 0, 1, Some(100.0)),
            cell("default", 0, 1, Some(25.0)),
            cell("scx_a", 0, 1, None),
        ] {
            keeper.cell(&cell).unwrap();
        }
        // The power goes in the middle of a line.
        keeper.write("{\"cell\":{\"case\":\"a\",\"sched").unwrap();
        let kept = Kept::read(&path).unwrap();
        kept.fits(&order(), &path).unwrap();
        assert_eq!((kept.next_boot(), kept.done().len(), kept.cells.len()), (2, 1, 3));
        assert!(kept.warnings[0].starts_with("1 lines"), "{:?}", kept.warnings);

        let mut keeper = Keeper::open(&path, &order()).unwrap();
        keeper.boot(&boot(2)).unwrap();
        keeper.cell(&cell("alone", 0, 2, Some(200.0))).unwrap();
        keeper.cell(&cell("scx_a", 0, 2, Some(100.0))).unwrap();
        let kept = Kept::read(&path).unwrap();
        assert_eq!((kept.cells.len(), kept.done().len()), (4, 2));
        let report = kept.report().unwrap();
        let speed =
            |name: &str| report.cases[0].results[name].fair_share_speed.as_ref().unwrap().median;
        assert_eq!((speed("default"), speed("scx_a"), report.boots), (0.5, 1.0, 2));
        assert!(report.is_complete(), "the failure was mended: {report:#?}");
    }

    #[test]
    fn another_order_is_refused_and_another_build_is_reported() {
        let path = Path::new("c.cells");
        let kept = Kept { order: Some(order()), ..Kept::default() };
        let mut other = order();
        other.times.measure *= 2;
        let error = kept.fits(&other, path).unwrap_err().to_string();
        assert!(error.starts_with("c.cells: has cells of other times"), "{error}");
        let mut other = order();
        other.cases[0].work.vcpus = 4;
        assert!(
            kept.fits(&other, path)
                .unwrap_err()
                .to_string()
                .contains("another definition of case a")
        );
        let line = |order: &Order| {
            serde_json::to_string(&Line::Order(Box::new(order.clone()))).unwrap() + "\n"
        };
        let mut other = order();
        other.builds.insert("scx_a".to_owned(), "2".to_owned());
        other.runs = 5;
        let kept = Kept::parse(&(line(&order()) + &line(&other))).unwrap();
        assert!(kept.warnings[0].contains("several builds"), "{:?}", kept.warnings);
        assert_eq!(kept.order.unwrap().runs, 5);
    }

    #[test]
    fn what_is_no_file_of_cells_is_none() {
        for text in ["", "x", "{}", "{\"schema\":\"instep.bench/1\"}", "{\"cell\":{}}\n"] {
            assert_eq!(Kept::parse(text), None, "{text}");
        }
    }
}
