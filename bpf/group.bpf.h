/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Cgroups: which there are, what their threads want, and what a thread of the host weighs for its cgroup.
 *
 * Flag: none (cpu.weight is a promise of the host). Counters: groups_lost, reweighed.
 *
 * Problem: cpu.weight counts at every level of the tree of cgroups, and accounts have one weight each. What a cgroup is
 * entitled to depends on which others want CPU time at the moment.
 * Method: threads note the cgroups above them, with cpu.weight as the kernel has it (struct task_group), four times a second while
 * they run; so a cgroup is known from its first thread's first moment. For each cgroup the time is summed for which
 * threads of the host in it were runnable. Once a second user space computes from this, from limits (cpu.max), and from the
 * demand of VMs, what each VM and each cgroup is entitled to (crates/core/src/entitled.rs), sooner when a weight or a limit has
 * changed (`reweighed`), and writes:
 *
 *     weight of a VM      what it is entitled to, thousandths of a CPU
 *     weight of a cgroup  the same for each of its threads that belong to no VM
 *
 * Within the host's account threads share CPU time by this weight times that of their nice value (policy.h, pol_host_key). The
 * account itself weighs in its domain what its threads weigh together, on average over the time in which there are any. While
 * user space has written none (`thread_weight` is 0) cgroups weigh alike, and the account weighs `host_weight`.
 * Limits: shares follow the demand by a second. Up to 65,536 cgroups are known (INSTEP_MAX_LIMITS), and those of the
 * upper 32 levels. Any user may make cgroups below one that was handed over: those of ordinary users take half of the table at
 * most. Threads of a cgroup that is not known count in the nearest one above it that is, so that its weight holds for
 * them, too.
 */
#ifndef INSTEP_GROUP_BPF_H
#define INSTEP_GROUP_BPF_H

#include "state.bpf.h"

#define GROUP_LEVELS 32

/* A cgroup as the kernel has it: `quota` is ~0 where it has no limit of its own, `period` 0 where it cannot have one. */
struct group_read {
	u64 id;		/* its inode number, 0 for what is no cgroup */
	u64 shares;
	u64 quota;
	u64 period;
	u64 burst;
	u64 above;	/* the cgroup above it, for read_group; 0 for the root's */
};

#ifdef __bpf__
/* Cgroups in which there were threads of late (group.bpf.h), by their inode number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, INSTEP_MAX_LIMITS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, struct group);
} groups SEC(".maps");

struct group layout_group;

/* What a thread of the host weighs for its cgroup; user space writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, INSTEP_MAX_LIMITS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, u32);
} group_weights SEC(".maps");

static __always_inline struct group *group_at(u64 id)
{
	return bpf_map_lookup_elem(&groups, &id);
}

/* As new_limit (limit.bpf.h). */
static __always_inline struct group *new_group(u64 id, bool *full)
{
	struct group fresh = {};

	*full = bpf_map_update_elem(&groups, &id, &fresh, BPF_NOEXIST) == -E2BIG;
	return group_at(id);
}

static __always_inline u32 *group_weight_at(u64 id)
{
	return bpf_map_lookup_elem(&group_weights, &id);
}

#define GROUPS_OF_USERS (INSTEP_MAX_LIMITS / 2)

/* A number that is the address of a cgroup's part of the scheduler: what is read there may be anything, but faults nowhere. */
static __always_inline struct task_group *task_group_at(u64 group)
{
	return bpf_core_cast((void *)group, struct task_group);
}

/* Whether a user other than root made a cgroup, or got it. */
static __always_inline bool is_of_user(u64 group)
{
	struct kernfs_iattrs *attributes = task_group_at(group)->css.cgroup->kn->iattr;

	return attributes && attributes->ia_uid.val;
}

/* The cgroup to which the kernel charges a thread, of either version; 0 if it has none. */
static __always_inline u64 group_of(struct task_struct *p)
{
	return bpf_core_field_exists(p->sched_task_group) ? (u64)BPF_CORE_READ(p, sched_task_group) : 0;
}

/* Whether that is this one: a comparison needs no number, so no helper reads it. */
static __always_inline bool is_group_of(struct task_struct *p, u64 group)
{
	return bpf_core_field_exists(p->sched_task_group) && (u64)p->sched_task_group == group;
}

