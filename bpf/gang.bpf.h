/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which vCPUs form a gang.
 *
 * Flags: gang, trial. Counters: gang_on, gang_off, trials.
 *
 * Problem: a vCPU that hardly ever blocks computes or spins for a sibling. If its siblings run at the same time it
 * loses nothing in the first case, and all that it would have spun away in the second. On many CPUs that is a
 * problem of packing: if each VM has other CPUs, and these overlap in part, each VM that starts tears another.
 * Method: evidence is per vCPU. In a window of 48 ms, blocks and CPU time are counted; it belongs to the gang where
 *     blocks * 20 ms <= CPU time        and no longer where      blocks * 10 ms > CPU time
 * Two such vCPUs make a gang. Each has a *seat*, a number; siblings that block stay outside and wait like others.
 *     Threads that spin for a while and then block look like threads that block as long as their siblings do not run, and
 *     like threads that spin once these do. So a VM that blocks is tried as a gang for two windows, seldom: a vCPU stays in
 *     it that blocks four times less often than before, and while it does. A VM of which all vCPUs sleep for a quarter of a
 *     window is not tried: its trial would make it late, and it would block less often because it is late. In no gang does a
 *     block count while a sibling waits for a CPU, as at the end of a slot. A vCPU that slept for four windows on end belongs
 *     to no gang: its seat would be a hole in each slot.
 *     A gang of two that is entitled to two CPUs cannot make up for slots that wider gangs have. Where it misses an eighth of its
 * slots it waits in the pool for a while: threads of the pool that are behind have any CPU, and two of them mostly run together.
 *     Which CPUs a gang has: set.bpf.h.
 *     A VM joins the domain that is least loaded, of its home node if it has one. How sets and VMs move: moves.bpf.h.
 * Limits: evidence is blocks; a guest that halts for a paravirtual spinlock is taken for one that blocks. A VM forms no
 * gang where it has too few CPUs for that (set.bpf.h, span.bpf.h), or where a higher class leaves too few.
 */
#ifndef INSTEP_GANG_BPF_H
#define INSTEP_GANG_BPF_H

#include "allowed.bpf.h"
#include "span.bpf.h"

/* A set may move again after this. */
#define REST_NS (96 * POL_MS)

/* A trial takes so many windows. What a gang does in the first says little, as siblings that blocked before wake up in it. */
#define TRIAL_WINDOWS 2
/* So many windows go by before the first trial of a VM, four times as many before each further one, up to a bound (25 s). */
#define LEAST_PAUSE 8
#define MOST_PAUSE 512
/* A VM that used less than this part of a CPU is not tried: it is served by preemption, and its windows are long. */
#define TRIAL_PART 4
/* A VM of which all vCPUs sleep for more than this part of a window has enough CPU time. */
#define REST_PART 4
/* A vCPU that slept for so many windows on end belongs to no gang. */
#define SLEEP_WINDOWS 4
/* What a gang had in holes counts for about so many windows when sets move. */
#define SPARE_WINDOWS 16
/* For so many windows a VM waits in the pool that missed many slots, of this many at least. */
#define CROWDED_WINDOWS 32
#define LEAST_SLOTS 32

/* Takes over the evidence of a vCPU; whether it belongs to the gang. In a trial it does, whatever its evidence says. */
static __always_inline bool judge_vcpu(struct vm_state *v, struct slot_info *i, bool all, bool trial)
{
	if (!i->gang || !on(INSTEP_M_TRIAL))
		i->bound = trial ? pol_trial_bound(i->ran_ns, i->blocks) : POL_GANG_OFF_NS;
	i->gang = trial || pol_hardly_blocks(i->gang, i->bound, i->ran_ns, i->blocks);
	if (i->asleep && !i->ran_ns && i->asleep++ >= SLEEP_WINDOWS) {
		i->asleep = SLEEP_WINDOWS;
		i->gang = trial;
	}
	/* What a vCPU that waits for long and never blocks has in a window is little: it counts in the next one, too. */
	if (!i->gang && !i->blocks && i->ran_ns < POL_EVIDENCE_NS)
		return false;
	i->ran_ns = 0;
	i->blocks = 0;
	return is_for_seat(v, i, all);
}

/* Looks at the vCPUs of a VM; how many belong to the gang. Each notes in `seat` whether it does. */
SEPARATE u32 judge_vcpus(u32 vm, bool all, bool trial)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	u32 seats = 0, n;
	s32 k;

	if (!s || !v)
		return 0;
	n = vcpus_of(s);
	bpf_for(k, 0, n) {
		struct slot_info *i = slot_of(s->first_slot + k);

		if (i && judge_vcpu(v, i, all, trial))
			seats++;
	}
	return seats;
}

