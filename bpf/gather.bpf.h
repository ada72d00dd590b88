/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gathering: a VM whose vCPUs hand over to each other at a fine grain runs on one CPU.
 *
 * Flag: gather. Counters: gather_trials, gather_on, gather_off, handed_over.
 *
 * Problem: apart, each hand-over costs two switches, an interrupt to another CPU and a neighbour's
 * slice; on one CPU the waker goes on, sleeps, and the woken follows: one switch. A VM that is given
 * about one CPU loses no parallelism by it (it has no more time to be parallel with), and below some
 * hundred microseconds the saving is more than all that keeping siblings apart wins (measured:
 * docs/decisions/0011).
 * Method: evidence, then a trial. In windows of 48 ms (gang.bpf.h) a VM shows CPU time, wake-ups
 * by siblings, wake-ups that found an idle CPU. After TRIAL_WINDOWS in a row in which it might pay
 * (policy.h, pol_may_gather) it is gathered for as many more, and stays so if
 *     wake-ups by siblings / CPU time
 * grew (pol_gather_pays). It is looked at again each window, and tried anew after KEEP_NS; a trial
 * that failed comes again after 1, 2, 4 ... 64 s.
 * The CPU is the allowed one with the fewest gathered VMs, at home if there is a home. A sibling's
 * wake-up on it goes into the CPU's own queue for as long as the VM's stint lasts, past ops.enqueue
 * and ops.dispatch.
 * Never: while a CPU is idle (a wake-up takes that instead, and such a VM is soon apart again), with
 * co-scheduling in force, or beside a VM that is known to spin: kept together by a trial, by
 * setting, or seen to yield. Such a one needs both CPUs at once.
 * Limits: what a guest gets done is not visible, only that its vCPUs wake each other; a VM that spins
 * before it blocks may wake more often and do less, which is why trials together go first. A VM
 * that never blocks might compute or spin at user level, which nothing tells apart from outside:
 * beside one the gain must be three times as large, and a setting (cosched relaxed) protects it.
 * Only onto one CPU, not onto few.
 */
#ifndef INSTEP_GATHER_BPF_H
#define INSTEP_GATHER_BPF_H

#include "account.bpf.h"
#include "home.bpf.h"

#define TRIAL_WINDOWS 8
#define KEEP_NS (16000 * POL_MS)
#define SPINNER_NS (1000 * POL_MS)

enum gather_state { GATHER_APART, GATHER_TRIED, GATHER_KEPT };

static __always_inline bool gathered(struct vm_state *v)
{
	return v->gathered != GATHER_APART;
}

static __always_inline void add_window(struct pol_handover *sum, struct pol_handover *window)
{
	sum->ran_ns += window->ran_ns;
	sum->wall_ns += window->wall_ns;
	sum->wakes += window->wakes;
	sum->idle += window->idle;
}

/* Where a VM is gathered is counted by who sets it, before, and by who takes it back, after. */
static __always_inline void set_gather_cpu(struct vm_state *v, struct cpu_state *c, s32 cpu)
{
	__sync_fetch_and_add(&c->gathered, 1);
	if (__sync_val_compare_and_swap(&v->gather_cpu, NO_CPU, cpu) != NO_CPU)
		__sync_fetch_and_sub(&c->gathered, 1);
}

static __always_inline void leave_gather_cpu(struct vm_state *v)
{
	s32 cpu = v->gather_cpu;
	struct cpu_state *c = cpu_of(cpu);

	if (c && __sync_val_compare_and_swap(&v->gather_cpu, cpu, NO_CPU) == cpu)
		__sync_fetch_and_sub(&c->gathered, 1);
}

static __always_inline void set_gathered(struct vm_state *v, u32 state)
{
	if (!gathered(v) || state == GATHER_APART)
		leave_gather_cpu(v);
	v->gathered = state;
	v->gather_windows = 0;
	v->with = (struct pol_handover){};
}

