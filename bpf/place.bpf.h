/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where a thread that wakes up goes: an idle CPU, or the queue of which CPU.
 *
 * Problem: two siblings in one queue delay each other by whole slices (systems.md, 3, stacking);
 * two busy threads on one core slow each other (systems.md, 1); memory is on the home node.
 * Method, in this order:
 *   1. idle: the previous CPU if its whole core is idle; a wholly idle core of the home node; any
 *      idle CPU of it; then the same of all CPUs that the thread may use (the spill: the node is
 *      full, so it pays);
 *   2. none idle: the previous CPU if it is at home and no sibling is there, else the CPU without a
 *      sibling whose queue is shortest, where one of another node counts as AWAY_COSTS longer; where
 *      every CPU has one, that with the fewest. Threads that are no vCPUs take the emptier of two.
 *          length = waiting + (away ? AWAY_COSTS : 0)
 * One that never sleeps is looked at when its slice ends and nobody waits: where it is away while a CPU
 * at home is idle, or another vCPU runs on its core while a core is wholly idle, it is enqueued again and
 * goes there (`better_or_same`). Where somebody waits it queues again by methods 1 and 2.
 * One that a kernel thread bound to its CPU interrupts (`stay`) waits there, if nobody else does, and no
 * other CPU takes it: such threads are gone in microseconds, and a vCPU that left for any idle CPU each time
 * soon shared a core (seen: two on two cores of two threads were on one for a third of the time):
 *     stays    until a thread of another kind runs there, a tick finds the thread still there, a real-time
 *              thread comes (an idle CPU is called each time), or a slice is over
 * Limits: "idle core" is the kernel's notion (SMT siblings), not modules that share only decoders;
 * those are placement's. A CPU is counted as occupied while a sibling runs or waits there, not
 * while one sleeps that last ran there.
 */
#ifndef INSTEP_PLACE_BPF_H
#define INSTEP_PLACE_BPF_H

#include "queue.bpf.h"

/* By how many waiters a queue away from home counts as longer. */
#define AWAY_COSTS 4
/* A sibling on a CPU counts for more than any queue. */
#define SIBLING_COSTS (1u << 16)

/* Threads of a core, at most. */
#define MAX_THREADS 8

/* --- idle CPUs ---------------------------------------------------------------------------------- */

/* Whether an idle CPU may be had: no other VM holds it, and no sibling waits for it to wake up. */
static __always_inline bool is_free(struct task_state *t, s32 cpu, u64 now)
{
	struct cpu_state *c = cpu_of(cpu);

	return c && !held_from(c, t->vm, now) && !(on(INSTEP_M_BALANCE) && sibling_on(t, cpu));
}

/*
 * An idle CPU at home among the allowed that no other VM holds and no sibling is on: one of a wholly idle
 * core if there is one, and no other where `whole` is asked for.
 */
static __noinline s32 idle_among(struct task_struct *p, struct task_state *t, s32 home, u64 now,
				 bool whole)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	const struct cpumask *cores = scx_bpf_get_idle_smtmask();
	u32 n = SET.nr_cpus;
	s32 found = NO_CPU, cpu;

	if (n > INSTEP_MAX_CPUS)
		n = INSTEP_MAX_CPUS;
	bpf_for(cpu, 0, n) {
		if (!at_home(cpu, home) || !bpf_cpumask_test_cpu(cpu, idle) ||
		    !bpf_cpumask_test_cpu(cpu, p->cpus_ptr) || !is_free(t, cpu, now))
			continue;
		if (found == NO_CPU && !whole)
			found = cpu;
		if (!on(INSTEP_M_CORES) || bpf_cpumask_test_cpu(cpu, cores)) {
			found = cpu;
			break;
		}
	}
	scx_bpf_put_idle_cpumask(cores);
	scx_bpf_put_idle_cpumask(idle);
	return found;
}

/* Claims such a CPU; NO_CPU when there is none, or it was somebody's meanwhile. */
static __always_inline s32 claim_among(struct task_struct *p, struct task_state *t, s32 home, u64 now)
{
	s32 cpu = idle_among(p, t, home, now, false);

	return cpu >= 0 && scx_bpf_test_and_clear_cpu_idle(cpu) ? cpu : NO_CPU;
}

static __always_inline bool whole_core_idle(s32 cpu)
{
	const struct cpumask *cores = scx_bpf_get_idle_smtmask();
	bool idle = bpf_cpumask_test_cpu(cpu, cores);

	scx_bpf_put_idle_cpumask(cores);
	return idle;
}

static __always_inline bool any_idle(void)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	bool any = !bpf_cpumask_empty(idle);

	scx_bpf_put_idle_cpumask(idle);
	return any;
}

