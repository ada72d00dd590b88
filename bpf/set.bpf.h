/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which CPUs of a domain a gang has.
 *
 * Flag: none (only gangs have sets). Counters: none.
 *
 * Problem: if each VM has other CPUs, and these overlap in part, each VM that starts interrupts a part of another.
 * Method: a gang has a *gang set*: as many CPUs of its domain as it has seats. The seat with number n has the n-th CPU of the
 * set, whose CPUs lie side by side among those that the VM may use. Sets of 2, 4, 8 ... CPUs begin at multiples of their size, so
 * that those of VMs that may use the same CPUs coincide, nest or are disjoint. Among the possible sets the one is taken with the lowest
 *     cost = load of its most loaded CPU by gangs + mean load of its CPUs by others
 *            + 256 for each gang set that it crosses + 128 if it lies in two caches
 * where a gang loads each of its CPUs by (share / seats), 1024 is a whole CPU, and accounts that form no gang load the
 * last CPUs of the domain: there they have their CPUs in each slot (slot.bpf.h).
 *     A gang whose vCPUs may use different CPUs, as those of a VM whose vCPUs are pinned, has the least loaded one for each, and these
 * stay its set.
 *     A gang that is wider than a domain has a part in each of several, and in each such a set: span.bpf.h.
 * Limits: load is an estimate over some periods of 24 ms.
 */
#ifndef INSTEP_SET_BPF_H
#define INSTEP_SET_BPF_H

#include "queue.bpf.h"

/* The window of evidence (gang.bpf.h). */
#define WINDOW_NS (48 * POL_MS)
#define CROSS_COSTS 256u
#define CACHE_COSTS 128u

/* How much a gang loads each of its CPUs, 1024ths. */
static __always_inline u32 load_by(struct vm_state *v)
{
	u32 each = v->account.share / (v->seats ?: 1);

	return each > POL_CPU ? POL_CPU : each;
}

/*
 * What a VM wants of a domain's pool, 1024ths of a CPU: all that its vCPUs want, or, of a gang, its siblings that block. One
 * whose vCPUs run for a moment now and then is served by preemption: a CPU kept for it would be empty most of the time.
 */
SEPARATE u32 pool_demand(u32 vm, u32 domain)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	u32 seated, demand;

	if (!s || !v)
		return 0;
	seated = v->seats * POL_CPU;
	demand = v->account.demand;
	if (demand <= seated || (demand - seated) / (s->nr_vcpus - v->seats ?: 1) < POL_CPU / 8)
		return 0;
	if (is_spread_pool(v))
		return demand / v->nr_parts;
	return v->account.domain == domain ? demand - seated : 0;
}

/* What the host's threads want of it: those that run for long, and all where windows are too little. */
static __always_inline u32 host_demand(struct domain_state *d)
{
	u32 demand = (d->host.pressed ? wanting(&d->host) : d->host.nr_long) * POL_CPU;

	return demand < d->host.share ? demand : d->host.share;
}

/* After so many slots it is judged whether windows are enough. */
#define WINDOW_SLOTS 8

/*
 * Threads that block often never run for long, and windows are an eighth of each half of a slot. If they used up half of what they were
 * offered there they would use more: until the next judgement they count as others do, and have CPUs in the order of virtual time.
 */
static __always_inline void judge_windows(struct domain_state *d)
{
	struct account *a = &d->host;
	u64 used;

	if (d->slot - d->judged < WINDOW_SLOTS)
		return;
	d->judged = d->slot;
	used = __sync_lock_test_and_set(&a->in_windows, 0);
	a->pressed = d->offered ? 2 * used >= d->offered : a->pressed && a->nr_running;
	d->offered = 0;
}

/*
 * What loads a domain, with `more` or less than that, by the capacity of its CPUs that VMs may use: 1024 where that is all they
 * can do.
 */
