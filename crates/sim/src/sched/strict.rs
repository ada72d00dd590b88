//! Strict co-scheduling (systems.md, 3): all siblings of a VM start and stop together; the CPU of a
//! sibling that has nothing to do is wasted.
//!
//! VMs are put into rows of the host's CPUs, largest first, each into the first row with room for
//! all its vCPUs on CPUs they may use (Ousterhout's matrix). Rows take turns, for [`StrictTuning::slice`]
//! times the weight of their heaviest VM over 100. A row of which nothing is runnable is left out.
//! A VM of more vCPUs than CPUs has a row of its own, in which its siblings take turns. Each of the host's
//! own threads is packed alone.
//!
//! ```text
//!            CPU 0   CPU 1   CPU 2   CPU 3
//!   row 0    A.0     A.1     A.2     A.3
//!   row 1    B.0     B.1     C.0     (wasted)
//! ```

use super::{Pick, Scheduler};
use crate::context::{SchedContext, StopReason, TaskId, TaskState, Waker};
use instep_check::Promises;

/// The rules' numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrictTuning {
    /// Nanoseconds of a row at weight 100: 6 ms, as CFS's latency. Not published.
    pub slice: u64,
}

impl Default for StrictTuning {
    fn default() -> Self {
        Self { slice: 6_000_000 }
    }
}

#[derive(Clone, Debug)]
struct Row {
    /// For each CPU its tasks in this row; the next to run first.
    columns: Vec<Vec<TaskId>>,
    /// Nanoseconds of its turn.
    slice: u64,
    /// Tasks that are runnable.
    runnable: u32,
}

/// The scheduler.
#[derive(Clone, Debug)]
pub struct Strict {
    rules: StrictTuning,
    rows: Vec<Row>,
    /// Row of each task.
    row_of: Vec<usize>,
    /// CPU of each task. A task that runs elsewhere, as affinities changed, goes there when it stops.
    cpu_of: Vec<usize>,
    current: usize,
    ends: u64,
}

impl Strict {
    /// With these numbers.
    pub fn new(rules: StrictTuning) -> Self {
        Self {
            rules,
            rows: Vec::new(),
            row_of: Vec::new(),
            cpu_of: Vec::new(),
            current: 0,
            ends: 0,
        }
    }

    /// The columns that a gang would take in a row, if it fits.
    fn fit(ctx: &SchedContext, gang: &[TaskId], row: &Row) -> Option<Vec<usize>> {
        let (cpus, mut taken) = (ctx.host.cpus(), Vec::new());
        let fold = gang.len() > cpus;
        let empty = row.columns.iter().all(Vec::is_empty);
        if fold && !empty {
            return None;
        }
        for task in gang {
            let this = ctx.task(*task);
            let uses = |cpu: &usize| taken.iter().filter(|other| *other == cpu).count();
            let free = |cpu: &usize| row.columns[*cpu].is_empty() && uses(cpu) == 0;
            let cpu = match this.allowed.iter().find(free) {
                Some(cpu) => cpu,
                // Alone in a row, siblings that may not be apart share.
                None if fold || empty => this.allowed.iter().min_by_key(|cpu| (uses(cpu), *cpu))?,
                None => return None,
            };
            taken.push(cpu);
        }
        Some(taken)
    }

    fn pack(&mut self, ctx: &mut SchedContext) {
        // Who starts and stops together: a VM's vCPUs. The host's own threads are no siblings.
        let mut gangs: Vec<Vec<TaskId>> = Vec::new();
        for vm in &ctx.vms {
            if vm.hidden {
                gangs.extend(vm.tasks().map(|task| vec![task]));
            } else {
                gangs.push(vm.tasks().collect());
            }
        }
        gangs.sort_by_key(|gang| std::cmp::Reverse(gang.len()));
        for gang in gangs {
            let found = self
                .rows
                .iter()
                .enumerate()
                .find_map(|(at, row)| Some((at, Self::fit(ctx, &gang, row)?)));
            let (at, cpus) = match found {
                Some(found) => found,
                None => {
                    let columns = vec![Vec::new(); ctx.host.cpus()];
                    self.rows.push(Row { columns, slice: 0, runnable: 0 });
                    let at = self.rows.len() - 1;
                    let Some(cpus) = Self::fit(ctx, &gang, &self.rows[at]) else { continue };
                    (at, cpus)
                }
            };
            let weight = gang.first().map_or(100, |task| ctx.vms[ctx.task(*task).vm].weight);
            let slice = self.rules.slice * u64::from(weight) / 100;
            self.rows[at].slice = self.rows[at].slice.max(slice.max(100_000));
            for (task, cpu) in gang.into_iter().zip(cpus) {
                self.rows[at].columns[cpu].push(task);
                self.row_of[task.ix()] = at;
                self.cpu_of[task.ix()] = cpu;
                if ctx.task(task).state != TaskState::Running {
                    ctx.assign(task, cpu);
                }
            }
        }
    }

