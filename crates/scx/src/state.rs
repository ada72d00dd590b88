//! What an instance keeps: CPUs, tasks, queues, and what waits to be done. Moves tasks between queues
//! and says where they are; calls no operation of the scheduler.

use crate::abi::{DSQ_GLOBAL, DSQ_LOCAL_ON};
use crate::dsq::Dsq;
use crate::order::Stand;
use std::collections::BTreeMap;

/// Which operation runs, and for whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Context {
    /// None that may move tasks.
    #[default]
    Other,
    /// `ops.select_cpu` of this task.
    Select(usize),
    /// `ops.enqueue` of this task.
    Enqueue(usize),
    /// `ops.dispatch` of this CPU.
    Dispatch(usize),
}

/// A queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// From which a CPU runs.
    Local(usize),
    Global,
    /// One that the scheduler made.
    User(u64),
}

/// Where a task was sent by `ops.select_cpu` or `ops.enqueue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) dsq: u64,
    pub(crate) flags: u64,
    pub(crate) ordered: bool,
}

/// A task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info {
    /// The CPU whose run queue it belongs to.
    pub(crate) cpu: usize,
    pub(crate) stand: Stand,
    /// In which queue it waits.
    pub(crate) on: Option<Queue>,
    pub(crate) sent: Option<Sent>,
    /// The scheduler is responsible for it: it is in a queue of its own or in its data.
    pub(crate) custody: bool,
    /// Since when it waits for a CPU.
    pub(crate) since: u64,
    /// It is not there: it is made later, or has ended.
    pub(crate) left_out: bool,
}

/// A CPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rq {
    pub(crate) curr: Option<usize>,
    pub(crate) local: Dsq,
    /// Up to when the running task's slice was charged.
    pub(crate) charged: u64,
    pub(crate) resched: bool,
    /// A thread of a higher class has it.
    pub(crate) taken: bool,
    /// What the scheduler asked of it, of 1024; all of it until it does.
    pub(crate) performance: u32,
    /// Runnable tasks, the running one included.
    pub(crate) runnable: u32,
}

/// A timer that was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    pub(crate) at: u64,
    pub(crate) timer: usize,
    pub(crate) callback: usize,
    pub(crate) map: usize,
}

/// Queues with lower numbers are found without a search.
const NEAR: usize = 16384;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) rqs: Vec<Rq>,
    pub(crate) tasks: Vec<Info>,
    pub(crate) global: Dsq,
    near: Vec<Option<Dsq>>,
    far: BTreeMap<u64, Dsq>,
    pub(crate) context: Context,
    /// CPUs that were told to choose again.
    pub(crate) resched: Vec<usize>,
    /// Kicks that were asked for: CPU and flags.
    pub(crate) kicks: Vec<(usize, u64)>,
    /// Tasks that may be elsewhere than before.
    pub(crate) moved: Vec<usize>,
    /// What `ops.dispatch` inserted.
    pub(crate) buffer: Vec<(usize, Sent)>,
    /// A running task whose affinity changes: it is in no queue but its CPU's own meanwhile.
    pub(crate) held: Option<usize>,
    /// A CPU that another one claims as soon as one has nothing to run (see `Kernel::claims_between`).
    pub(crate) rival: Option<usize>,
    /// How many tasks `ops.dispatch` moved since it was called last.
    pub(crate) dispatched: u32,
    /// Why the kernel threw the scheduler out.
    pub(crate) ejected: Option<String>,
    /// What this crate did wrong.
    pub(crate) bug: Option<String>,
    pub(crate) timers: Vec<Timer>,
    pub(crate) looked: u64,
}

impl State {
    pub(crate) fn new(cpus: usize, tasks: usize) -> Self {
        Self {
            rqs: vec![Rq { performance: 1024, ..Rq::default() }; cpus],
            tasks: vec![Info::default(); tasks],
            ..Self::default()
        }
    }

    pub(crate) fn create(&mut self, id: u64) -> bool {
        if self.user(id).is_some() || id >= DSQ_GLOBAL & !1 {
            return false;
        }
        match usize::try_from(id).ok().filter(|id| *id < NEAR) {
            Some(at) => {
                self.near.resize(self.near.len().max(at + 1), None);
                self.near[at] = Some(Dsq::default());
            }
            None => _ = self.far.insert(id, Dsq::default()),
        }
        true
    }

    /// Removes an empty queue.
    pub(crate) fn destroy(&mut self, id: u64) -> bool {
        if self.user(id).is_none_or(|dsq| dsq.len() > 0) {
            return false;
        }
        match usize::try_from(id).ok().and_then(|at| self.near.get_mut(at)) {
            Some(dsq) => *dsq = None,
            None => _ = self.far.remove(&id),
        }
        true
    }

    #[inline]
    pub(crate) fn user(&self, id: u64) -> Option<&Dsq> {
        if id < NEAR as u64 {
            return self.near.get(id as usize)?.as_ref();
        }
        self.far.get(&id)
    }

    #[inline]
    pub(crate) fn queue(&self, queue: Queue) -> Option<&Dsq> {
        match queue {
            Queue::Local(cpu) => self.rqs.get(cpu).map(|rq| &rq.local),
            Queue::Global => Some(&self.global),
            Queue::User(id) => self.user(id),
        }
    }

    pub(crate) fn queue_mut(&mut self, queue: Queue) -> Option<&mut Dsq> {
        match queue {
            Queue::Local(cpu) => self.rqs.get_mut(cpu).map(|rq| &mut rq.local),
            Queue::Global => Some(&mut self.global),
            Queue::User(id) if id < NEAR as u64 => self.near.get_mut(id as usize)?.as_mut(),
            Queue::User(id) => self.far.get_mut(&id),
        }
    }

    /// The queue of this number, seen from a CPU; `None` if there is none.
    pub(crate) fn resolve(&self, dsq: u64, cpu: usize) -> Option<Queue> {
        let queue = match dsq {
            crate::abi::DSQ_LOCAL => Queue::Local(cpu),
            DSQ_GLOBAL => Queue::Global,
            _ if dsq & DSQ_LOCAL_ON == DSQ_LOCAL_ON => Queue::Local((dsq & 0xffff_ffff) as usize),
            _ => Queue::User(dsq),
        };
        self.queue(queue).is_some().then_some(queue)
    }

    /// A task leaves the queue that it waits in.
    pub(crate) fn unqueue(&mut self, task: usize) {
        if let Some(queue) = self.tasks[task].on.take()
            && let Some(dsq) = self.queue_mut(queue)
        {
            dsq.remove(task);
        }
    }

    /// A task belongs to another CPU's run queue from now on.
    pub(crate) fn set_cpu(&mut self, task: usize, cpu: usize) {
        let old = std::mem::replace(&mut self.tasks[task].cpu, cpu);
        if matches!(self.tasks[task].stand, Stand::Waiting | Stand::Running) && old != cpu {
            self.rqs[old].runnable -= 1;
            self.rqs[cpu].runnable += 1;
        }
        self.moved.push(task);
    }

    /// A CPU shall choose again (resched_curr).
    pub(crate) fn resched(&mut self, cpu: usize) {
        if !std::mem::replace(&mut self.rqs[cpu].resched, true) {
            self.resched.push(cpu);
        }
    }

    /// The scheduler did what the kernel throws schedulers out for; the first reason counts.
    pub(crate) fn eject(&mut self, why: impl Into<String>) {
        self.ejected.get_or_insert_with(|| why.into());
    }
}
