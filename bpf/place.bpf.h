/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Balance: in whose queue a thread waits that found no idle CPU, siblings apart.
 *
 * Flag: balance. Counters: moved_apart, stacked.
 *
 * Problem: two siblings in one queue delay each other by whole slices (systems.md, 3, stacking).
 * Method: where its VM is gathered, there (gather.bpf.h). Else the previous CPU if it is at home and no
 * sibling is there, else the CPU without a sibling whose queue is shortest; where every CPU has one, that with
 * the fewest. Threads that are no vCPUs take the emptier of two.
 *     cost = siblings there ? siblings * SIBLING_COSTS : waiting + (away from home ? AWAY_COSTS : 0)
 * Limits: a CPU is counted as occupied while a sibling runs or waits there, not while one sleeps that last
 * ran there. Looking for the least cost is a load or two for each CPU.
 */
#ifndef INSTEP_PLACE_BPF_H
#define INSTEP_PLACE_BPF_H

#include "stay.bpf.h"

/* A sibling on a CPU counts for more than any queue. */
#define SIBLING_COSTS (1u << 16)

/*
 * The CPU without a sibling whose queue is shortest, at home if possible. Where every CPU has siblings the one
 * with the fewest, `prev` among equals (seen: three of four that spin on one CPU of two, which had a sixth
 * of what they have two by two).
 */
static __noinline s32 apart(struct task_struct *p, struct task_state *t, s32 prev)
{
	u32 n = SET.nr_cpus;
	u64 least = ~0ull;
	s32 best = NO_CPU, home, k;
	bool homeward;

	if (!t)
		return prev;
	home = home_of(t);
	homeward = online(prev) && !at_home(prev, home) && !sibling_on(t, prev);
	if (n > INSTEP_MAX_CPUS)
		n = INSTEP_MAX_CPUS;
	bpf_for(k, 0, n) {
		s32 cpu = (prev + k) % n;
		u64 siblings, cost;

		if (!online(cpu) || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		/* Who could wait here goes home or stays. */
		if (homeward && cpu != prev && !at_home(cpu, home))
			continue;
		siblings = on(INSTEP_M_BALANCE) ? siblings_on(t, cpu) : 0;
		cost = siblings ? siblings * SIBLING_COSTS :
				  waiting_near(cpu) + (at_home(cpu, home) ? 0 : AWAY_COSTS);
		if (cost < least) {
			least = cost;
			best = cpu;
		}
	}
	if (best == NO_CPU)
		return prev;
	if (sibling_on(t, best))
		count(INSTEP_C_STACKED);
	if (best != prev && sibling_on(t, prev))
		count(INSTEP_C_MOVED_APART);
	return best;
}

/* For a thread of no VM: of two CPUs, this one and another by chance, that where fewer wait. */
static __always_inline s32 emptier(struct task_struct *p, s32 prev)
{
	u32 n = SET.nr_cpus;
	s32 other;

	if (n < 2 || n > INSTEP_MAX_CPUS)
		return prev;
	other = bpf_get_prandom_u32() % n;
	if (other == prev || !online(other) || !bpf_cpumask_test_cpu(other, p->cpus_ptr))
		return prev;
	return !online(prev) || waiting_near(other) + 1 < waiting_near(prev) ? other : prev;
}

/* Whose queue a thread waits in. */
static __noinline s32 queue_for(struct task_struct *p, struct task_state *t, s32 prev)
{
	s32 cpu;

	if (p->nr_cpus_allowed == 1 || is_migration_disabled(p))
		return scx_bpf_task_cpu(p);
	if (prev < 0 || !bpf_cpumask_test_cpu(prev, p->cpus_ptr))
		prev = bpf_cpumask_first(p->cpus_ptr);
	if (t->slot == INSTEP_NO_SLOT)
		return emptier(p, prev);
	cpu = gather_cpu_of(p, t, prev);
	if (cpu >= 0)
		return cpu;
	if (online(prev) && at_home(prev, home_of(t)) &&
	    (!on(INSTEP_M_BALANCE) || !sibling_on(t, prev)))
		return prev;
	return apart(p, t, prev);
}

#endif
