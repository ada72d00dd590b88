/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which vCPUs form a gang, and which CPUs a gang has.
 *
 * Flag: gang. Counters: gang_on, gang_off.
 *
 * Problem: a vCPU that hardly ever blocks computes or spins for a sibling. If its siblings run at the same time it
 * loses nothing in the first case, and all that it would have spun away in the second. On many CPUs that is a
 * problem of packing: if each VM has other CPUs, and these overlap in part, each VM that starts tears another.
 * Method: evidence is per vCPU. In a window of 48 ms, blocks and CPU time are counted; it belongs to the gang where
 *     blocks * 20 ms <= CPU time        and no longer where      blocks * 10 ms > CPU time
 * Two such vCPUs make a gang. Each has a *seat*, a number; siblings that block stay outside and wait like others.
 *     A gang has a *gang set*: as many CPUs of its domain as it has seats. The seat with number n has the n-th CPU of
 * the set. Sets of 2, 4, 8 ... CPUs begin at multiples of their size,
 * so that they coincide, nest or are disjoint. Among the possible sets the one is taken with the lowest
 *     cost = load of its most loaded CPU by gangs + mean load of its CPUs by others
 *            + 256 for each gang set that it crosses + 128 if it lies in two caches
 * where a gang loads each of its CPUs by (share / seats), 1024 is a whole CPU, and accounts that form no gang load the
 * last CPUs of the domain: there they have their CPUs in each slot (slot.bpf.h).
 *     A VM joins the domain that is least loaded, of its home node if it has one. How sets and VMs move: moves.bpf.h.
 * Limits: evidence is blocks; a guest that halts for a paravirtual spinlock is taken for one that blocks. A VM of which
 * more vCPUs never block than its domain has CPUs forms no gang, nor does one for which a higher class leaves too few CPUs.
 */
#ifndef INSTEP_GANG_BPF_H
#define INSTEP_GANG_BPF_H

#include "queue.bpf.h"

#define WINDOW_NS (48 * POL_MS)
/* A set may move again after this. */
#define REST_NS (96 * POL_MS)
#define CROSS_COSTS 256u
#define CACHE_COSTS 128u

static __always_inline bool is_gang(struct vm_state *v)
{
	return v->seats > 1 && v->set;
}

/* How much a gang loads each of its CPUs, 1024ths. */
static __always_inline u32 load_by(struct vm_state *v)
{
	u32 lanes = pol_count(v->set), share = v->account.share;
	u32 each = lanes ? share / lanes : 0;

	return each > POL_CPU ? POL_CPU : each;
}

/*
 * What a VM wants of the pool, 1024ths of a CPU: all that its vCPUs want, or, of a gang, its siblings that block. One
 * whose vCPUs run for a moment now and then is served by preemption: a CPU kept for it would be empty most of the time.
 */
static __always_inline u32 pool_demand(struct vm_state *v, u32 vm)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	u32 seated = v->seats * POL_CPU, demand = v->account.demand;

	if (!s || demand <= seated || (demand - seated) / (s->nr_vcpus - v->seats ?: 1) < POL_CPU / 8)
		return 0;
	return demand - seated;
}

/* What the host's threads want of it: those that run for long. */
static __always_inline u32 host_demand(struct domain_state *d)
{
	u32 demand = d->host.nr_long * POL_CPU;

	return demand < d->host.share ? demand : d->host.share;
}

/* Adds `amount` to the load of each CPU of a set. */
SEPARATE int add_load(struct domain_state *d, u64 set, u32 amount)
{
	s32 lane;

	if (!d)
		return 0;
	bpf_for(lane, 0, INSTEP_LANES)
		if (set & pol_lane(lane))
			d->load[within(lane, INSTEP_LANES)] += amount;
	return 0;
}

