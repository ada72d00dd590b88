//! One run queue of EEVDF (kernel/sched/fair.c, 6.12): who waits has a lag; of those whose lag is not
//! negative the one with the earliest virtual deadline is next.
//!
//! The same for tasks within a group and for groups on a CPU. Virtual time is in nanoseconds at
//! weight 1024. Knows no CPUs and no clock; a member is a number.

/// Weight of a task of nice 0.
pub(super) const UNIT: i64 = 1024;

/// A member of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// Who.
    pub(super) key: u32,
    /// Virtual runtime.
    v: i64,
    /// Virtual deadline.
    deadline: i64,
    /// Weight.
    weight: i64,
}

/// `sum / by`, rounded down. Of most sums 64 bits are all, and their division is several times as fast.
fn divided(sum: i128, by: i64) -> i64 {
    match i64::try_from(sum) {
        Ok(sum) => sum.div_euclid(by),
        Err(_) => sum.div_euclid(i128::from(by)) as i64,
    }
}

/// `product / by`, rounded towards 0.
fn truncated(product: i128, by: i64) -> i64 {
    match i64::try_from(product) {
        Ok(product) => product / by,
        Err(_) => (product / i128::from(by)) as i64,
    }
}

/// The line. The one that runs stays in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    members: Vec<Member>,
    /// Who runs, and the deadline until which it is not disturbed (RUN_TO_PARITY).
    current: Option<(u32, i64)>,
    /// Virtual time when nobody was there.
    floor: i64,
}

impl Line {
    /// Whether nobody is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// An empty line with room for so many members.
    pub(super) fn with_room(members: usize) -> Self {
        Self { members: Vec::with_capacity(members), ..Self::default() }
    }

    /// Begins anew; its room is kept.
    pub(super) fn reset(&mut self) {
        self.members.clear();
        (self.current, self.floor) = (None, 0);
    }

