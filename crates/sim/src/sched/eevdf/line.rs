//! One run queue of EEVDF (`cfs_rq` in kernel/sched/fair.c, 6.12): every member has a virtual runtime and a
//! virtual deadline. A member is eligible while it is not ahead of the queue's virtual time. Of the eligible
//! members the one with the earliest deadline runs next.
//!
//! The same queue serves tasks within a VM's group and groups on a CPU. Virtual time is in nanoseconds at
//! weight [`UNIT`]. Knows no CPUs; a member is a number. Only differences of virtual times mean anything, so
//! that the origin may move.
//!
//! ```text
//!            join               set                 dequeue
//!   outside ------> in the tree ----> current ---------------------> outside
//!                        ^             |  | not eligible and asleep     ^
//!                        |     put     |  v                             |
//!                        +-------------+ delayed --- picked, dequeued --+
//! ```
//!
//! **Virtual time, requests and the choice.**
//!
//! * `update_sysctl`: a request (base slice) is 0.75 ms times 1 + log2 of the CPUs, 8 at most.
//! * `avg_vruntime`, `entity_eligible`: a queue's virtual time is the mean of virtual runtimes by
//!   weight, with the running one. An entity not ahead of it is eligible.
//! * `update_curr`: CPU time becomes virtual time. After a request the CPU chooses again, if others
//!   wait.
//! * `update_deadline`: at the deadline the next one is a request later.
//! * `did_preempt_short`: the CPU also chooses again when a running entity without protection is ahead.
//! * `pick_eevdf`: the eligible entity with the earliest deadline; of equal ones the first to come. A
//!   running entity goes on while eligible, to its deadline (RUN_TO_PARITY).
//! * `pick_next_task_fair`: only what changes is chosen anew.
//! * `check_preempt_wakeup_fair`: a waking task preempts if it would be chosen.
//! * `yield_to`, `yield_task_fair`: a task that yields moves its deadline by a request. NEXT_BUDDY is
//!   off.
//! * `kvm_vcpu_on_spin` (kvm_main.c): without a vCPU to yield to nothing happens.
//!
//! **Places, sleep and weights.**
//!
//! * `place_entity`: an entity brings its lag, inflated by its own effect; in an empty queue it is lost.
//! * `entity_lag`: at most two requests or a tick, whichever is more, either way.
//! * `dequeue_entity`: a sleeper that is ahead stays in its queue and counts there, unless it moves.
//! * `pick_next_entity`, `finish_delayed_dequeue_entity`: a sleeper that is chosen leaves, and the
//!   choice begins again. It keeps its lag only if it is still ahead.
//! * `ttwu_runnable` (core.c): a sleeper that wakes in its queue stays on that CPU.
//! * `requeue_delayed_entity`: if still ahead it keeps its place, else a new request at virtual time.
//! * `sched_weight_from_cgroup` (sched.h): `cpu.weight` 100 is 1024, rounded to the nearest.
//! * `calc_group_shares`: a VM's weight on a CPU is its part of its tasks there, at least 2 / 1024.
//! * `reweight_entity`: lag and the rest of the request stay the same in CPU time.

/// Weight of a task of nice 0, as virtual time uses it.
pub(super) const UNIT: i64 = 1024;

/// The kernel keeps weights with ten more bits (`scale_load`).
const FINE: u32 = 10;

/// The same weight with all its bits (`NICE_0_LOAD`).
pub(super) const NICE_0: i64 = UNIT << FINE;

/// The least weight of a group (`MIN_SHARES`).
pub(super) const MIN_SHARES: i64 = 2;

/// Virtual runtimes may be so far from the origin before it moves: sums of them times weights fit 64 bits.
const FAR: i64 = 1 << 36;

/// A member of a line.
#[derive(Clone, Copy, Debug)]
struct Member {
    key: u32,
    /// Virtual runtime.
    v: i64,
    /// Virtual deadline.
    deadline: i64,
    /// Weight with all its bits.
    weight: i64,
    /// Its place among members of the same deadline: when it came into the tree.
    order: u64,
    /// It sleeps, but stays until it is picked or woken (`sched_delayed`).
    delayed: bool,
}

impl Member {
    /// `scale_load_down`.
    fn unit(&self) -> i64 {
        unit(self.weight)
    }
}

/// `scale_load_down`.
fn unit(weight: i64) -> i64 {
    (weight >> FINE).max(2)
}

/// `calc_delta_fair`: CPU time as virtual time.
fn virtual_time(span: i64, unit: i64) -> i64 {
    if unit == UNIT { span } else { span.saturating_mul(UNIT) / unit }
}

/// `span * of / by`, rounded towards 0. Most products fit 64 bits, and their division is much faster.
pub(super) fn scaled(span: i64, of: i64, by: i64) -> i64 {
    match span.checked_mul(of) {
        Some(product) => product / by,
        None => (i128::from(span) * i128::from(of) / i128::from(by)) as i64,
    }
}

