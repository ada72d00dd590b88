/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Home nodes: a VM that placement gave one runs there; others take over what has no room.
 *
 * Flag: home. Counters: idle_home, idle_remote, came_home.
 *
 * Problem: a VM's memory is on its home node; bound to it, its vCPUs would wait there while CPUs of other nodes
 * idle, and left alone they would stay wherever they once found an idle CPU.
 * Method: a preference at each choice of a CPU, no binding. Idle CPUs at home come before all others (idle.bpf.h);
 * where none is idle anywhere a queue at home comes before one away, which counts as AWAY_COSTS longer
 * (place.bpf.h); a CPU without work takes from anywhere, but one that pulls takes from a waiter's home only what is
 * AWAY_PULLS times `pull_ns` further behind (pull.bpf.h). At the end of a slice who never sleeps is sent home, to
 * an idle CPU there or to wait there.
 *     home     while a CPU there is idle, or all are busy and waiting(home) <= waiting(away) + AWAY_COSTS
 *     away     else
 * Limits: one home node a VM, given by user space; VMs that span nodes are bound by affinity instead. Memory does
 * not move from here.
 */
#ifndef INSTEP_HOME_BPF_H
#define INSTEP_HOME_BPF_H

#include "where.bpf.h"

/* By how many waiters a queue away from home counts as longer. */
#define AWAY_COSTS 4

/* By how many times `pull_ns` more a waiter must be behind that another node takes from its home. */
#define AWAY_PULLS 3

/* The node where a thread's VM is at home, INSTEP_NO_NODE if that does not matter. */
static __always_inline s32 home_of(struct task_state *t)
{
	struct instep_vm_settings *s = vm_set_of(t->vm);

	if (!on(INSTEP_M_HOME) || t->vm == INSTEP_HOST || !s)
		return INSTEP_NO_NODE;
	return s->home_node;
}

static __always_inline bool at_home(s32 cpu, s32 home)
{
	struct cpu_state *c = cpu_of(cpu);

	return home == INSTEP_NO_NODE || (c && c->node == home);
}

static __always_inline bool comes_home(struct task_state *t, s32 from, s32 cpu)
{
	s32 home = home_of(t);

	return !at_home(from, home) && at_home(cpu, home);
}

static __always_inline bool leaves_home(struct task_state *t, s32 from, s32 cpu)
{
	s32 home = home_of(t);

	return at_home(from, home) && !at_home(cpu, home);
}

#endif
