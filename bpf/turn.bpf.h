/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Turns: vCPUs of a VM that runs together, but has more of them than there are CPUs.
 *
 * Flag: turns. Counters: turns.
 *
 * Problem: one that spins for a sibling that waits behind it spins until its slice ends, and sched_ext ends
 * slices at ticks only: 4 ms at 250 Hz, in which a phase of 1 ms is over (seen: at a barrier every 1 ms half
 * of what the default scheduler gives, whose slices are shorter and, on new kernels, end by a timer).
 * Method: a timer per CPU, armed when such a vCPU begins to run or goes on, or at its tick where a sibling came
 * meanwhile. When it fires while siblings still share the CPU, the CPU chooses again: a sibling, as equals take
 * turns (policy.h, pol_goes_on), or another VM when the episode is over, which ends on time thereby:
 *     turn = min(max(episode / 4, 500 us), slice)    where on_cpu[VM][CPU] > 1 and the VM runs together
 * Limits: which sibling is waited for is not visible, so they go round. Timers of BPF expire in a thread on
 * kernels with PREEMPT_RT or `threadirqs`: the vCPU has been switched out then, and its turn ends at a tick as
 * without. So does that of one whose timer cannot be armed.
 */
#ifndef INSTEP_TURN_BPF_H
#define INSTEP_TURN_BPF_H

#include "rank.bpf.h"

/* Whether vCPUs of a VM that runs together share a CPU. */
static __always_inline bool in_turns(u32 vm, s32 cpu)
{
	struct vm_state *v = vm_of(vm);

	return on(INSTEP_M_TURNS) && v && v->gang && v->on_cpu[within(cpu, INSTEP_MAX_CPUS)] > 1;
}

static int turn_ends(void *map, int *key, struct turn *turn)
{
	struct cpu_state *c = cpu_of(turn->cpu);

	turn->armed = 0;
	if (!c || !c->tid || c->slot == INSTEP_NO_SLOT || !in_turns(c->vm, turn->cpu) ||
	    has_turn(c, scx_bpf_now()))
		return 0;
	count(INSTEP_C_TURN);
	scx_bpf_kick_cpu(turn->cpu, SCX_KICK_PREEMPT);
	return 0;
}

/* A vCPU runs on this CPU: its turn begins, unless it only comes back from an interruption. */
static __always_inline void begin_turn(u32 vm, u32 tid, s32 cpu)
{
	struct turn *turn;

	if (!in_turns(vm, cpu))
		return;
	turn = turn_of(cpu);
	if (!turn || (turn->armed && turn->tid == tid))
		return;
	turn->tid = tid;
	turn->armed = !bpf_timer_start(&turn->timer, pol_turn(SET.episode_ns, SET.slice_ns),
				       BPF_F_TIMER_CPU_PIN);
}

/* Once, while the scheduler is loaded. */
static __always_inline int make_turn(s32 cpu)
{
	struct turn *turn = turn_of(cpu);
	int error;

	if (!turn)
		return -EINVAL;
	turn->cpu = cpu;
	error = bpf_timer_init(&turn->timer, &turn_timers, CLOCK_MONOTONIC);
	return error ?: bpf_timer_set_callback(&turn->timer, turn_ends);
}

#endif