/// The member that runs.
#[derive(Clone, Copy, Debug)]
struct Current {
    key: u32,
    /// The deadline that it had when it was picked: it is not disturbed while it has that one
    /// (RUN_TO_PARITY; the kernel keeps it in `vlag`).
    protected: i64,
    /// Until when it was charged.
    since: u64,
}

/// How long requests are, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// `sysctl_sched_base_slice`.
    pub(super) slice: i64,
    /// `TICK_NSEC`.
    pub(super) tick: i64,
}

/// What a member that left takes with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parked {
    /// How far it was behind virtual time (`vlag`).
    pub(super) lag: i64,
    /// How far its deadline was ahead of it, of one that moves to another queue (PLACE_REL_DEADLINE).
    pub(super) deadline: Option<i64>,
}

/// Why a member leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// It sleeps.
    Sleep,
    /// It goes to another queue.
    Move,
    /// It slept before and was picked (DEQUEUE_DELAYED).
    Delayed,
}

/// The line. The one that runs stays in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    members: Vec<Member>,
    current: Option<Current>,
    /// Origin of the sum below; virtual time when nobody is there.
    floor: i64,
    /// Sum of virtual runtimes from the origin, times weight (`avg_vruntime`).
    sum: i64,
    /// Sum of weights (`avg_load`).
    load: i64,
    /// How often somebody came into the tree.
    arrivals: u64,
}

impl Line {
    /// An empty line with room for so many members.
    pub(super) fn with_room(members: usize) -> Self {
        Self { members: Vec::with_capacity(members), ..Self::default() }
    }

    /// Whether nobody is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// How many are in it, delayed ones included (`nr_running`).
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// The sum of weights.
    pub(super) fn load(&self) -> i64 {
        self.load
    }

