/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gang slots: at which time a gang has all CPUs of its set.
 *
 * Flags: gang, holes, host. Counters: slots, grants, refusals, slot_kicks, holes, host_windows.
 *
 * Problem: CPUs that choose by virtual time each for itself do not choose the same VM at the same time.
 * Method (Ousterhout's slots; the order of accounts instead of the rows of his matrix): while threads wait in a domain
 * that has gangs, a timer cuts time into slots of 6 ms, at the same moments in all domains. At the start of a slot one
 * CPU plans it. It takes the accounts in the order of their virtual time (a gang that had the last slot goes on before those that are
 * less than a slot further behind):
 *     a gang               gets all CPUs of its set if they are still free, else it waits for another slot;
 *     any other account    gets as many CPUs as it wants on average, the last ones of the domain that are free.
 * An account that was not served for 45 ms comes before all, as does a gang that had no slot for so long: of those the one
 * that has waited longest. In every other slot threads of the pool that are overdue have a CPU each before these. The plan
 * is the owner of each CPU. A CPU that runs something else has to choose again; each then takes the vCPU that sits there
 * (choose.bpf.h).
 *     A *hole* is a CPU whose owner has nothing to run there, or that nobody owns. It takes what waits in the pool, and where nothing
 * does a vCPU of the refused gang that had least, holes included. That one gives way to any thread of the pool that wakes up, and costs
 * its VM nothing: nobody else wanted the CPU, and a wide VM that spins would burn its share alone and never be the first.
 *     So two gangs that cannot run side by side do not have their whole share each in their own slots:
 *
 *     part = 1 / (share1 / size1 + share2 / size2)
 *
 *     part            of its share, what each of them has in its own slots: 1/2 to 1
 *     share1, share2  what they are entitled to, in CPUs
 *     size1, size2    CPUs of their gang sets
 *     A gang that was refused twice although as many CPUs are free elsewhere moves its set there. One that has parts in
 * several domains was promised its slot before: promise.bpf.h.
 * Limits: a gang that blocks in the middle of its slot leaves holes until the slot ends.
 *
 *     CPU       0   1   2   3   4   5   6   7
 *     slot 1    A   A   A   A   B   B   p   p     A, B, C, D gangs of 4, 2, 4, 8; p pool
 *     slot 2    C   C   C   C   B   B   p   p
 *     slot 3    D   D   D   D   D   D   D   D
 */
#ifndef INSTEP_SLOT_BPF_H
#define INSTEP_SLOT_BPF_H

#include "promise.bpf.h"

/* Lists of the planner for accounts that are overdue, and by how much those of one list are longer than of the next. */
#define OVERDUE_LISTS 8
#define OVERDUE_STEP (8 * POL_MS)
/* So many threads of the pool that are overdue get a CPU in a slot. */
#define OVERDUE_MOST 8
/* Members of the planner's order are numbered from 1; this is the account of the host's threads. */
#define HOST_MEMBER (INSTEP_MAX_VMS + 1)
#define MAX_STEPS (INSTEP_MAX_VMS + 2)

/* All CPUs of a domain charge what runs there; where it idles nothing does. */
SEPARATE int charge_all(struct domain_state *d, u64 now)
{
	u64 set;

	if (!d)
		return 0;
	set = d->lanes;
	bpf_repeat(pol_count(set))
		charge(cpu_at(d, pol_take(&set)), now);
	return 0;
}

/* Of the accounts of a domain that have anything to run, virtual times. */
struct slot_range {
	u64 least;
	u64 most;
	u64 clock; /* the least of those that move the clock, 0 if there are none */
	bool waits; /* some wait */
};

static __always_inline void note_range(struct slot_range *range, struct account *a, u64 vtime, bool waits)
{
	range->waits |= waits;
	range->most = range->most ? pol_max(range->most, vtime) : vtime;
	range->least = pol_first(range->least, vtime);
	/* One of which some threads sleep and none waits has all that it wants. */
	if (moves_clock(a) && (waits || a->nr_running >= a->peak_before))
		range->clock = pol_first(range->clock, vtime);
}

SEPARATE int find_range(struct domain_state *d, struct slot_range *range)
{
	u32 n;
	s32 k;

	if (!d || !range)
		return 0;
	n = members_of(d);
	bpf_for(k, 0, n) {
		struct vm_state *v = vm_of(d->members[within(k, INSTEP_MAX_VMS)]);

		/* A gang that was refused and fills holes waits, too. */
		if (v && v->strays)
			d->stray = d->members[within(k, INSTEP_MAX_VMS)];
		if (v && is_active(&v->account) && is_member(v, d->host.domain))
			note_range(range, &v->account, vtime_in(v, d->host.domain),
				   waiting(&v->account) || (is_gang(v) && v->refusals));
	}
	if (is_active(&d->host))
		note_range(range, &d->host, d->host.vtime, waiting(&d->host));
	return 0;
}

static __always_inline u32 list_of(struct account *a, struct vm_state *v, u64 vtime, u64 least, u64 width, u64 now)
{
	u64 late = overdue_by(a, v, now), behind;

	if (late) {
		count(INSTEP_C_OVERDUE);
		late /= OVERDUE_STEP;
		return late < OVERDUE_LISTS ? OVERDUE_LISTS - 1 - late : 0;
	}
	behind = pol_since(least, vtime) / width;
	return behind < INSTEP_LANES - OVERDUE_LISTS ? OVERDUE_LISTS + behind : INSTEP_LANES - 1;
}

/* The first member of a list, 0 if there is none. */
static __always_inline u32 list_head(struct domain_state *d, u32 at)
{
	return d->lists & pol_lane(at) ? d->heads[within(at, INSTEP_LANES)] : 0;
}

/*
 * The virtual time by which a VM is put in order. A gang that had the last slot counts as a slot further behind: two that take turns have
 * two slots each, and their CPUs change hands half as often.
 */
SEPARATE u64 order_of(struct vm_state *v, struct domain_state *d)
{
	u64 vtime;

	if (!v || !d)
		return POL_ORIGIN;
	vtime = vtime_in(v, d->host.domain);
	return v->seats && part_in(v, d->host.domain)->granted + 1 == d->slot ? vtime - INSTEP_STATE->slot_ns : vtime;
}

/*
 * Puts the active accounts into the order of virtual time: 64 lists, the first eight of those that are overdue, by how
 * long they are.
 */
SEPARATE int order_members(struct domain_state *d, u64 least, u64 most, u64 now)
{
	u64 width = pol_since(least, most) / (INSTEP_LANES - OVERDUE_LISTS) + 1;
	u32 n, at;
	s32 k;

	if (!d)
		return 0;
	d->lists = 0;
	n = members_of(d);
	bpf_for(k, 0, n) {
		u32 vm = d->members[within(k, INSTEP_MAX_VMS)];
		struct vm_state *v = vm_of(vm);

		if (!v || !is_active(&v->account) || !is_member(v, d->host.domain))
			continue;
		/* A gang that has all that it wants does not wait for a slot. */
		if (!waiting(&v->account))
			v->granted_at = now;
		at = within(list_of(&v->account, v, order_of(v, d), least, width, now), INSTEP_LANES);
		part_in(v, d->host.domain)->next = list_head(d, at);
		d->heads[at] = vm;
		d->lists |= pol_lane(at);
	}
	if (!is_active(&d->host))
		return 0;
	at = within(list_of(&d->host, NULL, d->host.vtime, least, width, now), INSTEP_LANES);
	d->host_next = list_head(d, at);
	d->heads[at] = HOST_MEMBER;
	d->lists |= pol_lane(at);
	return 0;
}

struct slot_plan {
	u64 free;	/* CPUs that have no owner yet */
	u64 pool;	/* CPUs for threads that form no gang */
	u64 now;
	u32 part;	/* of a CPU that such threads want beyond those, 1024ths */
	u32 victim;	/* of the gangs that were granted, the one that lost least to threads that took its CPUs */
	u32 light;	/* what VMs want of it that want less than their share, 1024ths of a CPU */
	bool promised;	/* to a gang of several domains */
};

/* Every CPU of the set is this VM's in this slot. */
SEPARATE int own_set(struct domain_state *d, u64 set, u32 owner)
{
	if (!d)
		return 0;
	bpf_repeat(pol_count(set)) {
		struct cpu_state *c = cpu_of(cpu_at(d, pol_take(&set)));

		if (c)
			c->owner = owner;
	}
	return 0;
}

static __always_inline void grant(struct domain_state *d, struct vm_state *v, u32 vm, struct slot_plan *plan)
{
	struct gang_part *part = part_in(v, d->host.domain);
	struct vm_state *o;

	own_set(d, part->set, vm);
	plan->free &= ~part->set;
	o = vm_of(plan->victim);
	if (may_be_torn(v) && (!plan->victim || !o || lost_less(v, o)))
		plan->victim = vm;
	part->granted = d->slot;
	part->began = vtime_in(v, d->host.domain);
	/* Others may be further behind, and would take back at once what it waited for. */
	if (overdue_by(&v->account, v, plan->now))
		part->began = pol_min(part->began, d->clock - SET.lag_ns);
	v->granted_at = plan->now;
	note_slot(v);
	v->refusals = 0;
	count(INSTEP_C_GRANT);
}

static __always_inline void refuse(struct domain_state *d, struct vm_state *v, u32 vm, u64 now)
{
	/* A gang of several domains that is far behind, or in other domains too, would be promised every slot. */
	d->owes |= overdue_by(&v->account, v, now) > 0;
	if (v->account.domain == d->host.domain) { /* once for all domains of a VM */
		count(INSTEP_C_REFUSED);
		v->refusals++;
		v->missed++;
	}
	if (d->nr_refused < MAX_REFUSED)
		d->refused[d->nr_refused++ & (MAX_REFUSED - 1)] = vm;
}

/* CPUs for threads that form no gang: the last ones of the domain that are free, whole ones, rounded. */
SEPARATE int reserve(struct slot_plan *plan, u32 demand, u64 allowed)
{
	if (!plan)
		return 0;
	plan->part += demand;
	bpf_repeat(INSTEP_LANES) {
		u64 lane;

		if (plan->part < POL_CPU / 2 || !(plan->free & allowed))
			break;
		lane = pol_lane(pol_highest(plan->free & allowed));
		plan->free &= ~lane;
		plan->pool |= lane;
		plan->part = plan->part > POL_CPU ? plan->part - POL_CPU : 0;
	}
	/* What is beyond the CPUs that it may use is not for others. */
	if (plan->part >= POL_CPU / 2)
		plan->part = 0;
	return 0;
}

/* Gangs of several domains have the slot that was promised to them, here as there. */
SEPARATE int keep_promises(struct domain_state *d, struct slot_plan *plan)
{
	u64 slot;
	s32 k;

	if (!d || !plan)
		return 0;
	slot = slot_number(plan->now);
	bpf_for(k, 0, INSTEP_PROMISES) {
		u32 vm = promised_to(*nth_promise(d, slot, k), slot);
		struct vm_state *v = vm_of(vm);

		if (!vm || !v || !is_spread_gang(v) || !is_member(v, d->host.domain))
			continue;
		grant(d, v, vm, plan);
		plan->promised = true;
	}
	return 0;
}

/* Takes the accounts in their order, and gives each what it wants of what is free. */
SEPARATE int assign_cpus(struct domain_state *d, struct slot_plan *plan)
{
	u32 member = 0;

	if (!d || !plan)
		return 0;
	bpf_repeat(MAX_STEPS) {
		struct vm_state *v;
		u32 vm, demand;

		if (!member) {
			if (!d->lists)
				break;
			member = d->heads[within(pol_take(&d->lists), INSTEP_LANES)];
		}
		vm = member;
		if (member == HOST_MEMBER) {
			member = d->host_next;
			reserve(plan, host_demand(d), ~0ull);
			continue;
		}
		v = vm_of(vm);
		if (!v)
			break;
		member = part_in(v, d->host.domain)->next;
		if (is_spread_gang(v)) {
			note_barred(v, d, plan->light);
			if (!has_slot(v, d))
				refuse(d, v, vm, plan->now);
		} else if (is_gang(v)) {
			u64 lacks = v->parts[0].set & ~plan->free;

			/* Once it is overdue it does without CPUs that a higher class has. */
			if (!lacks || (!(lacks & ~d->taken) && overdue_by(&v->account, v, plan->now)))
				grant(d, v, vm, plan);
			else
				refuse(d, v, vm, plan->now);
		}
		demand = pool_demand(vm, d->host.domain);
		plan->light += v->account.light ? demand : 0;
		reserve(plan, demand, lanes_for(v, d));
	}
	return 0;
}

/* A gang that was refused again moves to CPUs that are free. */
SEPARATE int relocate(struct domain_state *d, struct slot_plan *plan)
{
	u32 n, vm, size, step, steps;
	u64 lanes;
	s32 k, j;

	if (!d || !plan || !on(INSTEP_M_MOVES))
		return 0;
	n = refused_of(d);
	bpf_for(k, 0, n) {
		struct vm_state *v = narrow_refused(d, k, &vm);

		if (!v)
			continue;
		size = v->seats;
		lanes = lanes_for(v, d);
		if (v->refusals < 2 || pol_count(plan->free) < size || size > pol_count(lanes))
			continue;
		step = pol_set_step(size, pol_count(lanes));
		steps = (pol_count(lanes) - size) / (step ?: 1) + 1;
		bpf_for(j, 0, steps < INSTEP_LANES ? steps : INSTEP_LANES) {
			u64 set = pick_lanes(lanes, j * step, size);

			if (!set || (set & ~plan->free))
				continue;
			move_to(v, set, plan->now);
			v->missed -= !!v->missed;
			grant(d, v, vm, plan);
			break;
		}
	}
	return 0;
}

/* Whether the vCPU of a gang that has its seat on this CPU waits for it. */
static __always_inline bool waits_at(struct vm_state *v, struct cpu_state *c)
{
	struct gang_part *part = part_in(v, c->domain);

	return part->waiting & pol_lane(pol_rank_of_lane(part->set, c->lane));
}

/* Whether a vCPU of a gang has its seat on this CPU. */
static __always_inline bool sits_at(struct vm_state *v, struct slot_info *i, struct cpu_state *c)
{
	struct gang_part *part = part_of(v, i);

	return part->domain == c->domain && (part->set & pol_lane(c->lane)) &&
	       i->seat == pol_rank_of_lane(part->set, c->lane);
}

/* Whether what runs on a CPU may go on under its new owner. */
static __always_inline bool fits(struct cpu_state *c, bool others_wait)
{
	struct slot_info *i = slot_of(c->slot);
	struct vm_state *v = vm_of(c->vm), *o = vm_of(c->owner);
	bool seated = c->tid && i && v && c->vm && i->seat != NO_SEAT && is_gang(v);

	if (c->overdue)
		return true;
	if (c->owner == POOL || !c->owner || !o)
		return !seated || !others_wait;
	if (!waits_at(o, c))
		return true;
	return seated && c->vm == c->owner && sits_at(v, i, c);
}

/* Tells the CPUs whose plan differs from what they run to choose again. */
SEPARATE int enforce(struct domain_state *d, u32 domain)
{
	bool waits = !nobody_waits(domain);
	u32 end;
	s32 lane;

	if (!d)
		return 0;
	end = pol_highest(d->lanes) + 1;
	bpf_for(lane, 0, end) {
		struct cpu_state *c;
		struct vm_state *v;
		s32 cpu;

		if (!(d->lanes & pol_lane(lane)))
			continue;
		cpu = cpu_at(d, lane);
		c = cpu_of(cpu);
		if (!c || c->taken_at)
			continue;
		v = vm_of(c->vm);
		if (fits(c, waits || scx_bpf_dsq_nr_queued(bound_queue(cpu)) > 0 || is_anothers_hole(d, c->vm))) {
			set_hole(d, c, on(INSTEP_M_HOLES) && c->tid && v && c->vm && is_gang(v) &&
					       c->owner != c->vm && !has_slot(v, d));
			continue;
		}
		/* Until it goes the owner waits for it: that is no hole. */
		set_hole(d, c, false);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
		count(INSTEP_C_SLOT_KICK);
	}
	return 0;
}

/* After a thread was queued: an idle CPU that looked before is to look again. */
static __always_inline void call_idle(struct domain_state *d)
{
	u64 idle = d->idle;

	if (idle)
		scx_bpf_kick_cpu(cpu_at(d, pol_lowest(idle)), SCX_KICK_IDLE);
}

/* Nothing waits: CPUs have no owner until something does. */
static __always_inline void end_slots(struct domain_state *d)
{
	d->pending = 0;
	d->holes = 0;
	d->slotted = 0;
	d->pool = d->lanes;
	d->tears = 0;
	d->host.pressed = 0;
	d->owes = 0;
	d->nr_refused = 0;
	own_set(d, d->lanes, 0);
}

/*
 * Threads of the pool that are overdue have a CPU each before all gangs; in every other slot, so that a gang which needs all
 * CPUs is not kept from them. While some wait for that no gang is promised the next slot that is not overdue itself.
 */
static __noinline void serve_overdue(struct domain_state *d, u32 domain, struct slot_plan *plan)
{
	struct task_struct *p;
	bool relieves;
	u32 seen = 0;

	if (!d || !plan)
		return;
	relieves = !plan->promised && d->slot != d->relieved + 1;
	if (relieves)
		d->relieved = d->slot;
	d->owes = 0;
	/* A timer's program holds no such lock by itself. */
	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, pool_queue(domain), 0) {
		if (seen++ >= OVERDUE_MOST || !is_overdue_place(p->scx.dsq_vtime, d))
			break;
		d->owes = !relieves;
		if (!relieves)
			break;
		reserve(plan, POL_CPU, allowed_lanes(p, d));
	}
	bpf_rcu_read_unlock();
}

