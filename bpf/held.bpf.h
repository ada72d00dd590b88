/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Threads under a CPU limit of which nothing is left: where they wait, and when they go on.
 *
 * Flag: none. Counters: held.
 *
 * Problem: such a thread must not run although a CPU is idle, must not count as one that wants a CPU, and must go on when
 * more is left.
 * Method: one queue for the whole host (a queue for each limit would have to be made when the scheduler is loaded), in the
 * order of the time at which a thread is looked at again: when its limit is refilled, but after 250 ms at most, as the limit
 * may have been raised. A timer looks at those that are due. As many threads go on as milliseconds are left, so that not each
 * of many threads under a small limit uses up a tick. They go to the queue of their domain or CPU, as a thread that wakes up
 * does. Others are looked at again after 4 ms.
 *     A thread that is held counts in its account as one that waits (nr_queued) and as one that is held (nr_held); the difference
 * wants CPUs. The timer and an operation may release a thread at the same time: the one that takes back the mark in its
 * record takes it from nr_held.
 *     The kernel's watchdog ends a scheduler under which a thread waits for too long. So a held thread comes to a CPU after
 * 4 s, too. A thread that begins to run while nothing is left of its limit is preempted at once (end_hold): a tick for each
 * would give many threads more than their limit (1,000 threads had 50 % of a CPU under a limit of 20 %). Only one that was
 * preempted while it read under RCU has a tick, as all grace periods wait for it.
 * Limits: threads that disabled migration are not held, nor those that end or are the kernel's, which may hold what others wait for.
 * Threads in the kernel: leave.bpf.h. The timer may be late by 10 ms.
 */
#ifndef INSTEP_HELD_BPF_H
#define INSTEP_HELD_BPF_H

#include "leave.bpf.h"
#include "slot.bpf.h"

/* Time that each thread is expected to use until the clock ticks. */
#define HELD_STEP (1 * POL_MS)
/* After this, others are looked at again. */
#define HELD_AGAIN (4 * POL_MS)
#define HELD_LONGEST (4000 * POL_MS)
/* The timer is set for this time at most: of two CPUs that set it at once the later one may win. */
#define HELD_TIMER (10 * POL_MS)
#define HELD_TIMER_LEAST (POL_MS / 10)
/* Threads are looked at together whose times differ in these bits only, which are 66 us. The bits are their order. */
#define HELD_ORDER ((1ull << 16) - 1)

/* Sets the timer for a time or a thread's place, unless it fires before. */
static __always_inline void call_timer(u64 at, u64 now)
{
	struct slot_timer *timer = timer_of(INSTEP_HELD_TIMER);
	u64 set = INSTEP_STATE->held_timer;

	at = pol_min(pol_max(at & ~HELD_ORDER, now + HELD_TIMER_LEAST), now + HELD_TIMER);
	if (!timer || (set && !pol_before(at, set)) ||
	    __sync_val_compare_and_swap(&INSTEP_STATE->held_timer, set, at) != set)
		return;
	bpf_timer_start(&timer->timer, at - now, 0);
}

/*
 * The place of a thread that is looked at again at this time. Of those looked at together, as after a refill, the one that has waited
 * for its turn longest goes first: it must not matter when each ran for a moment. All that waited for two
 * hours count alike.
 */
static __always_inline u64 held_place(struct task_state *t, u64 until)
{
	return ((until + HELD_ORDER) & ~HELD_ORDER) | (HELD_ORDER - pol_min(pol_since(t->turn_since, until) >> 27, HELD_ORDER));
}

/* A thread that becomes runnable is held, if nothing is left of a limit; whether it is. */
static __noinline bool hold(struct task_struct *p, struct task_state *t, u32 domain, u64 now, u64 enq_flags)
{
	u64 at = limit_clock(), until = t ? limited_until(t->limit, at) : 0;
	struct account *a;

	if (!until || !may_be_held(p, t))
		return false;
	count_thread(t, STANDS_QUEUED, domain, now);
	a = counted_in(t);
	if (!a)
		return false;
	__sync_fetch_and_add(&a->nr_held, 1);
	if (t->stands_for)
		__sync_fetch_and_sub(&a->weights, t->stands_for);
	t->held_at = at;
	t->held_by = t->limit;
	t->held_since = t->held_since ?: at;
	t->held = 1;
	INSTEP_STATE->held_last = at;
	count(INSTEP_C_HELD);
	t->turn_since = t->turn_since ?: at;
	until = held_place(t, pol_min(until, at + LIMIT_LOOK_NS));
	scx_bpf_dsq_insert_vtime(p, HELD_QUEUE, SET.slice_ns, until, enq_flags);
	call_timer(until, at);
	return true;
}

/*
 * A thread runs. If others used up its limit while it waited for a CPU, or it runs to show the watchdog that it can (`moment`: queue.bpf.h,
 * MOMENT_NS), it is preempted at once.
 */
static __always_inline void end_hold(struct task_struct *p, struct task_state *t, s32 cpu, bool moment)
{
	bool stops;

	if (t->at_border && t->held_since && pol_since(t->held_since, limit_clock()) >= HELD_LONGEST)
		leave_border(p, t);
	stops = (moment ? may_be_stopped(p) : is_limited(p, t)) && !reads_under_rcu(p);
	t->held_since = 0;
	if (!moment)
		t->turn = 0;
	if (stops) {
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
		return;
	}
	t->turn_since = 0;
	/* Also one that an interrupt preempted there before the kernel had enabled migration: it goes on to user space. */
	t->at_border = 0;
}