/* A vCPU's wake-up found an idle CPU: its VM has use for more than one. */
static __always_inline void note_idle(struct task_state *t)
{
	struct vm_state *v = vm_of(t->vm);

	if (t->slot != INSTEP_NO_SLOT && v)
		__sync_fetch_and_add(&v->idle_wakes, 1);
}

/* What was claimed away from home, or without one. */
static __always_inline s32 claimed(s32 cpu, s32 home, bool core)
{
	if (cpu < 0)
		return NO_CPU;
	count(home != INSTEP_NO_NODE ? INSTEP_C_IDLE_REMOTE :
	      core		     ? INSTEP_C_IDLE_CORE :
				       INSTEP_C_IDLE_CPU);
	return cpu;
}

/* Claims any idle CPU, a wholly idle core first. */
static __always_inline s32 claim_any(struct task_struct *p, struct task_state *t, s32 prev, s32 home,
				     u64 now)
{
	bool allowed;
	s32 cpu;

	/* What the kernel picks may be held, and once claimed nobody else would be sent there. */
	if (some_held(now))
		return claimed(claim_among(p, t, INSTEP_NO_NODE, now), home, false);
	allowed = bpf_cpumask_test_cpu(prev, p->cpus_ptr);
	/* Away from home, where no look at it was worth while yet: what it left in the caches is there. */
	if (home != INSTEP_NO_NODE && allowed && (!on(INSTEP_M_CORES) || whole_core_idle(prev)) &&
	    is_free(t, prev, now) && scx_bpf_test_and_clear_cpu_idle(prev))
		return claimed(prev, home, false);
	if (on(INSTEP_M_CORES)) {
		cpu = scx_bpf_pick_idle_cpu(p->cpus_ptr, SCX_PICK_IDLE_CORE);
		if (cpu >= 0)
			return claimed(cpu, home, true);
	}
	if (allowed && scx_bpf_test_and_clear_cpu_idle(prev))
		return claimed(prev, home, false);
	return claimed(scx_bpf_pick_idle_cpu(p->cpus_ptr, 0), home, false);
}

/* Claims an idle CPU for a thread that wakes up; NO_CPU when there is none. */
static __noinline s32 pick_idle(struct task_struct *p, struct task_state *t, s32 prev, u64 now)
{
	s32 home, cpu;

	if (!t || !any_idle())
		return NO_CPU;
	home = home_of(t);
	if (at_home(prev, home) && bpf_cpumask_test_cpu(prev, p->cpus_ptr) &&
	    (!on(INSTEP_M_CORES) || whole_core_idle(prev)) && is_free(t, prev, now) &&
	    scx_bpf_test_and_clear_cpu_idle(prev)) {
		count(home != INSTEP_NO_NODE ? INSTEP_C_IDLE_HOME :
		      on(INSTEP_M_CORES)     ? INSTEP_C_IDLE_CORE :
					       INSTEP_C_IDLE_CPU);
		return prev;
	}
	if (home != INSTEP_NO_NODE) {
		cpu = claim_among(p, t, home, now);
		if (cpu >= 0) {
			count(INSTEP_C_IDLE_HOME);
			return cpu;
		}
	}
	return claim_any(p, t, prev, home, now);
}

/* Whether another vCPU runs on the core of this CPU. */
static __always_inline bool shares_core(s32 cpu)
{
	struct cpu_state *c = cpu_of(cpu);
	s32 k;

	bpf_for(k, 0, MAX_THREADS - 1) {
		s32 other = c ? c->next_thread : cpu;

		(void)k;
		if (other == cpu)
			break;
		c = cpu_of(other);
		if (c && c->tid && c->slot != INSTEP_NO_SLOT)
			return true;
	}
	return false;
}

/*
 * The idle CPU that a vCPU which nobody delays would better have, not claimed: one at home, or a core of its
 * own (where it has a home, on the node where it is). NO_CPU when it has none better.
 */
static __noinline s32 better_cpu(struct task_struct *p, struct task_state *t, s32 cpu, u64 now)
{
	struct cpu_state *c = cpu_of(cpu);
	s32 home, found = NO_CPU;

	if (!t || !c || t->slot == INSTEP_NO_SLOT || p->nr_cpus_allowed == 1 ||
	    is_migration_disabled(p))
		return NO_CPU;
	home = home_of(t);
	if (!at_home(cpu, home))
		found = idle_among(p, t, home, now, false);
	if (found >= 0 || !on(INSTEP_M_CORES) || !shares_core(cpu))
		return found;
	return idle_among(p, t, home == INSTEP_NO_NODE ? home : c->node, now, true);
}

/*
 * Where one goes that was alone on `cpu` and was to have better: there, or on where it was, where another CPU
 * took that meanwhile.
 */