    /// Who is in it, in no order.
    pub(super) fn keys(&self) -> impl Iterator<Item = u32> + '_ {
        self.members.iter().map(|member| member.key)
    }

    /// Whether it holds this member, delayed ones included.
    pub(super) fn has(&self, key: u32) -> bool {
        self.at(key).is_some()
    }

    /// Who runs.
    pub(super) fn current(&self) -> Option<u32> {
        self.current.map(|current| current.key)
    }

    #[inline]
    fn at(&self, key: u32) -> Option<usize> {
        self.members.iter().position(|member| member.key == key)
    }

    /// avg_vruntime: the mean of virtual runtimes by weight, rounded down.
    pub(super) fn time(&self) -> i64 {
        if self.load == 0 { self.floor } else { self.floor + self.sum.div_euclid(self.load) }
    }

    /// entity_eligible, without rounding.
    #[inline]
    fn eligible(&self, v: i64) -> bool {
        self.sum >= (v - self.floor) * self.load
    }

    /// Changes a member, and the sums with it.
    fn change(&mut self, at: usize, v: i64, weight: i64) {
        let (floor, member) = (self.floor, &mut self.members[at]);
        self.sum -= (member.v - floor) * member.unit();
        self.load -= member.unit();
        (member.v, member.weight) = (v, weight);
        self.sum += (member.v - floor) * member.unit();
        self.load += member.unit();
    }

    fn next_order(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// entity_lag: at most two slices or a tick either way.
    fn lag(&self, member: &Member, times: Times) -> i64 {
        let limit = virtual_time((2 * times.slice).max(times.tick), member.unit());
        (self.time() - member.v).clamp(-limit, limit)
    }

    /// place_entity: joins with the lag it left with, inflated so that it has that lag once it counts itself.
    /// A new task has half a slice (PLACE_DEADLINE_INITIAL).
    pub(super) fn join(
        &mut self,
        key: u32,
        weight: i64,
        parked: Parked,
        times: Times,
        initial: bool,
    ) {
        let own = unit(weight);
        let lag = match self.load {
            0 => 0,
            load => scaled(parked.lag, load + own, load),
        };
        let v = self.time() - lag;
        let request = virtual_time(times.slice, own) / if initial { 2 } else { 1 };
        let deadline = v + parked.deadline.unwrap_or(request);
        let order = self.next_order();
        self.members.push(Member { key, v, deadline, weight, order, delayed: false });
        self.sum += (v - self.floor) * own;
        self.load += own;
    }

    /// dequeue_entity: leaves, with what it takes along. One that sleeps and is not eligible stays instead, as
    /// delayed (DELAY_DEQUEUE), and nothing is returned.
    pub(super) fn dequeue(&mut self, key: u32, why: Leave, times: Times) -> Option<Parked> {
        let at = self.at(key)?;
        if why == Leave::Sleep && !self.eligible(self.members[at].v) {
            self.members[at].delayed = true;
            return None;
        }
        let time = self.time();
        let lag = self.lag(&self.members[at], times);
        let member = self.members.swap_remove(at);
        self.sum -= (member.v - self.floor) * member.unit();
        self.load -= member.unit();
        if self.current() == Some(key) {
            self.current = None;
        }
        if self.members.is_empty() {
            self.floor = time.max(self.floor);
        }
        // DELAY_ZERO: who waited to burn its debt off gains nothing by it.
        let lag = if why == Leave::Delayed { lag.min(0) } else { lag };
        let deadline = (why == Leave::Move).then_some(member.deadline - member.v);
        Some(Parked { lag, deadline })
    }

    /// Whether this member sleeps and stays.
    pub(super) fn is_delayed(&self, key: u32) -> bool {
        self.at(key).is_some_and(|at| self.members[at].delayed)
    }

    /// requeue_delayed_entity: it is awake again. What it was owed is forgotten (DELAY_ZERO).
    pub(super) fn requeue(&mut self, key: u32, times: Times) {
        let Some(at) = self.at(key) else { return };
        self.members[at].delayed = false;
        if self.lag(&self.members[at], times) <= 0 {
            return;
        }
        let member = self.members[at];
        self.sum -= (member.v - self.floor) * member.unit();
        self.load -= member.unit();
        let v = if self.load == 0 { self.floor } else { self.time() };
        self.sum += (member.v - self.floor) * member.unit();
        self.load += member.unit();
        self.change(at, v, member.weight);
        let order = self.next_order();
        let member = &mut self.members[at];
        member.deadline = v + virtual_time(times.slice, member.unit());
        member.order = order;
    }

    /// The same, of one that is delayed.
    pub(super) fn requeue_if_delayed(&mut self, key: u32, times: Times) {
        if self.is_delayed(key) {
            self.requeue(key, times);
        }
    }

    /// A member's weight, with all its bits.
    pub(super) fn weight(&self, key: u32) -> i64 {
        self.at(key).map_or(NICE_0, |at| self.members[at].weight)
    }

    /// update_curr: charges the running entity. True if its CPU has to choose again: its request is used up, or it is not
    /// eligible and not protected, and somebody else is there.
    pub(super) fn update(&mut self, now: u64, times: Times) -> bool {
        let Some(current) = &mut self.current else { return false };
        let ran = (now - current.since) as i64;
        if ran == 0 {
            return false;
        }
        current.since = now;
        let Current { key, protected, .. } = *current;
        let Some(at) = self.at(key) else { return false };
        let member = &mut self.members[at];
        let unit = member.unit();
        let step = virtual_time(ran, unit);
        member.v += step;
        self.sum += step * unit;
        let over = member.v >= member.deadline;
        if over {
            member.deadline = member.v + virtual_time(times.slice, unit);
        }
        let (v, deadline) = (member.v, member.deadline);
        if v - self.floor > FAR {
            self.move_origin();
        }
        self.members.len() > 1 && (over || protected != deadline && !self.eligible(v))
    }

    fn move_origin(&mut self) {
        let by = self.time() - self.floor;
        self.floor += by;
        self.sum -= by * self.load;
    }

    /// CPU time until the member's request is used up, at least 1 ns.
    pub(super) fn left(&self, key: u32) -> u64 {
        let Some(at) = self.at(key) else { return 1 };
        let member = &self.members[at];
        let left = i128::from(member.deadline - member.v) * i128::from(member.unit());
        u64::try_from((left.max(1) - 1) / i128::from(UNIT) + 1).unwrap_or(u64::MAX)
    }

    /// reweight_entity: lag, at most as much as may be kept, and what is left of the request stay the same in
    /// CPU time. The running entity loses its protection by that, as its deadline changes. True as of [`Line::update`].
    pub(super) fn reweigh(&mut self, key: u32, weight: i64, now: u64, times: Times) -> bool {
        let Some(at) = self.at(key) else { return false };
        if self.members[at].weight == weight {
            return false;
        }
        let again = self.update(now, times);
        let time = self.time();
        let member = self.members[at];
        let v = match time == member.v {
            true => time,
            false => time - scaled(self.lag(&member, times), member.weight, weight),
        };
        self.change(at, v, weight);
        let deadline = time + scaled(member.deadline - time, member.weight, weight);
        self.members[at].deadline = deadline;
        if self.current() != Some(key) {
            self.members[at].order = self.next_order();
        }
        again
    }

    /// pick_eevdf. The running entity goes on while it is eligible and has the deadline with which it was picked.
    pub(super) fn pick(&self) -> Option<u32> {
        if let [only] = &self.members[..] {
            return Some(only.key);
        }
        let (mut best, mut runs): (Option<&Member>, Option<&Member>) = (None, None);
        let current = self.current();
        for member in &self.members {
            if current == Some(member.key) {
                runs = Some(member).filter(|member| self.eligible(member.v));
            } else if best
                .is_none_or(|best| (member.deadline, member.order) < (best.deadline, best.order))
                && self.eligible(member.v)
            {
                best = Some(member);
            }
        }
        let protected = self.current.map(|current| current.protected);
        let chosen = match (best, runs) {
            (_, Some(runs)) if protected == Some(runs.deadline) => Some(runs),
            (Some(best), Some(runs)) if runs.deadline < best.deadline => Some(runs),
            (best, runs) => best.or(runs),
        };
        chosen.map(|member| member.key)
    }

    /// set_next_entity: `key` runs from now on.
    pub(super) fn set(&mut self, key: u32, now: u64) {
        let protected = self.at(key).map(|at| self.members[at].deadline);
        self.current = protected.map(|protected| Current { key, protected, since: now });
    }

    /// put_prev_entity: the running entity stops.
    pub(super) fn put(&mut self) {
        let Some(current) = self.current.take() else { return };
        if let Some(at) = self.at(current.key) {
            self.members[at].order = self.next_order();
        }
    }

    /// yield_task_fair: the next request is given up, too.
    pub(super) fn give_up(&mut self, key: u32, times: Times) {
        if let Some(at) = self.at(key) {
            let member = &mut self.members[at];
            member.deadline += virtual_time(times.slice, member.unit());
        }
    }
}