SEPARATE int plan_slot(u32 domain, u64 now)
{
	struct domain_state *d = domain_of(domain);
	struct slot_plan plan = { .now = now };
	struct slot_range range = {};
	struct vm_state *v;

	if (!d)
		return false;
	d->slot++;
	if (d->stale || !(d->slot & 15))
		list_members(d, domain);
	charge_all(d, now);
	find_range(d, &range);
	if (!d->nr_gangs || !range.waits) {
		end_slots(d);
		return false;
	}
	if (range.clock)
		d->clock = pol_max(d->clock, range.clock);
	order_members(d, range.least - INSTEP_STATE->slot_ns, range.most, now);
	plan.free = d->lanes & ~d->taken;
	d->nr_refused = 0;
	if (!d->slotted || d->pooled)
		seat_all(d, domain);
	d->slotted = 1;
	count(INSTEP_C_SLOT);
	keep_promises(d, &plan);
	serve_overdue(d, domain, &plan);
	assign_cpus(d, &plan);
	if (d->nr_spread)
		promise_slots(d, now);
	relocate(d, &plan);
	order_refused(d);
	d->free = plan.free;
	d->pool = plan.pool | plan.free;
	own_set(d, plan.pool, POOL);
	own_set(d, plan.free, 0);
	v = vm_of(plan.victim);
	d->victim = plan.victim;
	d->victims = plan.victim && v ? part_in(v, domain)->set : 0;
	d->tears = d->victims;
	enforce(d, domain);
	if (d->stray || d->nr_refused)
		call_idle(d);
	move_sets(d, domain, now);
	return true;
}