static __always_inline u64 group_above(u64 group)
{
	return (u64)BPF_CORE_READ((struct task_group *)group, parent);
}

SEPARATE int read_group(u64 group, struct group_read *out)
{
	struct task_group *g = task_group_at(group);

	if (!out)
		return 0;
	out->quota = ~0ull;
	out->above = (u64)g->parent;
	/* A session's own group (autogroup) is no cgroup: it has none. */
	out->id = g->css.cgroup->kn->id;
	if (bpf_core_field_exists(g->shares))
		out->shares = g->shares;
	else if (bpf_core_field_exists(g->scx.weight))
		out->shares = (u64)g->scx.weight * GROUP_SHARES / 100;
	if (bpf_core_field_exists(g->cfs_bandwidth)) {
		out->quota = g->cfs_bandwidth.quota;
		if (out->quota == ~0ull)
			return 0;
		out->period = g->cfs_bandwidth.period;
		if (bpf_core_field_exists(g->cfs_bandwidth.burst))
			out->burst = g->cfs_bandwidth.burst;
	} else if (bpf_core_field_exists(g->scx.bw_quota_us)) {
		/* A kernel whose fair scheduler keeps no limits (CONFIG_CFS_BANDWIDTH). */
		out->quota = g->scx.bw_quota_us;
		if (out->quota == ~0ull)
			return 0;
		out->quota *= 1000;
		out->period = g->scx.bw_period_us * 1000;
		out->burst = g->scx.bw_burst_us * 1000;
	}
	return 0;
}

/* How many cgroups lie above one. */
static __always_inline s32 level_of(u64 group)
{
	return task_group_at(group)->css.cgroup->level;
}

#else
static __always_inline u64 group_of(struct task_struct *p)
{
	return p->group;
}

static __always_inline bool is_group_of(struct task_struct *p, u64 group)
{
	return p->group == group;
}

static __always_inline struct group *group_at(u64 id)
{
	struct group *g = id < SHIM_MAX_GROUPS ? &INSTEP_STATE->groups[id] : NULL;

	return g && g->seen_at ? g : NULL;
}

static __always_inline struct group *new_group(u64 id, bool *full)
{
	*full = id >= SHIM_MAX_GROUPS;
	return id < SHIM_MAX_GROUPS ? &INSTEP_STATE->groups[id] : NULL;
}

static __always_inline u32 *group_weight_at(u64 id)
{
	return id < SHIM_MAX_GROUPS ? &INSTEP_STATE->group_weights[id] : NULL;
}

#define GROUPS_OF_USERS (SHIM_MAX_GROUPS / 2)

static __always_inline bool is_of_user(u64 group)
{
	return INSTEP_STATE->cgroups[group % SHIM_MAX_GROUPS].owner;
}

static __always_inline void read_group(u64 group, struct group_read *out)
{
	struct shim_group *g = &INSTEP_STATE->cgroups[group % SHIM_MAX_GROUPS];

	*out = (struct group_read){
		.id = group, .shares = g->shares, .quota = g->quota, .period = g->period, .burst = g->burst, .above = g->above,
	};
}

static __always_inline u64 group_above(u64 group)
{
	return INSTEP_STATE->cgroups[group % SHIM_MAX_GROUPS].above;
}

static __always_inline s32 level_of(u64 group)
{
	s32 level = 0;

	for (; group; group = group_above(group))
		level++;
	return level;
}
#endif

/* Whether a cgroup has a limit: a quota of all CPUs or more is none. */
static __always_inline bool has_limit(struct group_read *own)
{
	return own->period && own->quota / own->period < INSTEP_STATE->online;
}

/* A new entry of a cgroup; NULL if there is no room. */
static __always_inline struct group *make_group(u64 id, u64 group)
{
	bool of_user = is_of_user(group);
	bool full = of_user && INSTEP_STATE->user_groups >= GROUPS_OF_USERS;
	struct group *g = full ? NULL : new_group(id, &full);

	if (full)
		count(INSTEP_C_GROUP_LOST);
	else if (g && of_user && !__sync_lock_test_and_set(&g->of_user, 1))
		__sync_fetch_and_add(&INSTEP_STATE->user_groups, 1);
	return g;
}

/*
 * A cgroup with a thread below it: its weight as the kernel has it, and which one is above `below`. Whether there is room for
 * it.
 */