#[cfg(test)]
impl Line {
    /// Virtual runtime and deadline of a member, microseconds.
    pub(super) fn place(&self, key: u32) -> Option<(i64, i64)> {
        let member = &self.members[self.at(key)?];
        Some((member.v / 1000, member.deadline / 1000))
    }

    /// Puts a member at this virtual runtime and deadline, nanoseconds.
    pub(super) fn put_at(&mut self, key: u32, v: i64, deadline: i64) {
        let at = self.at(key).expect("it is in the line");
        self.change(at, v, self.members[at].weight);
        self.members[at].deadline = deadline;
        if let Some(current) = &mut self.current
            && current.key == key
        {
            current.protected = deadline;
        }
    }

    /// Lag as it would be kept, nanoseconds.
    pub(super) fn lag_of(&self, key: u32, times: Times) -> i64 {
        self.lag(&self.members[self.at(key).expect("it is in the line")], times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TIMES: Times = Times { slice: 3_000_000, tick: 4_000_000 };

    proptest! {
        #[test]
        fn time_goes_by_weight(a in 10i64..5000, b in 10i64..5000) {
            let mut line = Line::default();
            line.join(1, a << FINE, Parked::default(), TIMES, false);
            line.join(2, b << FINE, Parked::default(), TIMES, false);
            let (mut ran, mut now) = ([0u64; 2], 0);
            for _ in 0..20_000 {
                let key = line.pick().unwrap();
                if line.current() != Some(key) {
                    line.put();
                    line.set(key, now);
                }
                now += 100_000;
                line.update(now, TIMES);
                ran[key as usize - 1] += 100_000;
            }
            let part = ran[0] as f64 / (ran[0] + ran[1]) as f64;
            let fair = a as f64 / (a + b) as f64;
            prop_assert!((part - fair).abs() < 0.02, "{} {}", part, fair);
        }

        /// Whatever happens, the sums are those of the members, somebody is eligible, and virtual time is
        /// between the least and the most virtual runtime.
        #[test]
        fn sums_are_those_of_the_members(steps in prop::collection::vec((0u8..7, 0u32..5, 1i64..200_000), 1..300)) {
            let (mut line, mut now) = (Line::default(), 0);
            let mut parked = [Parked::default(); 5];
            for (what, key, amount) in steps {
                let at = key as usize;
                match what {
                    0 | 1 if !line.has(key) => line.join(key, amount << 4, parked[at], TIMES, what == 0),
                    2 => parked[at] = line.dequeue(key, Leave::Sleep, TIMES).unwrap_or(parked[at]),
                    3 => { line.reweigh(key, amount << 4, now, TIMES); }
                    4 if line.is_delayed(key) => line.requeue(key, TIMES),
                    5 => { now += amount as u64 * 100; line.update(now, TIMES); }
                    _ => if let Some(key) = line.pick() {
                        line.put();
                        line.set(key, now);
                    }
                }
                let load: i64 = line.members.iter().map(Member::unit).sum();
                let of = |member: &Member| (member.v - line.floor) * member.unit();
                prop_assert_eq!((line.load, line.sum), (load, line.members.iter().map(of).sum()));
                prop_assert_eq!(line.pick().is_some(), !line.is_empty());
                prop_assert!(line.is_empty() || line.members.iter().any(|member| line.eligible(member.v)));
            }
        }
    }
}
