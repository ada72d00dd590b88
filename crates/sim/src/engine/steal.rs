//! Backtracking-based work stealing: an idle worker asks another at random; the victim, when it
//! executes, goes back to its oldest choice and gives away about half of what is left.
//!
//! A pool's work is a number that can be divided down to a grain. A victim whose vCPU does not run
//! cannot answer; the thief spins until it does. Who finds nothing asks again after a pause that
//! doubles up to [`LONGEST`], so that the end of a round costs few events.

use super::{Engine, Limit, State};
use crate::guest::objects::NONE;
use crate::params::ONE;

/// Nanoseconds between two requests at first. Assumed, because none is published: a round trip between
/// two caches (0.2 us) and a look at the stack.
const FIRST: u64 = 1_000;
/// The longest time between two requests. Assumed: about as long as the smallest task that is given away, so
/// that a worker that waits for one is late by no more than that.
const LONGEST: u64 = 32_000;

impl Engine {
    /// A thread becomes a worker. The first to come has all the work.
    pub(super) fn join_pool(&mut self, thread: u32, pool: usize) {
        // Its program never goes past this operation.
        self.threads[thread as usize].at -= 1;
        let vm = self.threads[thread as usize].vm;
        let state = &mut self.objects[vm].pools[pool];
        if state.busy == 0 {
            self.new_round(thread, pool);
        } else {
            self.ask(thread);
        }
    }

    fn pool_of(&self, thread: u32) -> usize {
        let state = &self.threads[thread as usize];
        match self.programs[state.vm][state.program].get(state.at as usize) {
            Some(crate::guest::program::Op::Steal { pool }) => *pool as usize,
            _ => 0,
        }
    }

    fn new_round(&mut self, thread: u32, pool: usize) {
        let state = &mut self.threads[thread as usize];
        let pool = &mut self.objects[state.vm].pools[pool];
        pool.busy += 1;
        state.left = pool.plan.round.max(1).saturating_mul(ONE);
        state.state = State::Pool;
        state.round = 0;
    }

    /// A worker has done what it had.
    pub(super) fn pool_over(&mut self, thread: u32) {
        let pool = self.pool_of(thread);
        self.refuse(thread);
        let vm = self.threads[thread as usize].vm;
        self.objects[vm].pools[pool].busy -= 1;
        if self.objects[vm].pools[pool].busy == 0 {
            self.tally[vm].units += u64::from(self.threads[thread as usize].measured);
            self.new_round(thread, pool);
        } else {
            self.ask(thread);
        }
    }

    /// An idle worker asks another for work and spins until it answers.
    pub(super) fn ask(&mut self, thread: u32) {
        let pool = self.pool_of(thread);
        let vm = self.threads[thread as usize].vm;
        let members = self.objects[vm].pools[pool].members.len() as u64;
        let grain = self.objects[vm].pools[pool].plan.grain.saturating_mul(ONE);
        let drawn = self.ctx.rng.below(members.max(1)) as usize;
        let victim = self.objects[vm].pools[pool].members.get(drawn).copied().unwrap_or(thread);
        if let Some(cpu) = self.running_thread(victim).filter(|_| victim != thread) {
            self.account_elapsed(cpu);
        }
        let other = &mut self.threads[victim as usize];
        let promising = victim != thread
            && other.state == State::Pool
            && other.asked == NONE
            && other.left > grain.saturating_mul(2);
        if !promising {
            self.pause(thread);
            return;
        }
        other.asked = thread;
        let own = &mut self.threads[thread as usize];
        (own.state, own.left) = (State::Spin(Limit::Ask), u64::MAX);
        if let Some(cpu) = self.running_thread(victim) {
            self.serve(cpu, victim);
            self.arm_run(cpu);
        }
    }

    /// A worker that executes on `cpu` answers who asked it.
    pub(super) fn serve(&mut self, cpu: usize, victim: u32) {
        let thief = std::mem::replace(&mut self.threads[victim as usize].asked, NONE);
        if thief == NONE {
            return;
        }
        let pool = self.pool_of(victim);
        let vm = self.threads[victim as usize].vm;
        let plan = self.objects[vm].pools[pool].plan;
        let uneven = self.ctx.rng.below(u64::from(plan.uneven.min(100)) + 1);
        let left = &mut self.threads[victim as usize].left;
        let given = (*left / 2) / 100 * (100 - uneven);
        if given <= plan.grain.saturating_mul(ONE) {
            self.pause(thief);
        } else {
            *left -= given;
            self.objects[vm].pools[pool].busy += 1;
            self.tally[vm].steals += 1;
            let own = &mut self.threads[thief as usize];
            (own.state, own.left, own.round) = (State::Pool, given, 0);
            self.cost(cpu, plan.give);
        }
        if let Some(other) = self.running_thread(thief).filter(|other| *other != cpu) {
            self.account_elapsed(other);
            self.set_speed(other);
            self.arm_run(other);
        }
    }

    /// A worker whose work is done gives nothing to who asked it.
    fn refuse(&mut self, victim: u32) {
        let thief = std::mem::replace(&mut self.threads[victim as usize].asked, NONE);
        if thief == NONE {
            return;
        }
        self.pause(thief);
        if let Some(cpu) = self.running_thread(thief) {
            self.account_elapsed(cpu);
            self.arm_run(cpu);
        }
    }

    /// A worker spins for a while before it asks again.
    fn pause(&mut self, thread: u32) {
        let state = &mut self.threads[thread as usize];
        let pause = (FIRST << state.round.min(16)).min(LONGEST);
        state.round += 1;
        (state.state, state.left) = (State::Spin(Limit::Ask), pause);
    }
}