/*
 * Threads of the host that woke up meanwhile run now, and vCPUs that are bound to a CPU, on all CPUs of a gang at once: spread over the
 * slot each would make all other vCPUs of the gang spin for its time.
 */
SEPARATE int serve_host(struct domain_state *d, u64 now)
{
	struct vm_state *v;
	u64 set, lend, window = INSTEP_STATE->slot_ns / 8;

	if (!d || !on(INSTEP_M_HOST))
		return 0;
	judge_windows(d);
	set = __sync_fetch_and_and(&d->pending, 0);
	d->lending = waiting(&d->host);
	lend = d->tears;
	v = vm_of(d->victim);
	if (v && d->lending > 0)
		note_torn(v);
	bpf_repeat(INSTEP_LANES) {
		u64 lane = set ? pol_lane(pol_lowest(set)) : lend && d->lending > 0 ? pol_lane(pol_lowest(lend)) : 0;
		s32 cpu;
		struct cpu_state *c;

		if (!lane)
			break;
		set &= ~lane;
		lend &= ~lane;
		cpu = cpu_at(d, pol_lowest(lane));
		c = cpu_of(cpu);
		if (!c || c->taken_at)
			continue;
		c->lends = now + window;
		d->offered += window;
		d->lending -= !!(d->victims & lane);
		count(INSTEP_C_HOST_WINDOW);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
	return 0;
}

static int slot_starts(void *map, int *key, struct slot_timer *timer)
{
	u64 now = scx_bpf_now();
	struct domain_state *d = domain_of(timer->domain);
	u64 half = INSTEP_STATE->slot_ns / 2 ?: POL_MS;

	if (!d)
		return 0;
	/* The middle of a slot. */
	if (d->slotted && (now + half / 8) / half % 2) {
		enforce(d, timer->domain);
	} else if (!plan_slot(timer->domain, now)) {
		d->armed = 0;
		return 0;
	}
	serve_host(d, now);
	arm(timer, now);
	return 0;
}

/* Once, while the scheduler is loaded. */
static __always_inline int make_timer(u32 domain)
{
	struct slot_timer *timer = timer_of(domain);
	int error;

	if (!timer)
		return -EINVAL;
	timer->domain = domain;
	error = bpf_timer_init(&timer->timer, &slot_timers, CLOCK_MONOTONIC);
	return error ?: bpf_timer_set_callback(&timer->timer, slot_starts);
}

#endif