/* No vCPU stays in the gang for what it did in a trial. */
SEPARATE int forget_trial(u32 vm)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	u32 n;
	s32 k;

	if (!s)
		return 0;
	n = vcpus_of(s);
	bpf_for(k, 0, n) {
		struct slot_info *i = slot_of(s->first_slot + k);

		if (i)
			i->bound = POL_GANG_OFF_NS;
	}
	return 0;
}

/* The vCPU with this slot has the next seat of its gang, or that of the CPU that it was assigned. */
SEPARATE int take_number(u32 vm, u32 slot)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	struct slot_info *i = slot_of(slot), *seat;
	struct gang_part *part;
	struct numbering *c;

	if (!s || !v || !i)
		return 0;
	c = &v->numbering;
	if (v->assigned)
		c->part = i->home - v->parts[0].domain;
	part = &v->parts[within(c->part, INSTEP_MAX_PARTS)];
	if (!v->assigned && c->next >= part->first + pol_count(part->set)) {
		c->part++;
		part = &v->parts[within(c->part, INSTEP_MAX_PARTS)];
	}
	/* Its CPUs may have changed since it was assigned one, also on another CPU meanwhile: no other VM's entry is written. */
	i->seat = (v->assigned ? pol_rank_of_lane(part->set, i->lane) : c->next - part->first) & (INSTEP_LANES - 1);
	if (c->part >= v->nr_parts || part->first + i->seat >= s->nr_vcpus || (v->assigned && !(part->set & pol_lane(i->lane)))) {
		i->seat = NO_SEAT;
		i->stray = i->waits;
		c->strays += i->stray;
		return 0;
	}
	i->part = c->part;
	if (i->waits)
		__sync_fetch_and_or(&part->waiting, pol_lane(i->seat));
	seat = slot_of(s->first_slot + part->first + i->seat);
	if (seat)
		seat->sits = slot;
	c->next++;
	return 0;
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
	bpf_for(k, 0, INSTEP_MAX_PARTS)
		v->parts[within(k, INSTEP_MAX_PARTS)].waiting = 0;
	n = vcpus_of(s);
	bpf_for(k, 0, n) {
		struct slot_info *i = slot_of(s->first_slot + k);
		bool has = i && c->next < seats && is_for_seat(v, i, all);

		if (!i)
			break;
		i->stray = i->waits && !has;
		c->strays += i->stray;
		if (has)
			take_number(vm, s->first_slot + k);
		else
			i->seat = NO_SEAT;
	}
	v->strays = c->strays;
	return 0;
}

/* Where the seat with this number is; INSTEP_LANES if the set has no such seat. */
SEPARATE u32 lane_of_seat(u64 set, u32 seat)
{
	u32 lowest = set ? pol_lowest(set) : 0;

	/* Most sets lie side by side. */
	if (!((set >> lowest) & ((set >> lowest) + 1)))
		return seat < pol_count(set) ? lowest + seat : INSTEP_LANES;
	return pol_nth(set, seat);
}

/* The CPU of a vCPU's seat, in its gang's set; NO_CPU for a thread without a seat. */
static __always_inline s32 seat_cpu(struct task_state *t)
{
	struct slot_info *i = slot_of(t->slot);
	struct vm_state *v = vm_of(t->vm);
	struct gang_part *part;
	struct domain_state *d;
	u32 lane;

	if (!i || !v || i->seat == NO_SEAT || !is_gang(v))
		return NO_CPU;
	part = part_of(v, i);
	d = domain_of(part->domain);
	if (!d)
		return NO_CPU;
	lane = lane_of_seat(part->set, i->seat);
	return lane < INSTEP_LANES ? cpu_at(d, lane) : NO_CPU;
}

/*
 * Whether a gang's vCPU runs outside the domain of its seat, while slots are planned there. It fills a hole: it came to this CPU as no thread
 * of the CPU's own domain waited.
 */
static __always_inline bool sits_elsewhere(struct vm_state *v, struct slot_info *i, struct cpu_state *c)
{
	struct domain_state *own = v && i && i->seat != NO_SEAT && is_gang(v) ? domain_of(part_of(v, i)->domain) : NULL;

	return own && own->slotted && own->host.domain != c->domain;
}

/* A vCPU comes to the queue of its seat. */
static __always_inline void come_to_seat(struct task_state *t, struct slot_info *i, struct vm_state *v,
					 struct domain_state *d)
{
	t->seat = i->seat;
	i->waits = 1;
	i->queued_at = t->queued_at;
	__sync_fetch_and_or(&part_of(v, i)->waiting, pol_lane(i->seat));
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
		__sync_fetch_and_and(&part_of(v, i)->waiting, ~pol_lane(i->seat));
	if (i->stray && v->strays)
		__sync_fetch_and_sub(&v->strays, 1);
	i->stray = 0;
}