static __always_inline void ungather(struct vm_state *v, u32 vm, u64 now, u64 gap)
{
	set_gathered(v, GATHER_APART);
	v->apart = (struct pol_handover){};
	v->gather_at = now + gap;
	count(INSTEP_C_GATHER_OFF);
	emit(now, INSTEP_E_GATHER_OFF, vm, v->sibling_wakes, v->ran_ns);
}

/* The end of a trial: what was done apart against what was done gathered. */
static __always_inline void judge_trial(struct vm_state *v, u32 vm, u64 now)
{
	u32 gain = pol_since(INSTEP_STATE->gang_at, now) < SPINNER_NS ? POL_GAIN_BESIDE_GANGS : POL_GAIN;

	if (!pol_gather_pays(v->apart, v->with, gain)) {
		v->gather_gap = pol_probe_next(v->gather_gap);
		ungather(v, vm, now, v->gather_gap);
		return;
	}
	count(INSTEP_C_GATHER_ON);
	emit(now, INSTEP_E_GATHER_KEPT, vm, v->with.wakes, v->with.ran_ns);
	v->gather_gap = 0;
	v->gather_at = now + KEEP_NS;
	v->gathered = GATHER_KEPT;
}

/* At the end of a window of evidence. */
static __always_inline void weigh_gathering(struct vm_state *v, u32 vm, u64 wall, u64 now)
{
	struct pol_handover window = { .ran_ns = v->ran_ns, .wall_ns = wall,
				       .wakes = v->sibling_wakes, .idle = v->idle_wakes };
	bool may = on(INSTEP_M_GATHER) && SET.nr_cpus > 1 && !v->gang &&
		   pol_may_gather(window, gathered(v)) &&
		   pol_since(INSTEP_STATE->spinner_at, now) > SPINNER_NS;

	if (!may) {
		if (gathered(v))
			ungather(v, vm, now, POL_PROBE_FIRST_NS);
		v->apart = (struct pol_handover){};
		v->gather_windows = 0;
		return;
	}
	/* The first window gathered still has wake-ups from before. */
	v->gather_windows++;
	if (v->gathered == GATHER_TRIED) {
		if (v->gather_windows > 1)
			add_window(&v->with, &window);
		if (v->gather_windows > TRIAL_WINDOWS)
			judge_trial(v, vm, now);
		return;
	}
	if (v->gathered == GATHER_KEPT) {
		if (!pol_before(now, v->gather_at))
			ungather(v, vm, now, 0);
		return;
	}
	add_window(&v->apart, &window);
	if (v->gather_windows < TRIAL_WINDOWS || pol_before(now, v->gather_at))
		return;
	set_gathered(v, GATHER_TRIED);
	count(INSTEP_C_GATHER_TRIAL);
	emit(now, INSTEP_E_GATHER, vm, v->apart.wakes, v->apart.ran_ns);
}

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
		if (c)
			set_gather_cpu(v, c, cpu);
		/* It may be apart again since. */
		if (!gathered(v))
			leave_gather_cpu(v);
	}
	if (!online(cpu) || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return NO_CPU;
	return cpu;
}

/*
 * Whether a vCPU that wakes up follows its waker on this CPU without a look at what else waits: its
 * VM is gathered here, runs here, and its stint since the last choice is shorter than a slice.
 */
static __always_inline bool hands_over(struct task_state *t, s32 cpu, u64 now)
{
	struct vm_state *v = vm_of(t->vm);
	struct cpu_state *c = cpu_of(cpu);

	if (t->slot == INSTEP_NO_SLOT || !v || !c || !gathered(v) || v->gang ||
	    cpu != v->gather_cpu)
		return false;
	if (c->vm != t->vm || !c->tid || (u32)cpu != bpf_get_smp_processor_id())
		return false;
	v->account.waited = 1;
	return pol_since(c->stint_at, now) < SET.slice_ns;
}

#endif