/* Makes the list of the domain's VMs anew. */
SEPARATE int list_members(struct domain_state *d, u32 domain)
{
	u32 n = INSTEP_STATE->nr_vms, gangs = 0;
	s32 k;

	if (!d)
		return 0;
	d->stale = 0;
	d->listed = 0;
	bpf_for(k, 1, n < INSTEP_MAX_VMS ? n : INSTEP_MAX_VMS) {
		struct vm_state *v = vm_of(k);

		if (!v || !v->joined || v->account.domain != domain || !weight_of(k))
			continue;
		gangs += v->seats > 1;
		d->members[within(d->listed, INSTEP_MAX_VMS)] = k;
		d->listed++;
	}
	d->nr_members = d->listed;
	d->nr_gangs = gangs;
	return 0;
}

/* The load of each CPU of a domain, without this VM's. */
SEPARATE int sum_load(struct domain_state *d, u32 domain, u32 without)
{
	u32 pool, n, whole;
	s32 k;

	if (!d)
		return 0;
	bpf_for(k, 0, INSTEP_LANES)
		d->load[within(k, INSTEP_LANES)] = d->pool_load[within(k, INSTEP_LANES)] = 0;
	pool = host_demand(d) + d->light;
	n = d->nr_members < INSTEP_MAX_VMS ? d->nr_members : INSTEP_MAX_VMS;
	bpf_for(k, 0, n) {
		u32 vm = d->members[within(k, INSTEP_MAX_VMS)];
		struct vm_state *v = vm_of(vm);

		if (!v || vm == without || v->account.domain != domain)
			continue;
		if (is_gang(v))
			add_load(d, v->set, load_by(v));
		whole = pool_demand(v, vm);
		pool += whole < v->account.share ? whole : v->account.share;
	}
	bpf_for(k, 0, INSTEP_LANES) {
		u32 lane = INSTEP_LANES - 1 - k;

		if (!(d->lanes & pol_lane(lane)) || !pool)
			continue;
		whole = pool < POL_CPU ? pool : POL_CPU;
		d->pool_load[within(lane, INSTEP_LANES)] = whole;
		pool -= whole;
	}
	return 0;
}

struct set_score {
	u32 cost;
	u32 peak;  /* load of the most loaded CPU, without the gang's own */
	u64 ahead; /* least virtual time of the gangs that have CPUs of it, 0 if there are none */
};

/* What speaks against this set for a gang, `sum_load` having been called without it. */
SEPARATE int score_set(struct domain_state *d, u64 set, u32 vm, struct set_score *score)
{
	u32 crossed = 0, pool = 0, n;
	s32 k;

	if (!d || !score)
		return 0;
	score->peak = 0;
	score->ahead = 0;
	bpf_for(k, 0, INSTEP_LANES) {
		u32 load = d->load[within(k, INSTEP_LANES)];

		if (!(set & pol_lane(k)))
			continue;
		pool += d->pool_load[within(k, INSTEP_LANES)];
		if (load > score->peak)
			score->peak = load;
	}
	n = d->nr_members < INSTEP_MAX_VMS ? d->nr_members : INSTEP_MAX_VMS;
	bpf_for(k, 0, n) {
		u32 other = d->members[within(k, INSTEP_MAX_VMS)];
		struct vm_state *v = vm_of(other);

		if (!v || other == vm || !(v->set & set))
			continue;
		crossed += pol_crosses(v->set, set);
		if (!score->ahead || pol_before(v->account.vtime, score->ahead))
			score->ahead = v->account.vtime;
	}
	score->cost = score->peak + pool / (pol_count(set) ?: 1) + crossed * CROSS_COSTS;
	if (set & d->caches & ~(1ull << pol_lowest(set)))
		score->cost += CACHE_COSTS;
	return 0;
}

/* Whether a gang would be better off among those of set `a` than among those of `b`: all are further ahead of it. */
static __always_inline bool meets_later(struct set_score *a, struct set_score *b)
{
	return !a->ahead || (b->ahead && pol_before(b->ahead, a->ahead));
}

/*
 * The best set of so many CPUs for a gang; 0 if the domain has none. With `most`, of the sets that cost no more than that
 * the one whose gangs are furthest ahead.
 */
