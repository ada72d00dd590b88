/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where a thread stands in the order of those that want a CPU: gathers the facts for policy.h.
 *
 * Flag: none (who waits for too long goes first in any case). Counters: overdue.
 *
 * Problem: the keys of a queue are those of the moment of queueing, while a VM's virtual time moves
 * on with every sibling that runs.
 * Method: the rank is made anew whenever a CPU chooses, from the VM's virtual time less what the
 * thread is preferred by: a bottleneck, the target of a directed yield, a helper thread, a VM with
 * a latency class:
 *     rank = vtime - latency - (helper ? slice : 0) - (yielded to ? boost : 0) - (bottleneck ? boost : 0)
 * What has waited for too long goes first whatever its rank (policy.h, pol_overdue): a VM whose
 * vCPUs are bound to CPUs of different load is charged as a whole, and its virtual time may leave
 * that of one of the CPUs behind for good.
 * Limits: of a long queue only the first PICK_DEPTH threads are ranked, and the overdue (queue.bpf.h).
 */
#ifndef INSTEP_RANK_BPF_H
#define INSTEP_RANK_BPF_H

#include "boost.bpf.h"
#include "gang.bpf.h"
#include "host.bpf.h"

/* Of how many slices of a CPU one may be for a vCPU that is overdue. */
#define FIRST_SLICES 3

static __always_inline u64 preference(struct task_state *t, struct vm_state *v,
				      struct instep_vm_settings *s, u64 now)
{
	u64 preferred = (u64)s->latency * 1000;

	if (t->slot == INSTEP_NO_SLOT)
		preferred += SET.slice_ns;
	if (pol_before(now, t->yield_until))
		preferred += SET.boost_ns;
	return preferred;
}

/* By what a vCPU that was chosen as a bottleneck stays preferred: while a sibling waits for it. */
static __always_inline u64 keeps_boost(struct cpu_state *c, struct vm_state *v)
{
	return c->boosted && v->wait_since ? SET.boost_ns : 0;
}

static __noinline void rank_vm(struct task_state *t, struct cpu_state *c, u64 now, struct pol_rank *out)
{
	struct vm_state *v;
	struct instep_vm_settings *s;

	if (!t || !c || !out)
		return;
	v = vm_of(t->vm);
	s = vm_set_of(t->vm);
	if (!v || !s)
		return;
	out->vtime = (on(INSTEP_M_SHARES) ? v->account.vtime : t->vtime) - preference(t, v, s, now);
	if (!t->queued_at)
		out->vtime -= keeps_boost(c, v);
	else if (t->slot != INSTEP_NO_SLOT && bottlenecked(v, v->nr_queued, now))
		out->vtime -= SET.boost_ns;
	out->gang = v->gang && t->slot != INSTEP_NO_SLOT && on(INSTEP_M_GANG);
	out->episode = out->gang && in_episode(v, now);
}

/*
 * Whether a thread has waited for too long. One of a VM has that claim in one of FIRST_SLICES slices of a CPU
 * at most, so that VMs with many such threads do not take it all.
 */
static __always_inline bool overdue(struct task_state *t, struct cpu_state *c, u64 now)
{
	struct slot_info *i = slot_of(t->slot);
	struct vm_state *v = vm_of(t->vm);
	u32 siblings = 1;

	if (!t->queued_at)
		return false;
	/* Where none has run yet, it is its own wait that counts. */
	if (t->vm == INSTEP_HOST)
		return pol_overdue(c->host_ran_at ?: t->queued_at, now, POL_HOST_TURN_NS);
	if (pol_before(now, c->first_at + FIRST_SLICES * SET.slice_ns))
		return false;
	if (i && v)
		siblings = v->on_cpu[within(i->cpu, INSTEP_MAX_CPUS)];
	return pol_overdue(t->queued_at, now, pol_overdue_bound(siblings));
}

/* Whether what runs here was overdue, and is not to give way before its turn is over. */
static __always_inline bool has_turn(struct cpu_state *c, u64 now)
{
	return pol_before(now, c->turn_until);
}

/* The rank of a thread that waits for, or runs on, this CPU. */
static __always_inline void rank_of(struct task_state *t, struct cpu_state *c, u64 now,
				    struct pol_rank *out)
{
	out->gang = false;
	out->episode = false;
	if (overdue(t, c, now))
		out->vtime = t->vm == INSTEP_HOST ? pol_first(c->vtime) :
						    pol_first_by_age(c->vtime, now - t->queued_at);
	else if (!t->queued_at && has_turn(c, now))
		out->vtime = pol_first(c->vtime);
	else if (t->vm == INSTEP_HOST)
		out->vtime = host_rank(t->vtime, c);
	else
		rank_vm(t, c, now, out);
}

#endif