static __always_inline u32 load_per_cpu(struct domain_state *d, s32 more)
{
	s64 load = (s64)d->loaded + more;
	u64 capacity = (u64)d->capacity * pol_count(d->used ?: d->lanes);

	return load > 0 ? (u64)load * POL_CPU * d->nr_lanes / (capacity ?: POL_CPU) : 0;
}

/* Adds `amount` to the load of each CPU of a set. */
SEPARATE int add_load(struct domain_state *d, u64 set, u32 amount)
{
	if (!d)
		return 0;
	bpf_repeat(pol_count(set))
		d->load[within(pol_take(&set), INSTEP_LANES)] += amount;
	return 0;
}

/* Makes the list of the domain's VMs anew. */
SEPARATE int list_members(struct domain_state *d, u32 domain)
{
	u32 n = INSTEP_STATE->nr_vms, gangs = 0, wide = 0, spread = 0;
	u64 used = 0;
	s32 k;

	if (!d)
		return 0;
	d->stale = 0;
	d->listed = 0;
	bpf_for(k, 1, n < INSTEP_MAX_VMS ? n : INSTEP_MAX_VMS) {
		struct instep_vm_settings *own = vm_set_of(k);
		struct vm_state *v = vm_of(k);

		if (!v || !own || !v->joined || !own->weight)
			continue;
		used |= lanes_for(v, d);
		if (!is_member(v, domain))
			continue;
		gangs += v->seats > 1;
		wide += is_gang(v) && pol_count(part_in(v, domain)->set) * 2 > d->nr_lanes;
		spread += is_spread_gang(v);
		d->members[within(d->listed, INSTEP_MAX_VMS)] = k;
		d->listed++;
	}
	d->used = used;
	d->nr_members = d->listed;
	d->nr_gangs = gangs;
	d->nr_wide = wide;
	d->nr_spread = spread;
	return 0;
}

/* The load of each CPU of a domain, without this VM's. */
SEPARATE int sum_load(struct domain_state *d, u32 domain, u32 without)
{
	u32 pool, n, whole;
	u64 set;
	s32 k;

	if (!d)
		return 0;
	__builtin_memset(d->load, 0, sizeof(d->load));
	__builtin_memset(d->pool_load, 0, sizeof(d->pool_load));
	pool = host_demand(d);
	n = members_of(d);
	bpf_for(k, 0, n) {
		u32 vm = d->members[within(k, INSTEP_MAX_VMS)];
		struct vm_state *v = vm_of(vm);

		if (!v || vm == without || !is_member(v, domain))
			continue;
		if (is_gang(v))
			add_load(d, part_in(v, domain)->set, load_by(v));
		whole = pool_demand(vm, domain);
		pool += pol_min(whole, v->account.share / (v->seats ? 1 : v->nr_parts ?: 1));
	}
	set = d->lanes;
	bpf_repeat(pol_count(set)) {
		u32 lane = pol_highest(set);

		if (!pool)
			break;
		set &= ~pol_lane(lane);
		whole = pool < POL_CPU ? pool : POL_CPU;
		d->pool_load[within(lane, INSTEP_LANES)] = whole;
		pool -= whole;
	}
	return 0;
}

struct set_score {
	u32 cost;
	u32 peak;  /* load of the most loaded CPU, without the gang's own */
	u64 least_vtime; /* least virtual time of the gangs that it would meet only there, 0 if there are none */
	bool holes;	 /* what they had in holes is part of that, and only those at least half as wide count */
};

