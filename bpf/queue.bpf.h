/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Choosing from the queues: two per CPU, one for threads of VMs, ordered by their VMs' virtual time
 * at the moment of queueing, one for all others, ordered by their own.
 *
 * Problem: the order of a queue grows stale, and a CPU without work must not stay idle while
 * another's queue is not empty.
 * Method: a CPU looks at the first PICK_DEPTH threads of its queue, ranks them as of now and takes
 * the best: the best of those that run together and the best of the others are found apart, then
 * compared by virtual time (policy.h). A CPU without anything looks at all queues, those of its own
 * node first. With nothing better to do than to go on, or where another CPU lags, it looks at
 * one other queue in turn for a waiter more than `pull_ns` behind what it would choose: so virtual
 * times stay together across queues:
 *     waiter + pull_ns * (leaves its home ? 1 + AWAY_PULLS : 1) < chosen
 * Limits: the verifier allows one queue iteration per function, so a choice is made in one and
 * carried out in another; what was chosen may be gone by then (INSTEP_C_MISSED), which costs a
 * second look. With more than PICK_DEPTH waiters stale keys decide who is looked at.
 */
#ifndef INSTEP_QUEUE_BPF_H
#define INSTEP_QUEUE_BPF_H

#include "rank.bpf.h"
#include "where.bpf.h"

#define PICK_DEPTH 24

/* By how many times `pull_ns` more a waiter must be behind that another node takes from its home. */
#define AWAY_PULLS 3

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
 * stay where it is until a kernel thread of that CPU is gone again (place.bpf.h).
 */
static __always_inline bool may_join(struct task_struct *p, struct task_state *t, s32 from, s32 cpu,
				     u64 now)
{
	struct cpu_state *c = cpu_of(cpu), *o = cpu_of(from);

	if (!c || !o || !may_run_on(p, cpu) || (t->stays && pol_before(now, o->brief_until)))
		return false;
	return !on(INSTEP_M_BALANCE) || !sibling_on(t, cpu) || (c->tid && c->vm == t->vm);
}

/* Finds the best thread of one queue for `cpu`; `depth` threads are looked at. */
SEPARATE int best_in(u32 queue, s32 cpu, u64 now, u32 depth, struct choice *out)
{
	struct cpu_state *c = cpu_of(cpu);
	struct choice gang = { .queue = queue }, other = { .queue = queue };
	s32 from = within(queue, INSTEP_MAX_CPUS);
	bool own = queue == vm_queue(cpu) || queue == host_queue(cpu);
	struct task_struct *p;
	u32 seen = 0;

	if (!c || !out)
		return 0;
	bpf_for_each(scx_dsq, p, queue, 0) {
		struct task_state *t = task_of(p);
		struct pol_rank rank = {};

		if (seen++ >= depth)
			break;
		if (!t || (!own && !may_join(p, t, from, cpu, now)) || held_from(c, t->vm, now))
			continue;
		rank_of(t, c, now, &rank);
		if (!own && leaves_home(t, from, cpu))
			rank.vtime += AWAY_PULLS * SET.pull_ns;
		if (rank.gang) {
			if (!gang.tid || pol_gang_before(rank, gang.rank)) {
				gang.rank = rank;
				gang.tid = p->pid;
				gang.slot = t->slot;
			}
		} else if (!other.tid || pol_before(rank.vtime, other.rank.vtime)) {
			other.rank = rank;
			other.tid = p->pid;
			other.slot = t->slot;
		}
	}
	if (!gang.tid || (other.tid && pol_before(other.rank.vtime, gang.rank.vtime)))
		*out = other;
	else
		*out = gang;
	return 0;
}

/*
 * Finds the best of what waits for `from`, to run on `cpu`. Threads of no VM wait in the order of
 * their claims, so the first that may run there is the best of them.
 */
SEPARATE int best_for(s32 from, s32 cpu, u64 now, struct choice *out)
{
	struct choice host = {};

	if (!out)
		return 0;
	if (scx_bpf_dsq_nr_queued(vm_queue(from)))
		best_in(vm_queue(from), cpu, now, PICK_DEPTH, out);
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
SEPARATE int take(u32 queue, s32 cpu, u32 tid)
{
	bool own = queue == vm_queue(cpu) || queue == host_queue(cpu);
	struct task_struct *p;
	bool taken = false;
	u32 seen = 0;

	if (own && scx_bpf_dsq_nr_queued(queue) == 1 && scx_bpf_dsq_move_to_local(queue, 0))
		return true;
	bpf_for_each(scx_dsq, p, queue, 0) {
		if (seen++ > PICK_DEPTH)
			break;
		if ((u32)p->pid != tid)
			continue;
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

/* Takes the best of what waits for another CPU. */
SEPARATE int take_best(s32 from, s32 cpu, u64 now)
{
	struct choice best = {};

	if (!waiting_for(from))
		return false;
	best_for(from, cpu, now, &best);
	return best.tid && take(best.queue, cpu, best.tid);
}

/* Looks at the queues of all CPUs, in two rounds: own node, then all. */
SEPARATE int steal(s32 cpu, u64 now)
{
	struct cpu_state *c = cpu_of(cpu);
	u32 n = SET.nr_cpus;
	s32 k;

	if (!c || n > INSTEP_MAX_CPUS)
		return false;
	bpf_for(k, 1, 2 * n) {
		s32 other = cpu + k;
		struct cpu_state *o;

		other %= n;
		o = cpu_of(other);
		if (!o || other == cpu || (k < (s32)n && o->node != c->node))
			continue;
		if (take_best(other, cpu, now)) {
			count(INSTEP_C_STOLEN);
			return true;
		}
	}
	return false;
}

/*
 * How long the chosen thread has waited behind a VM that is gathered on its CPU; else 0. Such a VM
 * may take all of a CPU within its share, while a sibling of the waiter takes all of another.
 */
static __always_inline u64 waited(struct choice *best, s32 cpu, u64 now)
{
	struct slot_info *i = slot_of(best->slot);
	struct cpu_state *c = cpu_of(cpu);

	if (!c || !c->gathered)
		return 0;
	return i && pol_before(i->queued_at, now) ? now - i->queued_at : 0;
}

/* Whether what a CPU chose last is far behind. Two loads, where a look at its queue is dear. */
static __always_inline bool lags(s32 cpu, u64 vtime)
{
	struct cpu_state *c = cpu_of(cpu);

	return c && pol_before(c->vtime + SET.pull_ns, vtime);
}

/* Whether a waiter elsewhere is so far behind `rank` that this CPU should take it over. */
SEPARATE int pull(s32 cpu, u64 now, struct pol_rank *rank)
{
	struct choice best = {};
	u32 n = SET.nr_cpus;
	s32 other;

	if (!on(INSTEP_M_PULL) || !rank || n < 2)
		return false;
	/* A different one each time, without a counter. */
	other = (cpu + 1 + (now >> 20) % (n - 1)) % n;
	if (!waiting_for(other) || (waiting_for(cpu) && !lags(other, rank->vtime)))
		return false;
	best_for(other, cpu, now, &best);
	if (!best.tid ||
	    !pol_pulls(best.rank.vtime, rank->vtime, waited(&best, other, now), SET.pull_ns))
		return false;
	if (!take(best.queue, cpu, best.tid))
		return false;
	count(INSTEP_C_PULLED);
	return true;
}

#endif
