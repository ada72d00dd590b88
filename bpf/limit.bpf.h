/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPU limits of cgroups: how much CPU time each has left, and when it is refilled.
 *
 * Flag: none (a limit is a promise of the host). Counters: limits_lost.
 *
 * Problem: cpu.max is kept by the kernel's fair scheduler, which has nothing to run while this one is in force.
 * Method: the numbers are read where the kernel keeps them (struct task_group, cfs_bandwidth; kernel/sched/sched.h, Linux 6.12 to
 * 7.2), so that no file has to be looked at, and a limit holds from the moment when it is set, not two seconds later.
 * (ops.cgroup_set_bandwidth exists only from Linux 6.17 on.) Each thread looks at its cgroup and those above it when it has come to
 * another, and four times a second. A limit is an account of its own:
 *
 *     left = left - CPU time of its threads + quota (each period), at most quota + burst
 *
 *     quota, burst   of cpu.max and cpu.max.burst, nanoseconds
 *     period         of cpu.max
 *     left           below 0 where threads ran for longer than what was left: a debt, paid by the next periods
 *
 * A thread may run while something is left of all limits above it. CPUs look at this when the clock ticks, so some threads
 * run for a tick too long; because of the debt the mean is exact.
 * Limits: the periods of a limit begin when it is first seen, not when the kernel's do. Of a deeper tree of cgroups the upper 32
 * levels are read; a limit below them counts as lost, unless a user other than root has that cgroup. Up to 65,536 limits are
 * known (INSTEP_MAX_LIMITS). Where the kernel has no memory for one the next look tries again, and when its threads ran for
 * two seconds without it the limit counts as lost.
 */
#ifndef INSTEP_LIMIT_BPF_H
#define INSTEP_LIMIT_BPF_H

#include "group.bpf.h"

#ifdef __bpf__
/* By the cgroup's inode number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, INSTEP_MAX_LIMITS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, struct limit);
} limits SEC(".maps");

/* Not read by the programs: tells user space the layout of the map's entries. */
struct limit layout_limit;

static __always_inline struct limit *limit_at(u64 id)
{
	return bpf_map_lookup_elem(&limits, &id);
}

/*
 * A new entry; NULL if there is no room (`full`), or if the memory that BPF may take at once is used up or another CPU has
 * the map: then the next look tries again, for LIMIT_AWAITED_NS.
 */
static __always_inline struct limit *new_limit(u64 id, bool *full)
{
	struct limit fresh = {};

	*full = bpf_map_update_elem(&limits, &id, &fresh, BPF_NOEXIST) == -E2BIG;
	return limit_at(id);
}

#else
static __always_inline struct limit *limit_at(u64 id)
{
	struct limit *l = id < SHIM_MAX_GROUPS ? &INSTEP_STATE->limits[id] : NULL;

	return l && l->period ? l : NULL;
}

static __always_inline struct limit *new_limit(u64 id, bool *full)
{
	*full = id >= SHIM_MAX_GROUPS;
	return id < SHIM_MAX_GROUPS && !INSTEP_STATE->no_memory ? &INSTEP_STATE->limits[id] : NULL;
}

#endif

/* So often a thread that runs looks whether there are other limits. */
#define LIMIT_LOOK_NS (250 * POL_MS)

/*
 * The clock of limits. It goes on while a CPU idles. Where the clocks of CPUs are not stable the scheduler's clock stands still
 * there until the CPU wakes up, also for a timer (seen: a limit of 20 % gave 10 %).
 */
static __always_inline u64 limit_clock(void)
{
	return bpf_ktime_get_ns();
}

/* A limit for which there is no memory for so long is lost. */
#define LIMIT_AWAITED_NS (2000 * POL_MS)

/* The limit of this cgroup is not kept: user space unloads the scheduler. */
static __always_inline void lose_limit(u64 id)
{
	count(INSTEP_C_LIMIT_LOST);
	INSTEP_STATE->lost_limit = id;
}

/*
 * There was no memory for the limit of this cgroup. One is watched at a time, until it has an entry or no thread of it ran for
 * LIMIT_AWAITED_NS. Of the time between two looks a quarter of a second counts at most: its threads may have slept.
 */
SEPARATE int await_limit(u64 id, u64 now)
{
	struct host_state *s = INSTEP_STATE;
	u64 since;

	if (s->awaited_limit != id) {
		if (s->awaited_limit && pol_since(s->awaited_at, now) < LIMIT_AWAITED_NS)
			return 0;
		s->awaited_ns = 0;
		s->awaited_at = now;
		/* Who sees the id sees these, too. */
		__sync_lock_test_and_set(&s->awaited_limit, id);
		return 0;
	}
	/* Of several CPUs that look at once one adds the time. */
	since = __sync_lock_test_and_set(&s->awaited_at, now);
	if (__sync_fetch_and_add(&s->awaited_ns, pol_min(pol_since(since, now), LIMIT_LOOK_NS)) >= LIMIT_AWAITED_NS)
		lose_limit(id);
	return 0;
}