/* What speaks against this set for a gang, `sum_load` having been called without it. */
SEPARATE int score_set(struct domain_state *d, u64 set, u32 vm, struct set_score *score)
{
	struct vm_state *self = vm_of(vm);
	u32 crossed = 0, pool = 0, n, domain;
	u64 own = self && is_gang(self) ? part_in(self, d ? d->host.domain : 0)->set : 0, rest;
	s32 k;

	if (!d || !score)
		return 0;
	domain = d->host.domain;
	score->peak = 0;
	score->least_vtime = 0;
	rest = set;
	bpf_repeat(pol_count(set)) {
		u32 lane = pol_take(&rest), load = d->load[within(lane, INSTEP_LANES)];

		pool += d->pool_load[within(lane, INSTEP_LANES)];
		if (load > score->peak)
			score->peak = load;
	}
	n = members_of(d);
	bpf_for(k, 0, n) {
		u32 other = d->members[within(k, INSTEP_MAX_VMS)];
		struct vm_state *v = vm_of(other);
		u64 met = v && is_gang(v) ? part_in(v, domain)->set : 0, vtime;

		if (!v || other == vm || !(met & set))
			continue;
		crossed += pol_crosses(met, set);
		/* One that is wider is met elsewhere, too. */
		if (set == own ? (met & ~own) : (met & own))
			continue;
		if (score->holes && 2 * pol_count(met) < pol_count(set))
			continue;
		vtime = vtime_in(v, domain) + (score->holes ? v->spare : 0);
		if (!score->least_vtime || pol_before(vtime, score->least_vtime))
			score->least_vtime = vtime;
	}
	score->cost = score->peak + pool / (pol_count(set) ?: 1) + crossed * CROSS_COSTS;
	if (set & d->caches & ~(1ull << pol_lowest(set)))
		score->cost += CACHE_COSTS;
	return 0;
}

/* Whether the gangs that a gang would meet only at set `a` are further ahead than those at set `b`. */
static __always_inline bool meets_later(struct set_score *a, struct set_score *b)
{
	return !a->least_vtime || (b->least_vtime && pol_before(b->least_vtime, a->least_vtime));
}

/* Of these lanes so many from this one on, 0 if there are too few; for the verifier, which follows it once. */
SEPARATE u64 pick_lanes(u64 lanes, u32 first, u32 count)
{
	return pol_pick(lanes, first, count);
}

/*
 * The best set of so many CPUs for a gang; 0 if the domain has none. With `most`, of the sets that cost no more than that
 * the one that meets the gangs furthest ahead.
 */
SEPARATE u64 find_set(struct domain_state *d, u32 vm, u32 size, u32 most, struct set_score *best)
{
	struct set_score score = { .holes = best && best->holes };
	struct vm_state *v = vm_of(vm);
	u64 found = 0, lanes;
	u32 step, steps;
	s32 k;

	if (!d || !v || !best || !size)
		return 0;
	lanes = lanes_for(v, d);
	if (size > pol_count(lanes))
		return 0;
	step = pol_set_step(size, pol_count(lanes));
	steps = (pol_count(lanes) - size) / (step ?: 1) + 1;
	bpf_for(k, 0, steps < INSTEP_LANES ? steps : INSTEP_LANES) {
		u64 set = pick_lanes(lanes, k * step, size);

		if (!set || (set & d->lost))
			continue;
		score_set(d, set, vm, &score);
		if (most ? score.cost > most || (found && !meets_later(&score, best)) :
			   found && score.cost >= best->cost)
			continue;
		found = set;
		*best = score;
	}
	return found;
}

/* Whether a vCPU has a seat in its VM's gang. Where siblings may not use all CPUs it has none before it is known which it may use. */
static __always_inline bool is_for_seat(struct vm_state *v, struct slot_info *i, bool all)
{
	return (i->gang || all) && (i->noted ? i->allowed != 0 : !i->cpus && !v->restricted);
}

/* The least loaded of these CPUs. */
SEPARATE u32 least_loaded_lane(struct domain_state *d, u64 lanes)
{
	u32 found = 0, least = ~0u;

	if (!d)
		return 0;
	bpf_repeat(pol_count(lanes)) {
		u32 lane = pol_take(&lanes), load = d->load[within(lane, INSTEP_LANES)] + d->pool_load[within(lane, INSTEP_LANES)];

		if (load >= least)
			continue;
		least = load;
		found = lane;
	}
	return found;
}