static __always_inline s32 better_or_same(struct task_struct *p, struct task_state *t, s32 cpu, u64 now)
{
	s32 found = better_cpu(p, t, cpu, now);

	if (found < 0 || !scx_bpf_test_and_clear_cpu_idle(found))
		return cpu;
	count(comes_home(t, cpu, found) ? INSTEP_C_CAME_HOME : INSTEP_C_CORE_LEFT);
	return found;
}

/* --- interrupted ------------------------------------------------------------------------------------ */

/* This thread takes this CPU at once: if it is one of the CPU's kernel threads what runs there waits for it. */
static __always_inline void interrupts(struct task_struct *p, struct cpu_state *c, s32 cpu, u64 now)
{
	if (on(INSTEP_M_STAY) && per_cpu_kthread(p) && !c->taken_at && !waiting_for(cpu))
		c->brief_until = now + SET.slice_ns;
}

/* Whether a vCPU that is to be queued again was interrupted so, on this CPU, where nobody else waits. */
static __always_inline bool interrupted(struct task_state *t, s32 cpu, u64 now, u64 enq_flags)
{
	struct cpu_state *c = cpu_of(cpu);

	return c && !(enq_flags & (SCX_ENQ_WAKEUP | SCX_ENQ_REENQ)) &&
	       t->slot != INSTEP_NO_SLOT && pol_before(now, c->brief_until) && online(cpu) &&
	       !held_from(c, t->vm, now) && !sibling_on(t, cpu) && !waiting_for(cpu);
}

/* Calls an idle CPU for the vCPU that stays in this one's queue, if there is one. */
SEPARATE int call_idle(s32 cpu, u64 now)
{
	struct task_struct *p;
	u32 seen = 0;

	if (!any_idle())
		return 0;
	bpf_for_each(scx_dsq, p, vm_queue(cpu), 0) {
		struct task_state *t = task_of(p);
		s32 home, found = NO_CPU;

		if (seen++ >= PICK_DEPTH)
			break;
		if (!t || !t->stays)
			continue;
		home = home_of(t);
		if (home != INSTEP_NO_NODE)
			found = idle_among(p, t, home, now, false);
		if (found < 0)
			found = idle_among(p, t, INSTEP_NO_NODE, now, false);
		if (found >= 0)
			scx_bpf_kick_cpu(found, SCX_KICK_IDLE);
		break;
	}
	return 0;
}

/* The interruption is over, or takes long: who waits for its end may be taken, and is to be. */
static __always_inline void let_go(struct cpu_state *c, s32 cpu, u64 now, u64 until)
{
	c->brief_until = until;
	if (waiting_for(cpu))
		call_idle(cpu, now);
}

/* --- none is idle -------------------------------------------------------------------------------- */

/* The allowed CPU with the fewest gathered VMs, at home if possible; `prev` among equals. */
static __noinline s32 choose_gather_cpu(struct task_struct *p, struct task_state *t, s32 prev)
{
	u32 n = SET.nr_cpus;
	u64 least = ~0ull;
	s32 best = NO_CPU, home, k;

	if (!t)
		return NO_CPU;
	home = home_of(t);
	if (n > INSTEP_MAX_CPUS)
		n = INSTEP_MAX_CPUS;
	bpf_for(k, 0, n) {
		s32 cpu = (prev + k) % n;
		struct cpu_state *c = cpu_of(cpu);
		u64 cost;

		if (!c || !online(cpu) || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		cost = c->gathered + (at_home(cpu, home) ? 0 : AWAY_COSTS);
		if (cost < least) {
			least = cost;
			best = cpu;
		}
	}
	return best;
}

/* Where a thread's VM is gathered, if it is and the thread may run there; else NO_CPU. */
static __noinline s32 gather_cpu_of(struct task_struct *p, struct task_state *t, s32 prev)
{
	struct vm_state *v;
	struct cpu_state *c;
	s32 cpu;

	if (!t || t->slot == INSTEP_NO_SLOT)
		return NO_CPU;
	v = vm_of(t->vm);
	if (!v || !gathered(v) || v->gang)
		return NO_CPU;
	cpu = v->gather_cpu;
	if (cpu == NO_CPU) {
		cpu = choose_gather_cpu(p, t, prev);
		c = cpu_of(cpu);
		if (c && __sync_val_compare_and_swap(&v->gather_cpu, NO_CPU, cpu) == NO_CPU)
			__sync_fetch_and_add(&c->gathered, 1);
	}
	if (!online(cpu) || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return NO_CPU;
	return cpu;
}

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
				  waiting_for(cpu) + (at_home(cpu, home) ? 0 : AWAY_COSTS);
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
	return !online(prev) || waiting_for(other) + 1 < waiting_for(prev) ? other : prev;
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