static __always_inline bool note_cgroup(struct group_read *own, u64 group, u64 below, u64 now)
{
	struct group *g = group_at(own->id) ?: make_group(own->id, group), *child = below ? group_at(below) : NULL;
	u64 most;

	if (!g)
		return false;
	g->seen_at = now;
	most = has_limit(own) ? own->quota * 1000 / own->period : 0;
	if (g->shares != own->shares || g->most != most) {
		if (g->shares)
			count(INSTEP_C_REWEIGHED);
		g->shares = own->shares;
		g->most = most;
	}
	if (child && child->parent != own->id)
		child->parent = own->id;
	return true;
}

/* Notes the cgroups above a thread; the nearest of them for which there is room, 0 if there is none. */
SEPARATE u64 note_cgroups(u64 group, u64 now)
{
	u64 nearest = 0, below = 0;

	bpf_repeat(GROUP_LEVELS) {
		struct group_read own = {};

		if (!group)
			break;
		read_group(group, &own);
		if (own.id && note_cgroup(&own, group, below, now)) {
			nearest = nearest ?: own.id;
			below = own.id;
		}
		group = own.above;
	}
	return nearest;
}

/* What user space has written of a cgroup; of one that it has not seen yet the threads weigh as others do on average. */
static __always_inline u32 weight_of_group(u64 id)
{
	u32 *weight = group_weight_at(id);

	return weight && *weight ? *weight : SET.thread_weight;
}

/* What a thread of this weight by its nice value weighs among others of its account. */
SEPARATE int set_thread_weight(struct task_state *t, u32 nice)
{
	u64 mean = SET.thread_weight, weight = (u64)nice * (POL_WEIGHT / 100);

	if (!t)
		return 0;
	if (t->vm == INSTEP_HOST && mean)
		weight = weight_of_group(t->node) * weight / mean;
	t->weight = pol_clamp(weight, 1, 1u << 20); /* an account's `weights` has 31 bits */
	return 0;
}

/* A thread goes to sleep: what it used since it did so before. */
static __always_inline void end_burst(struct task_struct *p, struct task_state *t)
{
	u64 used = p->se.sum_exec_runtime;

	t->is_long = 0;
	t->woke = t->own;
	t->burst = pol_clamp(used - t->used_asleep, 1, SET.slice_ns);
	t->used_asleep = used;
}

/*
 * Of a weight or a time, what counts while a thread waits: the square of the part of a slice that it used before it slept. Timers
 * and kernel workers run for microseconds and wait for milliseconds where gangs run. All of this would be taken for demand,
 * and the services of the host would have it. All counts while they use up the windows that they have there (slot.bpf.h, serve_host).
 */
static __always_inline u64 wanted_part(struct task_state *t, u64 whole)
{
	struct domain_state *d = domain_of(t->stands_on);
	u64 slice = SET.slice_ns ?: 1;

	return (d && d->host.pressed) || t->is_long || !t->burst ? whole : whole * t->burst / slice * t->burst / slice;
}

/* Before a thread of the host begins to wait, to run or to sleep, and at each tick: for how long it wanted a CPU. */
SEPARATE int note_want(struct task_state *t, u64 now)
{
	struct group *g;
	u64 since;

	if (!t)
		return 0;
	since = t->wants_since;
	t->wants_since = now;
	if (t->standing == STANDS_NOWHERE || t->held || !pol_before(since, now))
		return 0;
	g = group_at(t->node);
	if (g)
		__sync_fetch_and_add(&g->want_ns, t->standing == STANDS_QUEUED ? wanted_part(t, now - since) : now - since);
	return 0;
}

/*
 * What an account weighs from now on: of the host, what its threads weigh together while there are any, mean over some periods.
 */
SEPARATE int end_weight_period(struct account *a, u32 vm)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	u64 active, sum, weight;

	if (!a || !s)
		return 0;
	if (!a->is_host) {
		a->weight = s->weight;
		return 0;
	}
	active = __sync_lock_test_and_set(&a->active_ns, 0);
	sum = __sync_lock_test_and_set(&a->weight_ns, 0);
	if (!SET.thread_weight) {
		a->weight = SET.host_weight;
	} else if (active) {
		weight = sum / active * SET.thread_weight / POL_WEIGHT ?: 1;
		a->weight = (3 * (u64)a->weight + weight) / 4 ?: 1;
	}
	return 0;
}

#endif