/* How many of the vCPUs at home in a domain have seats; 0 if one of them may not use all CPUs of this set. */
SEPARATE u32 nr_seated(u32 vm, u32 domain, u64 set, bool all)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	u32 n, count = 0;
	s32 k;

	if (!s || !v)
		return 0;
	n = vcpus_of(s);
	bpf_for(k, 0, n) {
		struct slot_info *i = slot_of(s->first_slot + k);

		if (!i || !is_for_seat(v, i, all) || i->home != domain)
			continue;
		if (set & ~i->allowed)
			return 0;
		count++;
	}
	return count;
}

/* Adds to a set a lane of these for a vCPU: the lowest, or the least loaded one that it may use. 0 if there is none. */
SEPARATE u64 assign_lane(struct domain_state *d, struct slot_info *i, u64 set, u64 best)
{
	u64 rest;

	if (!d || !i)
		return 0;
	rest = (best ?: i->allowed) & ~set & ~d->lost;
	if (!rest)
		return 0;
	i->lane = best ? pol_lowest(rest) : least_loaded_lane(d, rest);
	return set | pol_lane(i->lane);
}

/*
 * The set of a gang whose vCPUs may use different CPUs, in one of their homes: the best of all sets if all there may use it. Else
 * each has the least loaded CPU that it may use and no sibling has; those that may use one only come first. 0 if one finds none.
 */
static __always_inline u64 assign_lanes(struct domain_state *d, u32 vm, bool all)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	struct set_score score = {};
	u64 set = 0, best;
	u32 n;
	s32 k;

	if (!d || !s || !v)
		return 0;
	best = find_set(d, vm, nr_seated(vm, d->host.domain, 0, all), 0, &score);
	if (best && !nr_seated(vm, d->host.domain, best, all))
		best = 0;
	n = vcpus_of(s);
	bpf_for(k, 0, 2 * n) {
		struct slot_info *i = slot_of(s->first_slot + (k < n ? k : k - n));

		if (!i || !is_for_seat(v, i, all) || i->home != d->host.domain || (pol_count(i->allowed) == 1) != (k < n))
			continue;
		set = assign_lane(d, i, set, best);
		if (!set)
			return 0;
	}
	return set;
}

/* CPUs that a higher class has had for a whole window (higher.bpf.h): no gang can have them. */
SEPARATE u64 lost_lanes(struct domain_state *d, u64 now)
{
	u64 lost = 0, set;

	if (!d)
		return 0;
	set = d->taken;
	bpf_repeat(pol_count(set)) {
		u32 lane = pol_take(&set);
		struct cpu_state *c = cpu_of(cpu_at(d, lane));

		if (c && c->taken_at && pol_since(c->taken_at, now) > WINDOW_NS)
			lost |= pol_lane(lane);
	}
	return lost;
}

/* So many CPUs of a domain a VM may have as a gang. */
static __always_inline u32 room_for(struct vm_state *v, struct domain_state *d)
{
	return d->isolated ? 0 : pol_count(lanes_for(v, d) & ~d->lost);
}

/* Gives part `k` of a gang the best set of so many CPUs of a domain; whether there is one. */
SEPARATE int place_part(u32 vm, u32 k, u32 domain, u32 size)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	struct domain_state *d = domain_of(domain);
	struct set_score score = {};
	struct gang_part *part;

	if (!v || !s || !d)
		return false;
	list_members(d, domain);
	sum_load(d, domain, vm);
	part = &v->parts[within(k, INSTEP_MAX_PARTS)];
	part->domain = domain;
	part->granted = 0;
	v->assigned = v->restricted && !v->alike;
	part->set = v->assigned ? assign_lanes(d, vm, s->cosched == INSTEP_COSCHED_RELAXED) : find_set(d, vm, size, 0, &score);
	d->stale = 1;
	return part->set != 0;
}

#endif
