/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Threads that change their CPU while they wait: stealing and pulling.
 *
 * Flag: pull (stealing has none: a CPU would idle beside waiters). Counters: stolen, pulled.
 *
 * Problem: a CPU without work must not stay idle while another's queue is not empty, and of two busy CPUs one may
 * serve a VM that is far behind while the other serves those that are far ahead.
 * Method: a CPU without anything looks at all queues, those of its own node first (`steal`). With nothing better to
 * do than to go on, or where another CPU lags, it looks at one other queue in turn for a waiter more than
 * `pull_ns` behind what it would choose (`pull`): so virtual times stay together across queues:
 *     waiter + pull_ns * (leaves its home ? 1 + AWAY_PULLS : 1) < chosen
 * What waits for longer than `pull_ns` behind a VM that is gathered there is taken over by a CPU that is not
 * behind.
 * Limits: pulling looks at one queue at a time; on n CPUs a waiter is found after n slices at most of those that
 * look. Stealing goes over all CPUs twice, a load each; who is counted as waiting but taken already costs a look at
 * a queue.
 */
#ifndef INSTEP_PULL_BPF_H
#define INSTEP_PULL_BPF_H

#include "queue.bpf.h"

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
		if (!o || !o->waiting || other == cpu || (k < (s32)n && o->node != c->node))
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
	if (!waiting_near(other) || (waiting_for(cpu) && !lags(other, rank->vtime)))
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
