/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Idle CPUs: which one a thread that wakes up takes, and whole cores before halves.
 *
 * Flag: cores (home: home.bpf.h; balance: place.bpf.h). Counters: idle_core, idle_cpu, cores_left.
 *
 * Problem: two busy threads on one core slow each other (systems.md, 1), and who never sleeps stays beside the
 * other although a core is idle meanwhile.
 * Method: the previous CPU if its whole core is idle; a wholly idle core of the home node; any idle CPU of it; then
 * the same of all CPUs that the thread may use (the spill: the node is full, so it pays). One on which a sibling
 * waits is none, nor one that a strict episode holds for another VM.
 * One that never sleeps is looked at when its slice ends and nobody waits: where it is away while a CPU at home is
 * idle, or another vCPU runs on its core while a core is wholly idle, it is enqueued again and goes there
 * (`better_or_same`).
 *     claimed = first of (previous, home, any) x (whole core idle, idle)
 *     leaves  where busy threads of its core > 1 and a wholly idle core is on its node (anywhere without a home)
 * Limits: "idle core" is the kernel's notion (SMT siblings), not modules that share only decoders; those are
 * placement's.
 */
#ifndef INSTEP_IDLE_BPF_H
#define INSTEP_IDLE_BPF_H

#include "pull.bpf.h"

/* Threads of a core, at most. */
#define MAX_THREADS 8

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
		if (!bpf_cpumask_test_cpu(cpu, idle) || !at_home(cpu, home) ||
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
	bool allowed, core;
	s32 cpu;

	/* Most of what the kernel would pick may be held. */
	if (some_held(now))
		return claimed(claim_among(p, t, INSTEP_NO_NODE, now), home, false);
	allowed = bpf_cpumask_test_cpu(prev, p->cpus_ptr);
	/* Away from home, where no look at it was worth while yet: what it left in the caches is there. */
	if (home != INSTEP_NO_NODE && allowed && (!on(INSTEP_M_CORES) || whole_core_idle(prev)) &&
	    is_free(t, prev, now) && scx_bpf_test_and_clear_cpu_idle(prev))
		return claimed(prev, home, false);
	cpu = on(INSTEP_M_CORES) ? scx_bpf_pick_idle_cpu(p->cpus_ptr, SCX_PICK_IDLE_CORE) : NO_CPU;
	core = cpu >= 0;
	if (!core) {
		if (allowed && is_free(t, prev, now) && scx_bpf_test_and_clear_cpu_idle(prev))
			return claimed(prev, home, false);
		cpu = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	}
	if (cpu < 0 || is_free(t, cpu, now))
		return claimed(cpu, home, core);
	/* A sibling waits there for it to wake up; once claimed nobody else would call it. */
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	return claimed(claim_among(p, t, INSTEP_NO_NODE, now), home, false);
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

#endif