/* When a thread that is due may go on, after others that the same look of the timer lets go on; 0 if it may now. */
SEPARATE u64 held_until(u64 id, u64 now)
{
	u64 until = limited_until(id, now), first = id;

	if (until)
		return until;
	bpf_repeat(GROUP_LEVELS) {
		struct limit *l = limit_at(id);

		if (!id || !l)
			break;
		if (l->granted_at == now && l->left <= (s64)l->granted)
			return now + HELD_AGAIN;
		id = l->parent;
	}
	id = first;
	bpf_repeat(GROUP_LEVELS) {
		struct limit *l = limit_at(id);

		if (!id || !l)
			break;
		l->granted = (l->granted_at == now ? l->granted : 0) + HELD_STEP;
		l->granted_at = now;
		id = l->parent;
	}
	return 0;
}

/* A thread that is due: what the timer knows of it, and what follows. */
struct held_look {
	u64 group;
	u64 now;	/* by the clock of limits */
	s32 cpu;	/* where it was last */
	u32 bound;	/* it may use this CPU only */
	u64 queue;	/* where it waits from now on: HELD_QUEUE, or that of its CPU or domain if it goes on, ... */
	u64 place;	/* ... with this place ... */
	u32 domain;	/* ... in this domain */
};

/* Looks at a thread that is due: when the next look is, or where it goes on. */
SEPARATE int look_at_thread(struct task_state *t, struct held_look *look)
{
	u64 clock = scx_bpf_now(), now, until;
	struct cpu_state *c;
	struct account *a;

	if (!t || !look)
		return 0;
	now = look->now;
	c = cpu_of(look->cpu);
	if (!c)
		return 0;
	note_groups(t, look->group, clock);
	until = t->limit ? held_until(t->limit, now) : 0;
	if (until && pol_since(t->held_since, now) < HELD_LONGEST) {
		look->queue = HELD_QUEUE;
		look->place = held_place(t, pol_min(until, now + LIMIT_LOOK_NS));
		a = counted_in(t);
		if (a && t->held_by != t->limit) {
			charge_held(t, a, now);
			t->held_at = now;
			t->held_by = t->limit;
		}
		return 0;
	}
	look->domain = look->bound ? c->domain : domain_for(t, look->cpu);
	a = account_of(t->vm, look->domain);
	if (a)
		expire_saved_time(a, t->vm);
	unhold(t, clock);
	t->queued_at = clock;
	t->waits_since = clock;
	bound_own(t, look->domain);
	look->queue = look->bound ? bound_queue(look->cpu) : pool_queue(look->domain);
	look->place = place_of(t, look->domain);
	return 0;
}

/* A thread that goes on is in a queue of this domain. */
SEPARATE int tell_domain(struct held_look *look)
{
	u64 now = scx_bpf_now();
	struct domain_state *d;
	struct cpu_state *c;

	if (!look)
		return 0;
	d = domain_of(look->domain);
	c = cpu_of(look->cpu);
	if (!d || !c)
		return 0;
	/* Before a CPU is kicked: it may choose at once, and would not look into a queue that it knows as empty. */
	if (look->bound)
		c->bound.put_at = now;
	else
		d->in_pool.put_at = now;
	if (look->bound && waiting(&d->host))
		__sync_fetch_and_or(&d->pending, pol_lane(c->lane));
	/* It may use the CPU where it was, if no other. */
	scx_bpf_kick_cpu(look->cpu, SCX_KICK_IDLE);
	d->pooled = 1;
	start_slots(d, look->domain, now);
	call_idle(d);
	return 0;
}

/* Looks at the threads that are due; when the next ones are, 0 if none are held. */
static __always_inline u64 look_at_held(u64 now)
{
	struct task_struct *p;
	u64 next = 0;
	bool moved;

	/* A timer's program holds no such lock by itself. */
	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, HELD_QUEUE, 0) {
		struct held_look look = { .group = group_of(p), .now = now, .cpu = scx_bpf_task_cpu(p), .bound = is_bound(p) };

		if (pol_before(now | HELD_ORDER, p->scx.dsq_vtime)) {
			next = pol_first(next, p->scx.dsq_vtime);
			break;
		}
		look_at_thread(task_of(p), &look);
		scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, look.place);
		moved = scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, p, look.queue, 0);
		if (look.queue == HELD_QUEUE)
			next = pol_first(next, look.place);
		else if (moved)
			tell_domain(&look);
		else
			next = pol_first(next, now + HELD_AGAIN);
	}
	bpf_rcu_read_unlock();
	return next;
}

static int held_are_due(void *map, int *key, struct slot_timer *timer)
{
	u64 now = limit_clock(), next;

	INSTEP_STATE->held_timer = 0;
	next = look_at_held(now);
	/* What an operation inserts is in the queue only after it has returned. */
	if (!next && pol_since(INSTEP_STATE->held_last, now) < 2 * HELD_TIMER)
		next = now + HELD_TIMER;
	if (next)
		call_timer(next, now);
	return 0;
}

/* Once, while the scheduler is loaded. */
static __always_inline s32 begin_held(void)
{
	struct slot_timer *timer = timer_of(INSTEP_HELD_TIMER);
	s32 error = scx_bpf_create_dsq(HELD_QUEUE, -1);

	if (error || !timer)
		return error ?: -EINVAL;
	error = bpf_timer_init(&timer->timer, &slot_timers, CLOCK_MONOTONIC);
	return error ?: bpf_timer_set_callback(&timer->timer, held_are_due);
}

#endif