/* Whether a VM has CPUs that it may not have, or that a higher class keeps, or waits where it may have none. */
SEPARATE int has_spoilt_set(u32 vm, u64 now)
{
	struct vm_state *v = vm_of(vm);
	bool spoilt = false;
	s32 k;

	if (!v)
		return false;
	bpf_for(k, 0, parts_of(v)) {
		struct domain_state *d = domain_of_part(v, k);

		if (!d)
			continue;
		d->lost = lost_lanes(d, now);
		/* A VM of which no vCPU is at home in a domain between others' homes has nothing there. */
		spoilt |= (!v->split && !lanes_for(v, d)) || (v->parts[within(k, INSTEP_MAX_PARTS)].set & (d->lost | ~lanes_for(v, d)));
	}
	return spoilt;
}

/* Gives a gang CPUs and its vCPUs numbers; those of its vCPUs that wait are found again. `d` is its VM's domain. */
static __always_inline void seat_gang(u32 vm, struct vm_state *v, struct domain_state *d, bool all, u64 now)
{
	place_gang(vm, now);
	number_seats(vm, v->seats, all);
	d->stale = 1;
	d->pooled = 1;
	if (v->strays)
		d->stray = vm;
}

/*
 * Whether this CPU may give a VM's vCPUs seats, or the VM another domain: of two that do at once each would number some vCPUs. The
 * other comes back in the next window.
 */
static __always_inline bool take_vm(struct vm_state *v)
{
	return !__sync_lock_test_and_set(&v->changes, 1);
}

/* A gang comes, goes, or has other vCPUs or CPUs than before. */
static __always_inline void reseat(u32 vm, struct vm_state *v, u32 seats, bool all, u64 now)
{
	struct domain_state *d;
	u32 before = v->seats;

	if (!take_vm(v))
		return;
	d = domain_of(v->account.domain);
	v->seats = seats;
	if (d)
		seat_gang(vm, v, d, all, now);
	v->changes = 0;
	seats = v->seats;
	/* How often it was torn says little of a gang of another size. */
	if (seats != before)
		v->torn = v->slots_had = v->missed = 0;
	if (!!before != !!seats) {
		count(seats ? INSTEP_C_GANG_ON : INSTEP_C_GANG_OFF);
		emit(now, seats ? INSTEP_E_GANG_ON : INSTEP_E_GANG_OFF, vm, seats, v->ran_ns);
	}
}

/* Whether a VM that forms no gang is to be tried as one: if it blocks often, while threads wait, and seldom. */
static __always_inline bool is_to_be_tried(struct vm_state *v, struct instep_vm_settings *s, struct domain_state *d,
					   u64 blocks, u64 window)
{
	if (!on(INSTEP_M_TRIAL) || v->seats || v->crowded || s->nr_vcpus < 2 || s->cosched != INSTEP_COSCHED_AUTO || v->ran_ns < window / TRIAL_PART)
		return false;
	if (blocks * POL_GANG_OFF_NS < POL_TRIAL_FACTOR * v->ran_ns)
		return false;
	if (!d->slotted && nobody_waits(v->account.domain))
		return false;
	return v->untried++ >= v->pause;
}

/* Begins, continues or ends the trial of a VM; whether the window that begins now belongs to one. */
SEPARATE int continue_trial(u32 vm, u64 window)
{
	struct vm_state *v = vm_of(vm);
	struct instep_vm_settings *s = vm_set_of(vm);
	struct domain_state *d = v ? domain_of(v->account.domain) : NULL;
	u64 blocks;
	bool rests;

	if (!v || !s || !d)
		return false;
	blocks = v->total_blocks - v->blocks_before;
	v->blocks_before += blocks;
	rests = v->rest_ns > window / REST_PART;
	v->rest_ns = 0;
	if (rests) {
		v->trial = 0;
		forget_trial(vm);
		return false;
	}
	if (v->trial) {
		v->trial--;
		return v->trial > 0;
	}
	if (!is_to_be_tried(v, s, d, blocks, window))
		return false;
	v->trial = TRIAL_WINDOWS;
	count(INSTEP_C_TRIAL);
	v->untried = 0;
	v->pause = pol_min(4 * v->pause, MOST_PAUSE);
	return true;
}

/* Whether two vCPUs that belong together wait in the pool for some time, as their gang, entitled to a CPU for each, missed many slots. */
static __always_inline bool is_crowded(struct vm_state *v, u32 seats)
{
	u32 slots = v->slots_had + v->missed;

	if (v->crowded)
		return --v->crowded;
	if (seats != 2 || v->seats != 2 || v->trial || v->account.share < seats * POL_CPU * 15 / 16 || slots < LEAST_SLOTS || v->missed * 8 < slots)
		return false;
	v->crowded = CROWDED_WINDOWS;
	return true;
}

