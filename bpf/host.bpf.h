/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Threads of no VM: responsive beside VMs that never sleep, and no more than their share.
 *
 * Flag: host. Counters: kthreads_first, light_first.
 *
 * Problem: shells, I/O threads, kernel workers and the agent itself want a CPU for microseconds at a time
 * and must not wait for slices to end; a fork bomb among them must not take the host from the VMs.
 * Method: each has a virtual time of its own (`own`), by which they are ordered among each other, and
 * all together have one (`group`, weight `host_weight`), by which they are ordered among the VMs:
 *     rank = min(group, CPU's - slice / 2)    where own + slice / 2 < equals' and group < CPU's + debt / 2
 *            group                            else
 * so what mostly sleeps goes before VMs as long as all threads together are not far beyond their share.
 * Kernel threads bound to one CPU (timers, migration, block layer) that are behind their equals take the
 * CPU at once. Where the others had no slice for 96 ms (policy.h, POL_HOST_TURN_NS) they go first, until they had
 * one, in whatever pieces.
 * Limits: host threads wait in a queue per CPU and go to the emptier of two (place.bpf.h), so one may wait
 * while a third CPU has none; cgroups' weights are not followed among them; what computes all the time
 * has only what `host_weight` gives it.
 */
#ifndef INSTEP_HOST_BPF_H
#define INSTEP_HOST_BPF_H

#include "account.bpf.h"

/*
 * The virtual time of all threads of no VM, as a CPU sees it. What they use is one account, but what they
 * did not use is forgotten, or forgiven, by each CPU for itself: where CPUs advance at different speeds
 * one bound for all would leave the host behind on the slow ones (seen: 30 us of a thread waited for a
 * second, beside a VM of weight 10 on another CPU).
 */
static __always_inline u64 group_at(struct cpu_state *c)
{
	return INSTEP_STATE->group_vtime + c->group_lead;
}

/* About the longest that a thread of no VM waits for being ahead of `n` others of its CPU. */
#define LONGEST_WAIT (1000 * POL_MS)

/*
 * A thread of no VM that slept has at most a slice of claim left; none is further ahead than what
 * two slices cost it, nor than what makes it wait for a second: behind `n` others it waits for n
 * times its lead. (Seen: with 200 others one of nice 19, to which a slice costs a hundred, waited
 * beyond the watchdog's limit.)
 */
static __always_inline void bound_own(struct task_state *t, struct cpu_state *c, u32 n)
{
	u64 least = c->host_vtime - SET.slice_ns;
	u64 lead = pol_min(2 * pol_cost(SET.slice_ns, t->weight),
			   pol_max(SET.slice_ns, LONGEST_WAIT / (n + 1)));

	t->vtime = pol_min(pol_max(t->vtime, least), c->host_vtime + lead);
	c->group_lead += pol_clamp(group_at(c), c->vtime, SET.debt_ns) - group_at(c);
}

static __always_inline bool per_cpu_kthread(struct task_struct *p)
{
	return (p->flags & PF_KTHREAD) && p->nr_cpus_allowed == 1;
}

/* Per-CPU kernel threads that use little go before everything. */
static __always_inline bool goes_first(struct task_struct *p, struct task_state *t,
				       struct cpu_state *c)
{
	return on(INSTEP_M_HOST) && per_cpu_kthread(p) && pol_before(t->vtime, c->host_vtime);
}

/* A thread of no VM runs that is not one of those; `first`: for having waited too long. */
static __always_inline void host_turn_begins(struct task_state *t, struct cpu_state *c, u64 now, bool first)
{
	c->host_owed = first ? c->host_ran_at ?: t->queued_at : 0;
	if (!first)
		c->host_had = 0;
	c->host_ran_at = now;
}

/* It stops, if it was overdue: what it left of the slice is for the others (seen: 20 us were the turn of all). */
static __always_inline void host_turn_ends(struct task_state *t, struct cpu_state *c, u64 now)
{
	c->host_had += pol_since(t->came_at, now);
	if (c->host_had < SET.slice_ns)
		c->host_ran_at = c->host_owed;
	else
		c->host_had = 0;
	c->host_owed = 0;
}

/* The rank of a thread of no VM with this own virtual time. */
static __always_inline u64 host_rank(u64 own, struct cpu_state *c)
{
	u64 behind = on(INSTEP_M_HOST) ? pol_behind(own, c->host_vtime) : 0;

	return pol_host_rank(behind, group_at(c), c->vtime, SET.slice_ns / 2, SET.debt_ns / 2);
}

#endif
