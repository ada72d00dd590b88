/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where a thread stands in the order of those that want a CPU: gathers the facts for policy.h.
 *
 * Problem: the keys of a queue are those of the moment of queueing, while a VM's virtual time moves
 * on with every sibling that runs.
 * Method: the rank is made anew whenever a CPU chooses, from the VM's virtual time less what the
 * thread is preferred by: a bottleneck, the target of a directed yield, a helper thread, a VM with
 * a latency class.
 * Limits: only the first PICK_DEPTH threads of a queue are looked at (queue.bpf.h).
 */
#ifndef INSTEP_RANK_BPF_H
#define INSTEP_RANK_BPF_H

#include "boost.bpf.h"
#include "gang.bpf.h"

static __always_inline u64 preference(struct task_state *t, struct vm_state *v,
				      struct instep_vm_settings *s, u64 now)
{
	u64 preferred = (u64)s->latency * 1000;

	if (t->slot == INSTEP_NO_SLOT)
		preferred += SET.slice_ns;
	if (pol_before(now, t->yield_until))
		preferred += SET.boost_ns;
	if (t->slot != INSTEP_NO_SLOT && bottlenecked(v, now)) {
		preferred += SET.boost_ns;
		count(INSTEP_C_BOOST);
	}
	return preferred;
}

static __noinline void rank_vm(struct task_state *t, u64 now, struct pol_rank *out)
{
	struct vm_state *v;
	struct instep_vm_settings *s;

	if (!t || !out)
		return;
	v = vm_of(t->vm);
	s = vm_set_of(t->vm);
	if (!v || !s)
		return;
	out->vtime = (on(INSTEP_M_SHARES) ? v->account.vtime : t->vtime) - preference(t, v, s, now);
	out->gang = v->gang && t->slot != INSTEP_NO_SLOT && on(INSTEP_M_GANG);
	out->episode = out->gang && in_episode(v, now);
}

/* The rank of a thread of no VM with this own virtual time. */
static __always_inline u64 host_rank(u64 own, struct cpu_state *c)
{
	return pol_host_rank(pol_behind(own, c->host_vtime), INSTEP_STATE->group_vtime, c->vtime,
			     SET.slice_ns / 2, SET.debt_ns / 2);
}

/* The rank of a thread that waits for, or runs on, this CPU. */
static __always_inline void rank_of(struct task_state *t, struct cpu_state *c, u64 now,
				    struct pol_rank *out)
{
	out->gang = false;
	out->episode = false;
	if (t->vm == INSTEP_HOST)
		out->vtime = host_rank(t->vtime, c);
	else
		rank_vm(t, now, out);
}

#endif