    /// How many are in it.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Who is in it.
    pub(super) fn keys(&self) -> impl Iterator<Item = u32> + '_ {
        self.members.iter().map(|member| member.key)
    }

    fn at(&self, key: u32) -> Option<usize> {
        self.members.iter().position(|member| member.key == key)
    }

    /// Virtual time: the mean of virtual runtimes by weight (avg_vruntime).
    fn time(&self) -> i64 {
        let weights: i64 = self.members.iter().map(|member| member.weight).sum();
        if weights == 0 {
            return self.floor;
        }
        let sum: i128 = self
            .members
            .iter()
            .map(|member| i128::from(member.v - self.floor) * i128::from(member.weight))
            .sum();
        self.floor + divided(sum, weights)
    }

    /// place_entity: joins with the lag it left with, deflated so that it has that lag afterwards.
    pub(super) fn join(&mut self, key: u32, weight: i64, lag: i64, slice: i64) {
        let weight = weight.max(2);
        let load: i64 = self.members.iter().map(|member| member.weight).sum();
        let lag = match load {
            0 => 0,
            load => truncated(i128::from(lag) * i128::from(load + weight), load),
        };
        let v = self.time() - lag;
        self.members.push(Member { key, v, deadline: v + slice * UNIT / weight, weight });
    }

    /// Leaves; its lag, at most two slices either way (entity_lag).
    pub(super) fn leave(&mut self, key: u32, slice: i64) -> i64 {
        let Some(at) = self.at(key) else { return 0 };
        let time = self.time();
        let member = self.members.swap_remove(at);
        if self.current.is_some_and(|(current, _)| current == key) {
            self.current = None;
        }
        if self.members.is_empty() {
            self.floor = time.max(self.floor);
        }
        let limit = 2 * slice * UNIT / member.weight;
        (time - member.v).clamp(-limit, limit)
    }

    /// Charges CPU time; true when the member's request is used up, and it has a new deadline.
    pub(super) fn charge(&mut self, key: u32, ran: u64, slice: i64) -> bool {
        let Some(at) = self.at(key) else { return false };
        let member = &mut self.members[at];
        member.v += (ran as i64).saturating_mul(UNIT) / member.weight;
        if member.v < member.deadline {
            return false;
        }
        member.deadline = member.v + slice * UNIT / member.weight;
        true
    }

    /// CPU time until the member's request is used up, at least 1 ns.
    pub(super) fn left(&self, key: u32) -> u64 {
        let Some(at) = self.at(key) else { return 1 };
        let member = &self.members[at];
        let left = i128::from(member.deadline - member.v) * i128::from(member.weight);
        u64::try_from((left.max(1) - 1) / i128::from(UNIT) + 1).unwrap_or(u64::MAX)
    }

    /// reweight_entity: lag and what is left of the request are kept in real time.
    pub(super) fn reweigh(&mut self, key: u32, weight: i64) {
        let weight = weight.max(2);
        let Some(at) = self.at(key) else { return };
        let time = self.time();
        let member = &mut self.members[at];
        if member.weight == weight {
            return;
        }
        let scaled = |span: i64, from: i64| truncated(i128::from(span) * i128::from(from), weight);
        let left = scaled(member.deadline - member.v, member.weight);
        member.v = time - scaled(time - member.v, member.weight);
        member.deadline = member.v + left;
        member.weight = weight;
        if let Some((current, until)) = &mut self.current
            && *current == key
        {
            *until = member.deadline;
        }
    }

    /// pick_eevdf. Who runs goes on until its request is used up.
    pub(super) fn best(&self) -> Option<u32> {
        if let Some((key, until)) = self.current
            && self.members.iter().any(|member| member.key == key && member.deadline == until)
        {
            return Some(key);
        }
        let time = self.time();
        let eligible = self.members.iter().filter(|member| member.v <= time);
        let first = eligible.min_by_key(|member| (member.deadline, member.key));
        // Somebody is always eligible but for rounding.
        first.or(self.members.iter().min_by_key(|member| (member.v, member.key))).map(|m| m.key)
    }

    /// `key` runs from now on.
    pub(super) fn run(&mut self, key: u32) {
        self.current = self.at(key).map(|at| (key, self.members[at].deadline));
    }

    /// Nobody runs.
    pub(super) fn rest(&mut self) {
        self.current = None;
    }

    /// yield_task_fair: the request is given up.
    pub(super) fn give_up(&mut self, key: u32, slice: i64) {
        if let Some(at) = self.at(key) {
            let member = &mut self.members[at];
            member.deadline += slice * UNIT / member.weight;
        }
    }

    /// For directed yield: the member's deadline becomes the first.
    pub(super) fn hurry(&mut self, key: u32) {
        let first = self.members.iter().map(|member| member.deadline).min();
        if let (Some(at), Some(first)) = (self.at(key), first) {
            let time = self.time();
            let member = &mut self.members[at];
            if member.v <= time {
                member.deadline = member.deadline.min(first - 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLICE: i64 = 3_000_000;

    #[test]
    fn who_ran_ahead_waits_for_the_others() {
        let mut line = Line::default();
        line.join(1, UNIT, 0, SLICE);
        line.join(2, UNIT, 0, SLICE);
        assert_eq!(line.best(), Some(1));
        line.run(1);
        assert!(!line.charge(1, 1_000_000, SLICE));
        assert_eq!(line.best(), Some(1), "until its request is used up");
        assert_eq!(line.left(1), 2_000_000);
        assert!(line.charge(1, 2_000_000, SLICE));
        assert_eq!(line.best(), Some(2));
    }

    #[test]
    fn lag_survives_sleep() {
        let mut line = Line::default();
        line.join(1, UNIT, 0, SLICE);
        line.join(2, UNIT, 0, SLICE);
        line.charge(1, 2_000_000, SLICE);
        let lag = line.leave(1, SLICE);
        assert_eq!(lag, -1_000_000);
        line.join(1, UNIT, lag, SLICE);
        assert_eq!(line.leave(1, SLICE), lag);
    }

    proptest! {
        #[test]
        fn time_goes_by_weight(a in 10i64..5000, b in 10i64..5000) {
            let mut line = Line::default();
            line.join(1, a, 0, SLICE);
            line.join(2, b, 0, SLICE);
            let mut ran = [0u64; 2];
            for _ in 0..20_000 {
                let key = line.best().unwrap();
                line.run(key);
                line.charge(key, 100_000, SLICE);
                ran[key as usize - 1] += 100_000;
            }
            let part = ran[0] as f64 / (ran[0] + ran[1]) as f64;
            let fair = a as f64 / (a + b) as f64;
            prop_assert!((part - fair).abs() < 0.02, "{} {}", part, fair);
        }
    }
}
