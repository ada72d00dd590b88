/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Interrupted vCPUs stay: a kernel thread bound to their CPU is gone in microseconds.
 *
 * Flag: stay. Counters: stayed.
 *
 * Problem: a vCPU that left for any idle CPU each time such a thread came soon shared a core (seen: two on two
 * cores of two threads were on one for a third of the time).
 * Method: it waits there, if nobody else does, and no other CPU takes it:
 *     stays    until a thread of another kind runs there, a tick finds the thread still there, a real-time
 *              thread comes (an idle CPU is called each time), or a slice is over
 * Limits: one vCPU a CPU; where others wait already it queues like any other. A bound thread that works for long
 * costs the vCPU a tick.
 */
#ifndef INSTEP_STAY_BPF_H
#define INSTEP_STAY_BPF_H

#include "idle.bpf.h"

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

#endif