SEPARATE u64 find_set(struct domain_state *d, u32 vm, u32 size, u32 most, struct set_score *best)
{
	struct set_score score = {};
	struct vm_state *v = vm_of(vm);
	u32 step, steps;
	u64 found = 0, allowed = v ? v->allowed : ~0ull;
	s32 k;

	if (!d || !best || !size || size > d->nr_lanes)
		return 0;
	step = pol_set_step(size);
	steps = (d->nr_lanes - size) / (step ?: 1) + 1;
	bpf_for(k, 0, steps < INSTEP_LANES ? steps : INSTEP_LANES) {
		u64 set = pol_span(k * step, size);

		if (set & (~allowed | d->lost))
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

/* Gives the gang the best set of its domain. */
SEPARATE int settle(u32 vm, u64 now)
{
	struct vm_state *v = vm_of(vm);
	struct set_score score = {};
	struct domain_state *d;

	if (!v)
		return 0;
	d = domain_of(v->account.domain);
	if (!d)
		return 0;
	list_members(d, v->account.domain);
	sum_load(d, v->account.domain, vm);
	v->set = v->seats > 1 ? find_set(d, vm, v->seats, 0, &score) : 0;
	v->moved_at = now;
	return 0;
}

/* Takes over the evidence of a vCPU; whether it belongs to the gang. */
static __always_inline bool judge_vcpu(struct slot_info *i, bool all)
{
	i->gang = pol_hardly_blocks(i->gang, i->ran_ns, i->blocks);
	/* What a vCPU that waits for long and never blocks has in a window is little: it counts in the next one, too. */
	if (!i->gang && !i->blocks && i->ran_ns < POL_EVIDENCE_NS)
		return false;
	i->ran_ns = 0;
	i->blocks = 0;
	return !i->pinned && (i->gang || all);
}

/* Looks at the vCPUs of a VM; how many belong to the gang. Each notes in `seat` whether it does. */
SEPARATE u32 judge_vcpus(u32 vm, bool all)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	u32 seats = 0, n;
	s32 k;

	if (!s)
		return 0;
	n = s->nr_vcpus < INSTEP_MAX_VCPUS ? s->nr_vcpus : INSTEP_MAX_VCPUS;
	bpf_for(k, 0, n) {
		struct slot_info *i = slot_of(s->first_slot + k);

		if (i && judge_vcpu(i, all))
			seats++;
	}
	return seats;
}

/* Numbers the vCPUs of a gang, or of one that is none any more (`seats` 0). Those that wait are found again. */
SEPARATE int number_seats(u32 vm, u32 seats, bool all)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	struct numbering *c;
	u32 n;
	s32 k;

	if (!s || !v)
		return 0;
	c = &v->numbering;
	*c = (struct numbering){};
	n = s->nr_vcpus < INSTEP_MAX_VCPUS ? s->nr_vcpus : INSTEP_MAX_VCPUS;
	bpf_for(k, 0, n) {
		struct slot_info *i = slot_of(s->first_slot + k), *seat = slot_of(s->first_slot + c->next);
		bool has = i && c->next < seats && !i->pinned && (i->gang || all);

		if (!i || !seat)
			break;
		i->seat = has ? c->next : NO_SEAT;
		i->stray = i->waits && !has;
		c->strays += i->stray;
		if (!has)
			continue;
		seat->sits = s->first_slot + k;
		if (i->waits)
			c->waiting |= pol_lane(c->next);
		c->next++;
	}
	v->waiting = c->waiting;
	v->strays = c->strays;
	return 0;
}

/* The CPU of a vCPU's seat, in its gang's set; NO_CPU for a thread without a seat. */
static __always_inline s32 seat_cpu(struct task_state *t)
{
	struct slot_info *i = slot_of(t->slot);
	struct vm_state *v = vm_of(t->vm);
	struct domain_state *d;
	u64 set;

	if (!i || !v || i->seat == NO_SEAT || !is_gang(v))
		return NO_CPU;
	d = domain_of(v->account.domain);
	if (!d)
		return NO_CPU;
	set = v->set;
	bpf_repeat(i->seat)
		set &= set - 1;
	return set ? cpu_at(d, pol_lowest(set)) : NO_CPU;
}