    /// Goes on to the next row with something runnable.
    fn turn(&mut self, ctx: &mut SchedContext) {
        let count = self.rows.len();
        let next = (1..=count)
            .map(|step| (self.current + step) % count)
            .find(|row| self.rows[*row].runnable > 0);
        let Some(next) = next else {
            self.ends = ctx.now;
            return;
        };
        self.current = next;
        self.ends = ctx.now + self.rows[next].slice;
        ctx.arm(0, self.ends);
        (0..ctx.host.cpus()).for_each(|cpu| ctx.resched(cpu));
    }
}

impl Scheduler for Strict {
    fn name(&self) -> &'static str {
        "strict"
    }

    fn start(&mut self, ctx: &mut SchedContext) {
        self.row_of = vec![0; ctx.tasks.len()];
        self.cpu_of = vec![0; ctx.tasks.len()];
        self.pack(ctx);
    }

    fn wake(&mut self, ctx: &mut SchedContext, task: TaskId, _by: Waker) {
        let row = self.row_of[task.ix()];
        self.rows[row].runnable += 1;
        if self.rows[self.current].runnable == 0 || ctx.now >= self.ends {
            self.turn(ctx);
        } else if row == self.current {
            let cpu = ctx.task(task).cpu;
            ctx.resched(cpu);
        }
    }

    fn block(&mut self, ctx: &mut SchedContext, _cpu: usize, task: TaskId) {
        ctx.assign(task, self.cpu_of[task.ix()]);
        let row = self.row_of[task.ix()];
        self.rows[row].runnable -= 1;
        if row == self.current && self.rows[row].runnable == 0 {
            self.turn(ctx);
        }
    }

    fn put(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId, why: StopReason) {
        let own = self.cpu_of[task.ix()];
        if own != cpu {
            ctx.assign(task, own);
            ctx.resched(own);
        }
        let column = &mut self.rows[self.row_of[task.ix()]].columns[cpu];
        // Behind all siblings, also if those before it are blocked.
        if matches!(why, StopReason::SliceEnd | StopReason::Yield(_))
            && let Some(at) = column.iter().position(|other| *other == task)
        {
            column[at..].rotate_left(1);
        }
    }

    fn pick(&mut self, ctx: &mut SchedContext, cpu: usize) -> Option<Pick> {
        let column = &self.rows.get(self.current)?.columns[cpu];
        let ready = |task: &&TaskId| ctx.task(**task).state == TaskState::Queued;
        let count = column.iter().filter(ready).count() as u64;
        let task = *column.iter().find(ready)?;
        let left = self.ends.saturating_sub(ctx.now);
        let slice = if count > 1 { (left / count).max(100_000) } else { u64::MAX };
        Some(Pick { task, slice })
    }

    fn tick(&mut self, _ctx: &mut SchedContext, _cpu: usize) {}

    fn tick_period(&self) -> u64 {
        4_000_000
    }

    fn quantum(&self, _cpus: usize) -> u64 {
        self.rules.slice
    }

    fn timer(&mut self, ctx: &mut SchedContext, _id: u32) {
        if ctx.now >= self.ends {
            self.turn(ctx);
        }
    }

    fn affinity_changed(&mut self, ctx: &mut SchedContext, _task: TaskId) {
        // All rows are packed anew.
        for row in &mut self.rows {
            row.columns.iter_mut().for_each(Vec::clear);
            row.runnable = 0;
        }
        self.pack(ctx);
        for at in 0..ctx.tasks.len() {
            if ctx.tasks[at].state != TaskState::Blocked {
                self.rows[self.row_of[at]].runnable += 1;
            }
        }
        self.turn(ctx);
    }

    fn work_conserving(&self) -> bool {
        false
    }

    fn promises(&self) -> Promises {
        // A woken task waits for its row on a CPU that idles.
        Promises { woken: None, ..Promises::usual(false, self.tick_period()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ctx;

    #[test]
    fn the_hosts_own_threads_are_packed_one_by_one() {
        // VM 0 is tasks 0 to 2; tasks 3 to 6 are bound to CPUs 0 to 3, task 7 roams.
        let mut ctx = ctx(4, &[3]);
        let mut strict = Strict::new(StrictTuning::default());
        strict.start(&mut ctx);
        assert_eq!(strict.row_of[..3], [0; 3]);
        // What the VM leaves is room for the thread of CPU 3; the others go to the next row.
        assert_eq!(strict.row_of[3..], [1, 1, 1, 0, 1]);
        assert_eq!(strict.cpu_of, [0, 1, 2, 0, 1, 2, 3, 3]);
    }
}
