/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Turns: vCPUs of a VM that runs together, but has more of them than there are CPUs.
 *
 * Problem: one that spins for a sibling that waits behind it spins until its slice ends, and sched_ext ends
 * slices at ticks only: 4 ms at 250 Hz, in which a phase of 1 ms is over (seen: at a barrier every 1 ms half
 * of what the default scheduler gives, whose slices are shorter and end by a timer).
 * Method: a timer per CPU, armed when such a vCPU begins to run. When it fires while siblings still share the
 * CPU, the CPU chooses again: a sibling, as equals take turns (policy.h, pol_goes_on), or another VM when the
 * episode is over, which ends on time thereby:
 *     turn = episode / TURNS    where on_cpu[VM][CPU] > 1 and the VM runs together
 * Limits: which sibling is waited for is not visible, so they go round; pinned timers, Linux 6.7+.
 */
#ifndef INSTEP_TURN_BPF_H
#define INSTEP_TURN_BPF_H

#include "gang.bpf.h"

/* Parts of an episode: at a barrier every 1 ms six gave a seventh less than four. */
#define TURNS 4

/* Whether vCPUs of a VM that runs together share a CPU. */
static __always_inline bool in_turns(u32 vm, s32 cpu)
{
	struct vm_state *v = vm_of(vm);

	return v && v->gang && v->on_cpu[within(cpu, INSTEP_MAX_CPUS)] > 1;
}

static int turn_ends(void *map, int *key, struct turn *turn)
{
	struct cpu_state *c = cpu_of(turn->cpu);

	if (c && c->tid && c->slot != INSTEP_NO_SLOT && in_turns(c->vm, turn->cpu)) {
		count(INSTEP_C_TURN);
		scx_bpf_kick_cpu(turn->cpu, SCX_KICK_PREEMPT);
	}
	return 0;
}

/* A vCPU begins to run on this CPU. */
static __always_inline void begin_turn(u32 vm, s32 cpu)
{
	struct turn *turn;

	if (!in_turns(vm, cpu))
		return;
	turn = turn_of(cpu);
	if (turn)
		bpf_timer_start(&turn->timer, SET.episode_ns / TURNS, BPF_F_TIMER_CPU_PIN);
}

/* Once, while the scheduler is loaded. */
static __always_inline int make_turn(s32 cpu)
{
	struct turn *turn = turn_of(cpu);
	int error;

	if (!turn)
		return -EINVAL;
	turn->cpu = cpu;
	error = bpf_timer_init(&turn->timer, &turns, CLOCK_MONOTONIC);
	return error ?: bpf_timer_set_callback(&turn->timer, turn_ends);
}

#endif