/* A vCPU comes to the queue of its seat. */
static __always_inline void come_to_seat(struct task_state *t, struct slot_info *i, struct vm_state *v,
					 struct domain_state *d)
{
	t->seat = i->seat;
	i->waits = 1;
	__sync_fetch_and_or(&v->waiting, pol_lane(i->seat));
	if (!d->seat_waits)
		d->seat_waits = 1;
}

/* A vCPU that leaves the queue of its seat. */
static __always_inline void leave_seat(struct task_state *t)
{
	struct slot_info *i = slot_of(t->slot);
	struct vm_state *v = vm_of(t->vm);

	if (t->seat == NO_SEAT)
		return;
	t->seat = NO_SEAT;
	if (!i || !v)
		return;
	i->waits = 0;
	if (i->seat < INSTEP_LANES)
		__sync_fetch_and_and(&v->waiting, ~pol_lane(i->seat));
	if (i->stray && v->strays)
		__sync_fetch_and_sub(&v->strays, 1);
	i->stray = 0;
}

/* The CPUs of a domain that a thread may use. */
static __noinline u64 allowed_lanes(struct task_struct *p, struct domain_state *d)
{
	u64 allowed = d ? d->lanes : 0;
	s32 lane;

	bpf_for(lane, 0, INSTEP_LANES)
		if ((allowed & pol_lane(lane)) && !may_use(p, cpu_at(d, lane)))
			allowed &= ~pol_lane(lane);
	return allowed;
}

/* Which CPUs of its domain a VM may use: what any of its vCPUs may, as far as these were seen. */
SEPARATE int sum_allowed(u32 vm)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	bool restricted = false, more = false;
	u64 allowed = 0;
	u32 n;
	s32 k;

	if (!v || !s)
		return 0;
	n = s->nr_vcpus < INSTEP_MAX_VCPUS ? s->nr_vcpus : INSTEP_MAX_VCPUS;
	bpf_for(k, 0, n) {
		struct slot_info *i = slot_of(s->first_slot + k);

		if (!i || i->noted != v->account.domain + 1)
			continue;
		allowed |= i->allowed;
		restricted |= i->cpus > 0;
		more |= !i->cpus || i->cpus > pol_count(i->allowed);
	}
	v->allowed = allowed;
	v->restricted = restricted;
	v->account.room = more ? 0 : pol_count(allowed);
	return 0;
}

/* Which CPUs of its VM's domain a vCPU may use. */
static __noinline void note_allowed(struct task_struct *p, struct task_state *t)
{
	struct slot_info *i = t ? slot_of(t->slot) : NULL;
	struct vm_state *v = t ? vm_of(t->vm) : NULL;
	struct domain_state *d = v ? domain_of(v->account.domain) : NULL;
	u32 cpus = p->nr_cpus_allowed;

	if (!i || !v || !d || !v->joined)
		return;
	i->cpus = cpus < INSTEP_STATE->common ? cpus : 0;
	i->allowed = i->cpus ? allowed_lanes(p, d) : d->lanes;
	i->noted = v->account.domain + 1;
	sum_allowed(t->vm);
}

/* CPUs that a higher class has had for a whole window (taken.bpf.h): no gang can have them. */
SEPARATE u64 lost_lanes(struct domain_state *d, u64 now)
{
	u64 lost = 0;
	s32 lane;

	if (!d || !d->taken)
		return 0;
	bpf_for(lane, 0, INSTEP_LANES) {
		struct cpu_state *c;

		if (!(d->taken & pol_lane(lane)))
			continue;
		c = cpu_of(cpu_at(d, lane));
		if (c && c->taken_at && pol_since(c->taken_at, now) > WINDOW_NS)
			lost |= pol_lane(lane);
	}
	return lost;
}

