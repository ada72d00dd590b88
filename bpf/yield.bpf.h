/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Directed yield: a vCPU that KVM caught spinning names a sibling that should run instead.
 *
 * Flag: yield. Counters: yields, yields_missed.
 *
 * Problem: on pause-loop exits KVM calls yield_to() (kvm_vcpu_on_spin, Linux 6.12..7.2), which
 * reaches ops.yield(from, to); without an answer the spinner just goes on.
 * Method: the named sibling goes first for a slice, its CPU chooses again, and the spinner's slice
 * ends:
 *     rank = vtime - boost_ns    until now + slice    (rank.bpf.h)
 * Limits: yield_to() returns early when both run queues hold one thread; `to` is NULL for
 * sched_yield(), which only ends the slice.
 */
#ifndef INSTEP_YIELD_BPF_H
#define INSTEP_YIELD_BPF_H

#include "rank.bpf.h"

static __always_inline bool follow_yield(struct task_struct *from, struct task_struct *to, u64 now)
{
	struct task_state *t = task_of(to);
	struct task_state *f = task_of(from);
	struct slot_info *i;
	struct vm_state *v;

	if (!on(INSTEP_M_YIELD) || !t || !f || t->vm != f->vm || t->vm == INSTEP_HOST)
		return false;
	i = slot_of(t->slot);
	if (!i || i->state != SLOT_QUEUED) {
		count(INSTEP_C_YIELD_MISSED);
		return false;
	}
	t->yield_until = now + SET.slice_ns;
	if ((v = vm_of(t->vm)))
		v->spins = 1;
	scx_bpf_kick_cpu(i->cpu, SCX_KICK_PREEMPT);
	count(INSTEP_C_YIELD);
	return true;
}

#endif
