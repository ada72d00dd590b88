/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Wake-ups: which CPU gives way to a thread that finds no idle one.
 *
 * Flag: wake. Counters: wake_sibling, wake_timer, wake_io, wake_sync, wake_preempt, wake_holes, wake_tears.
 *
 * Problem: a VM that blocks and is within its share must not wait for another's slice or slot to end. But each CPU that
 * is taken from a gang in its slot makes all others of that gang spin. And of several vCPUs that are woken at the same
 * moment, as at the end of a barrier, each must get another CPU, or they wait for each other there.
 * Method: in this order,
 *     the CPU of the thread that wakes it up, if that is of the same account and about to sleep (SCX_WAKE_SYNC, as for a pipe) and
 *     nobody who waits there is further behind: it runs as soon as the other sleeps, and no CPU has to be interrupted;
 *     a CPU on which a gang's vCPU fills a hole;
 *     the CPU where the thread was, or one of four of the pool in the same last-level cache, or one of four others of the
 *     pool, if what runs there is further along by `wake_slack_ns`;
 *     a CPU of one gang of this slot, if that gang was further along by as much when the slot began.
 * "Further along" compares virtual times:
 *
 *     place + slack < running
 *
 *     place    of the thread that wakes up: virtual time of its account and its lead over others of it (policy.h, pol_key)
 *     slack    `wake_slack_ns`, 1 ms
 *     running  the place of the thread that runs, or the virtual time of the gang when its slot began
 *
 * All threads that interrupt a gang in a slot take CPUs of the same gang: of the one with the least loss for each of its slots
 * so far (gang.bpf.h, lost_less). A wide gang that lost CPUs too often is not interrupted (may_be_torn). A CPU gives way to
 * one thread only, until that runs there: the thread claims it.
 * Limits: a wake-up in an interrupt counts as a timer's, also where the processor posts the interrupt of a sibling. A thread that was to
 * sleep and does not delays the one that it woke up by a slice.
 */
#ifndef INSTEP_WAKE_BPF_H
#define INSTEP_WAKE_BPF_H

#include "idle.bpf.h"

/* So many CPUs are looked at for one that gives way. */
#define LOOKS 4

/* A vCPU wakes up: the counters learn by what. */
static __always_inline void note_wake(struct task_state *t)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	struct task_state *w;

	if (t->slot == INSTEP_NO_SLOT)
		return;
	if (bpf_in_interrupt()) {
		count(INSTEP_C_WAKE_TIMER);
		return;
	}
	w = task_of(waker);
	if (w && w->vm == t->vm && w->slot != INSTEP_NO_SLOT && w->slot != t->slot)
		count(INSTEP_C_WAKE_SIBLING);
	else
		count(INSTEP_C_WAKE_IO);
}

/* Whether a gang's vCPU runs on this CPU in its slot. */
static __always_inline bool runs_in_slot(struct cpu_state *c)
{
	return c->owner && c->owner != POOL && c->vm == c->owner;
}

/* A CPU of this set that the thread may use: the one where it was, if that is one of them, else one near to it. */
static __always_inline s32 nearest(struct task_struct *p, u32 domain, u64 set, s32 prev)
{
	struct cpu_state *c = cpu_of(prev);

	if (c && c->domain == domain && (set & pol_lane(c->lane)) && may_use(p, prev))
		return prev;
	return set ? first_near(p, domain, set, lanes_near(domain, prev)) : NO_CPU;
}

/* The same, taken out of `from`. */
static __always_inline s32 take_from(struct task_struct *p, u32 domain, u64 *from, s32 prev)
{
	s32 cpu = nearest(p, domain, *from, prev);
	struct cpu_state *c = cpu_of(cpu);

	if (!c)
		return NO_CPU;
	/* Another CPU may take it at the same moment. */
	if (!(__sync_fetch_and_and(from, ~pol_lane(c->lane)) & pol_lane(c->lane)))
		return NO_CPU;
	return c->taken_at ? NO_CPU : cpu;
}

/*
 * Claims a CPU for a thread with this place, if what runs there is further along, and no vCPU of a gang in its slot; whether
 * it did.
 */
static __noinline bool claim_busy(struct task_struct *p, s32 cpu, u64 place, u64 now)
{
	struct cpu_state *c = cpu_of(cpu);
	struct account *a;

	if (!c || !c->tid || c->taken_at || c->overdue || c->claimed || runs_in_slot(c) || !may_use(p, cpu))
		return false;
	charge(cpu, now);
	a = account_of(c->vm, c->domain);
	if (!a || !pol_wake_preempts(place, pol_key(vtime_at(a, c->vm, c->domain), c->own, a->front, own_bound()), SET.wake_slack_ns))
		return false;
	return !__sync_lock_test_and_set(&c->claimed, 1);
}