/* Looks at a VM's evidence at the end of each window. */
SEPARATE int end_window(u32 vm, u64 now)
{
	struct vm_state *v = vm_of(vm);
	struct instep_vm_settings *s = vm_set_of(vm);
	struct domain_state *d;
	u64 begun, window;
	u32 seats;
	bool all;

	if (!v || !s || !v->joined)
		return 0;
	begun = v->window_at;
	window = pol_since(begun, now);
	if (window < WINDOW_NS)
		return 0;
	/* Another CPU's tick may be at it, too. */
	if (__sync_val_compare_and_swap(&v->window_at, begun, now) != begun || !begun)
		return 0;
	d = domain_of(v->account.domain);
	if (!d)
		return 0;
	all = s->cosched == INSTEP_COSCHED_RELAXED;
	seats = judge_vcpus(vm, all, continue_trial(vm, window));
	d->lost = lost_lanes(d, now);
	/* One bound to fewer CPUs than it has vCPUs is none: who is nice among them gives way. */
	v->wide = !v->split && seats > (d->isolated ? 0 : d->nr_lanes - pol_count(d->lost));
	if (!on(INSTEP_M_GANG) || s->cosched == INSTEP_COSCHED_NEVER || seats < 2 || ((seats > room_for(v, d) || v->split) && !may_spread(v)))
		seats = 0;
	if (!all && is_crowded(v, seats))
		seats = 0;
	if (seats != v->seats || has_spoilt_set(vm, now) || (seats && !v->nr_parts) || (v->nr_parts && v->masks != v->masks_at) ||
	    (!seats && is_broad(vm, v, d) != v->broad))
		reseat(vm, v, seats, all, now);
	if (is_spread(v)) {
		even_leads(vm, v->nr_parts * WINDOW_NS);
		v->turns += !v->seats && waiting(&v->account) > 0;
	}
	v->ran_ns = 0;
	__sync_fetch_and_sub(&v->spare, v->spare / SPARE_WINDOWS);
	return 0;
}

/*
 * The domain that is least loaded, of this node unless it is INSTEP_NO_NODE; `most`: and the most loaded one. With `wide`
 * what counts is the number of wide gangs.
 */
SEPARATE u32 least_loaded(s32 node, bool wide, u32 *most)
{
	u32 n = SET.nr_domains, found = 0, least = ~0u, highest = 0;
	s32 k;

	bpf_for(k, 0, n < INSTEP_MAX_DOMAINS ? n : INSTEP_MAX_DOMAINS) {
		struct domain_state *d = domain_of(k);
		u32 load;

		if (!d || !d->nr_lanes || d->isolated || (node != INSTEP_NO_NODE && d->node != node))
			continue;
		load = wide ? d->nr_wide : load_per_cpu(d, 0);
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
	if (!restricted)
		note_used(vm);
	domain = restricted ? here : least_loaded(home_of(s), false, NULL);
	d = domain_of(domain);
	v->account.domain = domain;
	v->account.demand = s->nr_vcpus * POL_CPU;
	v->account.share = v->account.demand;
	v->account.front = POL_ORIGIN;
	v->account.vtime = clock_of(domain);
	v->account.served_at = now;
	v->granted_at = now;
	v->window_at = now;
	v->pause = LEAST_PAUSE;
	v->allowed = ~0ull;
	if (!d)
		return 0;
	__sync_fetch_and_add(&d->loaded, s->nr_vcpus * POL_CPU);
	d->stale = 1;
	return 0;
}

/* A CPU is taken from a gang in its slot: all others of it wait. */
static __always_inline void note_torn(struct vm_state *v)
{
	v->torn++;
	v->total_tears++;
}

/* A gang has a slot. What counts is the mean of the last hundred or so. */
static __always_inline void note_slot(struct vm_state *v)
{
	v->total_slots++;
	if (++v->slots_had < 128)
		return;
	v->slots_had /= 2;
	v->missed /= 2;
	v->torn /= 2;
}

/*
 * A gang of n loses a CPU 2048 / n^2 times in a slot at most, in the mean of its slots: one of 32 twice, one of 8 32 times. Where
 * slots are half as long it is half as often. Wide gangs lose most, as each CPU that is taken makes all others wait; and where all
 * gangs are narrow nothing else gives way.
 */
#define MOST_TORN 2048

static __always_inline bool may_be_torn(struct vm_state *v)
{
	return (u64)v->torn * v->seats * v->seats * SET.slot_ns <= (u64)MOST_TORN * (v->slots_had + 1) * INSTEP_STATE->slot_ns;
}

/* Whether a gang lost less to threads that took its CPUs, for each of its slots, than another. */
static __always_inline bool lost_less(struct vm_state *v, struct vm_state *o)
{
	return (u64)v->torn * v->seats * (o->slots_had ?: 1) < (u64)o->torn * o->seats * (v->slots_had ?: 1);
}

#endif
