//! In which order the kernel calls a scheduler's operations for a task. What is not drawn here cannot
//! happen there (kernel/sched/ext.c, Linux 6.12 to 7.2): a call out of order is a bug of this crate.
//!
//! ```text
//!  New --init_task--> Known --enable--> Asleep --runnable--> Waiting --running--> Running
//!                                         ^ ^                  |  ^                |   |
//!                                         | +----quiescent-----+  +--stopping(1)---+   |
//!                                         +----quiescent--- Leaving <--stopping(0)-----+
//!  select_cpu: Asleep.  enqueue, dequeue: Waiting.  tick, yield: Running.
//! ```

/// Where a task stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stand {
    #[default]
    New,
    Known,
    Asleep,
    Waiting,
    Running,
    Leaving,
}

/// A call of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    InitTask,
    Enable,
    SetWeight,
    SetCpumask,
    SelectCpu,
    Runnable,
    Enqueue,
    Dequeue,
    Running,
    Tick,
    Yield,
    Stopping { runnable: bool },
    Quiescent,
    Disable,
    ExitTask,
}

impl Stand {
    /// Where the task stands after the call; `None` when the kernel cannot make it here.
    pub(crate) fn after(self, call: Call) -> Option<Self> {
        use Stand::{Asleep, Known, Leaving, New, Running, Waiting};
        Some(match (self, call) {
            (New, Call::InitTask) => Known,
            (Known, Call::Enable) => Asleep,
            (Asleep, Call::SelectCpu) => Asleep,
            (Asleep | Waiting | Running, Call::SetWeight | Call::SetCpumask) => self,
            (Asleep, Call::Runnable) => Waiting,
            (Waiting, Call::Enqueue | Call::Dequeue) => Waiting,
            (Waiting, Call::Running) => Running,
            (Running, Call::Tick | Call::Yield) => Running,
            (Running, Call::Stopping { runnable: true }) => Waiting,
            (Running, Call::Stopping { runnable: false }) => Leaving,
            (Waiting | Leaving, Call::Quiescent) => Asleep,
            (Asleep | Waiting | Running, Call::Disable) => Known,
            (Known, Call::ExitTask) => New,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(calls: &[Call]) -> Option<Stand> {
        let known = [Call::InitTask, Call::Enable];
        known.iter().chain(calls).try_fold(Stand::New, |stand, call| stand.after(*call))
    }

    #[test]
    fn a_life_as_the_kernel_tells_it_is_in_order() {
        let stop = |runnable| Call::Stopping { runnable };
        let life = [
            Call::SelectCpu,
            Call::Runnable,
            Call::Enqueue,
            Call::Dequeue,
            Call::Running,
            Call::Tick,
            stop(true),
            Call::Enqueue,
            Call::Running,
            stop(false),
            Call::Quiescent,
        ];
        assert_eq!(after(&life), Some(Stand::Asleep));
    }

    #[test]
    fn what_the_kernel_cannot_do_is_out_of_order() {
        for calls in [
            [Call::Running].as_slice(),
            &[Call::Enqueue],
            &[Call::Tick],
            &[Call::Quiescent],
            &[Call::Runnable, Call::Runnable],
            &[Call::Runnable, Call::Stopping { runnable: true }],
            &[Call::Runnable, Call::Running, Call::Enqueue],
            &[Call::Runnable, Call::Running, Call::Quiescent],
            &[Call::Runnable, Call::Running, Call::SelectCpu],
        ] {
            assert_eq!(after(calls), None, "{calls:?}");
        }
    }
}
