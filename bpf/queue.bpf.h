/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Choosing from the queues: two per CPU, one for threads of VMs, ordered by their VMs' virtual time
 * at the moment of queueing, one for all others, ordered by their own.
 *
 * Flag: none (a CPU must choose). Counters: switches, missed, tick_preempt.
 *
 * Problem: the order of a queue grows stale, as a VM's virtual time moves on with every sibling that runs.
 * Method: a CPU looks at the first PICK_DEPTH threads of its queue, ranks them as of now and takes
 * the best: the best of those that run together and the best of the others are found apart, then
 * compared by virtual time (policy.h). A queue longer than that is gone through for who is overdue,
 * LOOK_DEPTH deep, every DEEP_SLICES slices. Of another CPU's queue those count that may come, among the first
 * PICK_DEPTH * SKIPPED:
 *     chosen = least rank of the first PICK_DEPTH, or who is overdue for longest among LOOK_DEPTH
 * Limits: the verifier allows one queue iteration per function, so a choice is made in one and
 * carried out in another; what was chosen may be gone by then (INSTEP_C_MISSED), which costs a
 * second choice.
 */
#ifndef INSTEP_QUEUE_BPF_H
#define INSTEP_QUEUE_BPF_H

#include "rank.bpf.h"
#include "home.bpf.h"
#include "waiting.bpf.h"

#define PICK_DEPTH 24
#define LOOK_DEPTH 1024
#define SKIPPED 32
#define DEEP_SLICES 4

struct choice {
	struct pol_rank rank;
	u32 tid; /* 0: none */
	u32 queue;
	u32 slot;
};

static __always_inline u32 vm_queue(s32 cpu)
{
	return cpu;
}

static __always_inline u32 host_queue(s32 cpu)
{
	return INSTEP_MAX_CPUS + cpu;
}

static __always_inline s32 waiting_for(s32 cpu)
{
	return scx_bpf_dsq_nr_queued(vm_queue(cpu)) + scx_bpf_dsq_nr_queued(host_queue(cpu));
}

static __always_inline bool may_run_on(struct task_struct *p, s32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr) && !is_migration_disabled(p);
}

/*
 * Whether a thread of another CPU's queue may come to `cpu`: allowed there, no sibling waits, and it does not
 * stay where it is until a kernel thread of that CPU is gone again (stay.bpf.h).
 */
static __always_inline bool may_join(struct task_struct *p, struct task_state *t, s32 from, s32 cpu,
				     u64 now)
{
	struct cpu_state *c = cpu_of(cpu), *o = cpu_of(from);

	if (!c || !o || !may_run_on(p, cpu) || (t->stays && pol_before(now, o->brief_until)))
		return false;
	return !on(INSTEP_M_BALANCE) || !sibling_on(t, cpu) || (c->tid && c->vm == t->vm);
}

/* Finds the best thread of one queue for `cpu`; `depth` threads that may run there are looked at. */
SEPARATE int best_in(u32 queue, s32 cpu, u64 now, u32 depth, struct choice *out)
{
	struct cpu_state *c = cpu_of(cpu);
	struct choice other = { .queue = queue }; /* gang siblings go to *out: the stack is short */
	s32 from = within(queue, INSTEP_MAX_CPUS);
	bool own = queue == vm_queue(cpu) || queue == host_queue(cpu);
	struct task_struct *p;
	u32 seen = 0, ranked = 0;

	if (!c || !out)
		return 0;
	out->queue = queue;
	out->tid = 0;
	bpf_for_each(scx_dsq, p, queue, 0) {
		struct task_state *t = task_of(p);
		struct pol_rank rank = {};

		if (seen++ >= depth * SKIPPED)
			break;
		if (!t || (!own && !may_join(p, t, from, cpu, now)) || held_from(c, t->vm, now))
			continue;
		if (ranked++ >= depth)
			break;
		rank_of(t, c, now, &rank);
		if (!own && leaves_home(t, from, cpu))
			rank.vtime += AWAY_PULLS * SET.pull_ns;
		if (rank.gang) {
			if (!out->tid || pol_gang_before(rank, out->rank)) {
				out->rank = rank;
				out->tid = p->pid;
				out->slot = t->slot;
			}
		} else if (!other.tid || pol_before(rank.vtime, other.rank.vtime)) {
			other.rank = rank;
			other.tid = p->pid;
			other.slot = t->slot;
		}
	}
	if (other.tid && (!out->tid || pol_before(other.rank.vtime, out->rank.vtime)))
		*out = other;
	return 0;
}