/* The entry of a limit, as the kernel has it now. */
static __always_inline struct limit *note_limit(struct group_read *own, u64 now)
{
	bool full = false;
	struct limit *l = limit_at(own->id) ?: new_limit(own->id, &full);

	if (full)
		lose_limit(own->id);
	else if (!l)
		await_limit(own->id, now);
	if (!l)
		return NULL;
	if (INSTEP_STATE->awaited_limit == own->id)
		INSTEP_STATE->awaited_limit = 0;
	if (l->quota != own->quota || l->period != own->period || l->burst != own->burst) {
		/* Of one that was lowered no more is left than it gives; debts stay. */
		if (!l->period || l->left > (s64)own->quota)
			l->left = own->quota;
		l->refill_at = now + own->period;
	}
	l->quota = own->quota;
	l->burst = own->burst;
	l->period = own->period;
	return l;
}

static __always_inline void set_parent(u64 id, u64 parent)
{
	struct limit *l = limit_at(id);

	if (l && l->parent != parent)
		l->parent = parent;
}

/* Finds the limits above a thread and notes in each the next one; the cgroup of the nearest, 0 if there is none. */
SEPARATE u64 find_limits(u64 group, u64 now)
{
	u64 nearest = 0, below = 0;

	bpf_repeat(GROUP_LEVELS) {
		struct group_read own = {};

		if (!group)
			break;
		read_group(group, &own);
		if (own.id && has_limit(&own) && note_limit(&own, now)) {
			if (below)
				set_parent(below, own.id);
			nearest = nearest ?: own.id;
			below = own.id;
		}
		group = own.above;
	}
	if (below)
		set_parent(below, 0);
	return nearest;
}

/* The nearest cgroup from this one upwards that lies in one of the upper GROUP_LEVELS levels. */
SEPARATE u64 nearest_read(u64 group)
{
	s32 deeper = level_of(group) + 1 - GROUP_LEVELS;

	bpf_repeat(deeper > 0 ? deeper : 0)
		group = group_above(group);
	return group;
}

/*
 * Limits below those levels count as lost, of the nearest GROUP_LEVELS cgroups. Users' own limits in there are theirs: one of
 * them must not end the scheduler by 33 directories.
 */
SEPARATE int lose_deep_limits(u64 group, u64 nearest)
{
	bpf_repeat(GROUP_LEVELS) {
		struct group_read own = {};

		if (group == nearest)
			break;
		read_group(group, &own);
		if (own.id && has_limit(&own) && !is_of_user(group))
			lose_limit(own.id);
		group = own.above;
	}
	return 0;
}

/* A thread is in this cgroup: those above it are noted, and the limits among them are its own from now on. */
static __always_inline void note_groups(struct task_state *t, u64 group, u64 now)
{
	if (group != t->group || !t->nearest)
		t->nearest = nearest_read(group);
	t->group = group;
	t->looked_at = now;
	lose_deep_limits(group, t->nearest);
	t->node = note_cgroups(t->nearest, limit_clock());
	t->limit = find_limits(t->nearest, limit_clock());
}

static __always_inline void look_at_limits(struct task_struct *p, struct task_state *t, u64 now)
{
	if (is_group_of(p, t->group) && pol_since(t->looked_at, now) < LIMIT_LOOK_NS)
		return;
	if (!t->limit)
		t->used = p->se.sum_exec_runtime;
	note_groups(t, group_of(p), now);
	set_thread_weight(t, p->scx.weight);
}

/* Adds what the periods that began meanwhile bring. */
static __always_inline void refill(struct limit *l, u64 now)
{
	u64 at = l->refill_at, periods, more, most = l->quota + l->burst;
	s64 left;

	if (!l->period || !l->quota || pol_before(now, at))
		return;
	periods = pol_since(at, now) / l->period + 1;
	if (__sync_val_compare_and_swap(&l->refill_at, at, at + periods * l->period) != at)
		return;
	left = l->left;
	if (left >= (s64)most)
		return;
	more = most - left;
	if (periods <= more / l->quota)
		more = periods * l->quota;
	__sync_fetch_and_add(&l->left, more);
}

/* When something is left again of a limit of which nothing is left. */
static __always_inline u64 refilled_at(struct limit *l, s64 left)
{
	return l->refill_at + (u64)-left / (l->quota ?: 1) * l->period;
}

/* When threads under this limit and those above it may run; 0 if they may now. */
SEPARATE u64 limited_until(u64 id, u64 now)
{
	u64 latest = 0;

	bpf_repeat(GROUP_LEVELS) {
		struct limit *l = limit_at(id);
		s64 left;

		if (!id || !l)
			break;
		refill(l, now);
		left = l->left;
		if (left <= 0)
			latest = latest ? pol_max(latest, refilled_at(l, left)) : refilled_at(l, left);
		id = l->parent;
	}
	return latest;
}

/*
 * Charges what a thread has used since it was last charged to its limit and those above it. The kernel charges limits by the
 * same measure, in which time in interrupts does not count.
 */
static __always_inline void charge_limits(struct task_struct *p, struct task_state *t)
{
	u64 id = t->limit, used = p->se.sum_exec_runtime, ran = used - t->used;

	t->used = used;
	bpf_repeat(GROUP_LEVELS) {
		struct limit *l = limit_at(id);

		if (!id || !l)
			break;
		__sync_fetch_and_sub(&l->left, ran);
		id = l->parent;
	}
}

/* A thread was held until now. */
static __always_inline void charge_held(struct task_state *t, struct account *a, u64 now)
{
	u64 held = pol_since(t->held_at, now);
	struct limit *l = limit_at(t->held_by);

	__sync_fetch_and_add(&a->held_ns, held);
	if (l)
		__sync_fetch_and_add(&l->held_ns, held);
}

#endif