/* Claims one of these CPUs of the pool; looks at a few of them, other ones each time. */
static __noinline s32 claim_in_pool(struct task_struct *p, u32 domain, u64 set, u64 place, u64 now)
{
	struct domain_state *d = domain_of(domain);
	u64 rest = set & ~(pol_lane(now >> 10) - 1);

	if (!d || !set)
		return NO_CPU;
	bpf_repeat(LOOKS) {
		s32 cpu;

		if (!rest)
			rest = set;
		cpu = cpu_at(d, pol_lowest(rest));
		rest &= rest - 1;
		if (claim_busy(p, cpu, place, now))
			return cpu;
	}
	return NO_CPU;
}

/*
 * This CPU, for a thread that one of its own account wakes up which runs here and is about to sleep, unless somebody waits here who is further
 * behind; else NO_CPU.
 */
static __noinline s32 follow_waker(struct task_struct *p, struct task_state *t, u64 wake_flags)
{
	struct domain_state *d;
	struct cpu_state *c;
	struct task_state *w;
	u64 now, first = 0;
	s32 cpu;

	if (!(wake_flags & SCX_WAKE_SYNC) || !t || !on(INSTEP_M_WAKE) || bpf_in_interrupt())
		return NO_CPU;
	cpu = bpf_get_smp_processor_id();
	c = cpu_of(cpu);
	d = c ? domain_of(c->domain) : NULL;
	if (!d || !c->tid || c->vm != t->vm || c->hole || c->claimed || (c->owner && c->owner != POOL))
		return NO_CPU;
	if (seat_cpu(t) >= 0 || !may_use(p, cpu) || scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL) > 0)
		return NO_CPU;
	/* One that goes on and on would let it wait for a slice. */
	w = task_of(bpf_get_current_task_btf());
	if (!w || w->is_long)
		return NO_CPU;
	now = scx_bpf_now();
	if (somebody_in(&c->bound, bound_queue(cpu), now) ||
	    (first_of_pool(d, cpu, now, &first) && pol_before(first, place_of(t, c->domain))))
		return NO_CPU;
	count(INSTEP_C_WAKE_SYNC);
	return cpu;
}

/* The CPU that gives way to a thread that wakes up; NO_CPU if none does. */
static __noinline s32 pick_victim(struct task_struct *p, struct task_state *t, s32 prev, u32 domain, u64 now)
{
	struct cpu_state *c = cpu_of(prev);
	struct domain_state *d = domain_of(domain);
	struct vm_state *v;
	u64 place, near;
	s32 cpu;

	if (!t || !d || !on(INSTEP_M_WAKE))
		return NO_CPU;
	cpu = d->slotted ? seat_cpu(t) : NO_CPU;
	if (cpu >= 0) {
		/* Its gang has the slot: the seat is its own. */
		struct cpu_state *seat = cpu_of(cpu);

		return seat && seat->owner == t->vm && !runs_in_slot(seat) && !seat->taken_at &&
				       may_use(p, cpu) ?
			       cpu :
			       NO_CPU;
	}
	cpu = take_from(p, domain, &d->holes, prev);
	if (cpu >= 0) {
		count(INSTEP_C_WAKE_HOLE);
		return cpu;
	}
	place = place_of(t, domain);
	near = lanes_near(domain, prev);
	cpu = c && c->domain == domain && claim_busy(p, prev, place, now) ? prev : NO_CPU;
	if (cpu < 0)
		cpu = claim_in_pool(p, domain, d->pool & near, place, now);
	if (cpu < 0)
		cpu = claim_in_pool(p, domain, d->pool & ~near, place, now);
	if (cpu >= 0) {
		count(INSTEP_C_WAKE_PREEMPT);
		return cpu;
	}
	/* Threads of the host wait for the middle or the end of the slot (slot.bpf.h, serve_host). */
	if (!d->slotted || !d->tears || (t->vm == INSTEP_HOST && on(INSTEP_M_HOST)))
		return NO_CPU;
	cpu = nearest(p, domain, d->tears, prev);
	c = cpu_of(cpu);
	if (!c || c->taken_at)
		return NO_CPU;
	v = vm_of(c->owner);
	if (!v || !pol_wake_preempts(place, part_in(v, domain)->began, SET.wake_slack_ns))
		return NO_CPU;
	if (!(__sync_fetch_and_and(&d->tears, ~pol_lane(c->lane)) & pol_lane(c->lane)))
		return NO_CPU;
	note_torn(v);
	count(INSTEP_C_WAKE_TEAR);
	return cpu;
}

#endif
