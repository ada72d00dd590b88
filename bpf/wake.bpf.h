/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Wake-ups: who did it, and whether what runs has to give way.
 *
 * Flag: wake. Counters: wake_sibling, wake_timer, wake_io, wake_preempt, prompt_preempt.
 *
 * Problem: a vCPU woken by a sibling was waiting for it (an inter-processor interrupt of the guest:
 * synchronisation); one woken by a timer or by I/O was not. And a VM that blocks and is within its
 * share must not wait for another's slice to end.
 * Method: the waker is the current thread, unless an interrupt is being served: then it is a timer
 * or a device. A wake-up preempts by virtual time (policy.h, pol_wake_preempts):
 *     wakes < runs + wake_slack    beside a VM that runs together
 *     wakes + wake_slack < runs    beside others
 * Limits: an inter-processor interrupt that is posted to a running vCPU wakes nobody; where the processor
 * posts it to a sleeping one (Intel's IPI virtualisation), an interrupt of the host wakes that, which counts as
 * a timer's: boost and gathering then see no synchronisation. A wake-up that
 * KVM does on behalf of a device from a worker thread counts as I/O. Where the kernel's
 * interrupt count cannot be found by name, all wake-ups while a sibling is current are taken for
 * the sibling's.
 */
#ifndef INSTEP_WAKE_BPF_H
#define INSTEP_WAKE_BPF_H

#include "place.bpf.h"

enum waker { BY_SIBLING, BY_TIMER, BY_IO };

static __always_inline enum waker who_wakes(struct task_state *t)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	struct task_state *w;

	if (bpf_in_interrupt())
		return BY_TIMER;
	w = task_of(waker);
	if (w && w->vm == t->vm && w->slot != INSTEP_NO_SLOT && w->slot != t->slot)
		return BY_SIBLING;
	return BY_IO;
}

/* A vCPU wakes up: the wait table and the counters learn by whom. */
static __always_inline void note_wake(struct task_state *t)
{
	struct vm_state *v = vm_of(t->vm);
	struct slot_info *i = slot_of(t->slot);
	enum waker by;

	if (t->vm == INSTEP_HOST || !v || !i)
		return;
	by = who_wakes(t);
	count(by == BY_SIBLING ? INSTEP_C_WAKE_SIBLING :
	      by == BY_TIMER   ? INSTEP_C_WAKE_TIMER :
				 INSTEP_C_WAKE_IO);
	if (by == BY_SIBLING)
		__sync_fetch_and_add(&v->sibling_wakes, 1);
	wait_ends(v, t->vm, i, by == BY_SIBLING, scx_bpf_now());
}

/* The rank of what runs on a CPU; false when nothing of this class does. */
SEPARATE int rank_of_running(s32 cpu, u64 now, struct pol_rank *out)
{
	struct cpu_state *c = cpu_of(cpu);
	struct vm_state *v;

	if (!c || !c->tid || !out)
		return false;
	charge(cpu, now);
	out->gang = false;
	out->episode = false;
	if (has_turn(c, now)) {
		out->vtime = pol_first(c->vtime);
		return true;
	}
	if (c->vm == INSTEP_HOST) {
		out->vtime = host_rank(c->own_vtime, c);
		return true;
	}
	v = vm_of(c->vm);
	if (!v)
		return false;
	out->vtime = (on(INSTEP_M_SHARES) ? v->account.vtime : c->own_vtime) - keeps_boost(c, v);
	out->gang = v->gang && c->slot != INSTEP_NO_SLOT && on(INSTEP_M_GANG);
	out->episode = out->gang && in_episode(v, now);
	return true;
}

/* Whether what runs on `cpu` gives way to a thread that wakes up for it. */
static __always_inline bool gives_way(struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	struct pol_rank wakes = {}, runs = {};
	struct instep_vm_settings *s;

	if (!on(INSTEP_M_WAKE) || held_from(c, t->vm, now) || !rank_of_running(cpu, now, &runs))
		return false;
	rank_of(t, c, now, &wakes);
	if (!pol_wake_preempts(wakes, runs, SET.wake_slack_ns))
		return false;
	s = vm_set_of(t->vm);
	if (s && s->latency) {
		wakes.vtime += (u64)s->latency * 1000;
		if (!pol_wake_preempts(wakes, runs, SET.wake_slack_ns))
			count(INSTEP_C_PROMPT);
	}
	return true;
}

#endif