/* Finds who has been overdue for longest in a CPU's own queue, now and then: all of it, `depth` threads. */
SEPARATE int find_overdue(s32 cpu, u64 now, u32 depth, struct choice *out)
{
	struct cpu_state *c = cpu_of(cpu);
	struct task_struct *p;
	u32 seen = 0;

	if (!c || !out || held(c, now) || pol_before(now, c->deep_at + DEEP_SLICES * SET.slice_ns) ||
	    pol_before(now, c->first_at + FIRST_SLICES * SET.slice_ns))
		return 0;
	c->deep_at = now;
	bpf_for_each(scx_dsq, p, vm_queue(cpu), 0) {
		struct task_state *t = task_of(p);
		struct pol_rank rank = {};

		if (seen++ >= depth)
			break;
		if (!t || !overdue(t, c, now) || held_from(c, t->vm, now))
			continue;
		rank_of(t, c, now, &rank);
		if (!out->tid || pol_before(rank.vtime, out->rank.vtime)) {
			out->rank = rank;
			out->tid = p->pid;
			out->slot = t->slot;
			out->queue = vm_queue(cpu);
		}
	}
	return 0;
}

/*
 * Finds the best of what waits for `from`, to run on `cpu`. Threads of no VM wait in the order of
 * their claims, so the first that may run there is the best of them.
 */
SEPARATE int best_for(s32 from, s32 cpu, u64 now, struct choice *out)
{
	struct choice host = {};
	s32 queued = scx_bpf_dsq_nr_queued(vm_queue(from));

	if (!out)
		return 0;
	if (queued)
		best_in(vm_queue(from), cpu, now, PICK_DEPTH, out);
	if (queued > PICK_DEPTH && from == cpu)
		find_overdue(cpu, now, LOOK_DEPTH, out);
	if (!scx_bpf_dsq_nr_queued(host_queue(from)))
		return 0;
	best_in(host_queue(from), cpu, now, from == cpu ? 1 : PICK_DEPTH, &host);
	/* Of equals the host's: both are overdue, and its threads are so but once in a while. */
	if (host.tid && (!out->tid || !pol_before(out->rank.vtime, host.rank.vtime)))
		*out = host;
	return 0;
}

/*
 * Puts the chosen thread of a queue on `cpu`, which dispatches; false if it is gone. One of another
 * CPU's queue is on this one at once: what ran here must not queue behind its sibling.
 */
SEPARATE int take_one(u32 queue, s32 cpu, u32 tid, u32 depth)
{
	bool own = queue == vm_queue(cpu) || queue == host_queue(cpu);
	struct task_struct *p;
	bool taken = false;
	u32 seen = 0;

	if (own && scx_bpf_dsq_nr_queued(queue) == 1 && scx_bpf_dsq_move_to_local(queue, 0))
		return true;
	bpf_for_each(scx_dsq, p, queue, 0) {
		if (seen++ >= depth)
			break;
		if ((u32)p->pid != tid)
			continue;
		/* It may have been bound elsewhere, and be back in this queue, since it was chosen. */
		if (!own && !may_run_on(p, cpu))
			break;
		taken = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
		if (taken && !own) {
			leave(task_of(p));
			arrive(task_of(p), cpu);
		}
		break;
	}
	if (!taken)
		count(INSTEP_C_MISSED);
	return taken;
}

static __always_inline bool take(u32 queue, s32 cpu, u32 tid)
{
	/* As an argument, of which the verifier knows nothing: it would go through a loop to a constant. */
	return take_one(queue, cpu, tid, LOOK_DEPTH);
}

/*
 * Whether somebody on a CPU is further behind a VM than an episode may lead: it would not be let go
 * first there, so a strict episode does not hold the CPU either (strict.bpf.h).
 */
SEPARATE int owed_more(s32 cpu, u32 vm, u64 now)
{
	struct cpu_state *c = cpu_of(cpu);
	struct choice best = {};
	u64 least;

	if (!c)
		return false;
	if (has_turn(c, now))
		return true;
	least = (on(INSTEP_M_SHARES) ? vm_vtime(vm) : c->vtime) - POL_LEAD_NS;
	if (on(INSTEP_M_SHARES) && c->tid && c->vm != INSTEP_HOST &&
	    pol_before(vm_vtime(c->vm), least))
		return true;
	best_in(vm_queue(cpu), cpu, now, PICK_DEPTH, &best);
	return best.tid && pol_before(best.rank.vtime, least);
}

/* How long what was chosen may run on a CPU. */
static __always_inline u64 slice_of(struct task_state *t, s32 cpu, struct pol_rank *rank, u64 now)
{
	struct vm_state *v = vm_of(t->vm);

	return pol_slice(*rank, now, v ? v->episode_until : 0, SET.slice_ns, siblings_on(t, cpu));
}

#endif