/* Looks at a VM's evidence at the end of each window. */
SEPARATE int weigh(u32 vm, u64 now)
{
	struct vm_state *v = vm_of(vm);
	struct instep_vm_settings *s = vm_set_of(vm);
	struct domain_state *d;
	u32 before, seats, room;
	bool all;
	u64 begun;

	if (!v || !s || !v->joined)
		return 0;
	begun = v->window_at;
	if (pol_since(begun, now) < WINDOW_NS)
		return 0;
	/* Another CPU's tick may be at it, too. */
	if (__sync_val_compare_and_swap(&v->window_at, begun, now) != begun || !begun)
		return 0;
	d = domain_of(v->account.domain);
	if (!d)
		return 0;
	all = s->cosched == INSTEP_COSCHED_RELAXED;
	seats = judge_vcpus(vm, all);
	d->lost = lost_lanes(d, now);
	room = d->nr_lanes - pol_count(d->lost);
	v->wide = seats > room;
	if (!on(INSTEP_M_GANG) || s->cosched == INSTEP_COSCHED_NEVER || v->wide || seats < 2)
		seats = 0;
	before = v->seats;
	if (seats != before || (v->set & (d->lost | ~v->allowed)) || (seats && !v->set)) {
		v->seats = seats;
		settle(vm, now);
		if (!v->set)
			v->seats = seats = 0;
		number_seats(vm, seats, all);
		d->stale = 1;
		d->pooled = 1;
		if (v->strays)
			d->stray = vm;
		if (!!before != !!seats) {
			count(seats ? INSTEP_C_GANG_ON : INSTEP_C_GANG_OFF);
			emit(now, seats ? INSTEP_E_GANG_ON : INSTEP_E_GANG_OFF, vm, seats, v->ran_ns);
		}
	}
	v->ran_ns = 0;
	return 0;
}

/* The domain that is least loaded, of this node unless it is INSTEP_NO_NODE; `most`: and the most loaded one. */
SEPARATE u32 least_loaded(s32 node, u32 *most)
{
	u32 n = SET.nr_domains, found = 0, least = ~0u, highest = 0;
	s32 k;

	bpf_for(k, 0, n < INSTEP_MAX_DOMAINS ? n : INSTEP_MAX_DOMAINS) {
		struct domain_state *d = domain_of(k);
		u32 load;

		if (!d || !d->nr_lanes || d->isolated || (node != INSTEP_NO_NODE && d->node != node))
			continue;
		load = d->loaded / d->nr_lanes;
		if (load < least) {
			least = load;
			found = k;
		}
		if (most && load >= highest) {
			highest = load;
			*most = k;
		}
	}
	return found;
}

/* A VM of which a thread wakes up for the first time gets a domain: the one where it is if it may not use all. */
SEPARATE int join(u32 vm, bool restricted, u32 here, u64 now)
{
	struct vm_state *v = vm_of(vm);
	struct instep_vm_settings *s = vm_set_of(vm);
	struct domain_state *d;
	u32 domain;

	if (!v || !s || vm == INSTEP_HOST || __sync_val_compare_and_swap(&v->joined, 0, 1))
		return 0;
	domain = restricted ? here : least_loaded(on(INSTEP_M_HOME) ? s->home_node : INSTEP_NO_NODE, NULL);
	d = domain_of(domain);
	v->account.domain = domain;
	v->account.demand = s->nr_vcpus * POL_CPU;
	v->account.share = v->account.demand;
	v->account.front = POL_ORIGIN;
	v->account.vtime = clock_of(domain);
	v->account.served_at = now;
	v->granted_at = now;
	v->window_at = now;
	v->allowed = ~0ull;
	if (!d)
		return 0;
	__sync_fetch_and_add(&d->loaded, s->nr_vcpus * POL_CPU);
	d->stale = 1;
	return 0;
}

#endif
