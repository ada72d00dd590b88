/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a CPU takes from the queues when it chooses.
 *
 * Flags: holes, wake. Counters: none (wake_tears: wake.bpf.h).
 *
 * Problem: a CPU must carry out the plan of the slot, and fill what the plan leaves, without looking through queues.
 * Method: it takes the first of these that there is:
 *     a vCPU whose seat was taken from it while it waited there (a stray), and, after a change of the table of VMs, any that
 *     waits on a seat: no plan names them;
 *     a thread bound to it, if that is further behind than what else there is; but not while the slot is that of a gang whose vCPU
 *     has waited for too long;
 *     in the middle and at the end of a slot (slot.bpf.h, serve_host), a thread of the host, or one bound to it that woke up;
 *     a thread of the pool that might interrupt the gang whose slot it is if it woke up now (wake.bpf.h);
 *     the vCPU that has its seat here, of the gang whose slot it is;
 *     the thread of the domain's pool with the least place, unless what ran here has a lesser one; or, of those less than
 *     a slice behind it, one that ran on this CPU last;
 *     in a hole, a vCPU of a gang that was refused, of the one that had least first: the one that sits here, else any;
 *     a thread of another domain's pool, of the same node first;
 *     a vCPU that waits on a seat in another domain.
 * What is chosen among is in functions that the verifier checks once (SEPARATE): 5,600 instructions of ops.dispatch, not 265,000.
 * Limits: a seat's queue is looked at without a lock; a vCPU that comes at this moment is found at the next choice. Two threads that
 * block for each other every 20 us would run best on one CPU: they are not brought together.
 */
#ifndef INSTEP_CHOOSE_BPF_H
#define INSTEP_CHOOSE_BPF_H

#include "higher.bpf.h"
#include "leave.bpf.h"

/* The slot of the vCPU that has this seat of a part of a gang; INSTEP_NO_SLOT for none. */
static __always_inline u32 slot_of_seat(struct instep_vm_settings *s, struct gang_part *part, u32 seat)
{
	struct slot_info *i = slot_of(s->first_slot + part->first + seat);

	return i ? i->sits : INSTEP_NO_SLOT;
}

/* Takes the vCPU with this slot, if it waits in its own queue; whether it did. */
static __always_inline bool take_slot(u32 slot)
{
	return slot < SET.nr_slots && scx_bpf_dsq_move_to_local(seat_queue(slot), 0);
}

/* The slot of a gang's vCPU that sits on this CPU, if it waits there; INSTEP_NO_SLOT else. */
SEPARATE u32 slot_waiting_at(u32 vm, u32 domain, u32 lane)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	struct gang_part *part;
	u32 seat;

	if (!v || !s || !is_gang(v))
		return INSTEP_NO_SLOT;
	part = part_in(v, domain);
	if (part->domain != domain || !(part->set & pol_lane(lane)))
		return INSTEP_NO_SLOT;
	seat = pol_rank_of_lane(part->set, lane);
	return part->waiting & pol_lane(seat) ? slot_of_seat(s, part, seat) : INSTEP_NO_SLOT;
}

/* Takes the vCPU of a gang that sits on this CPU; whether there was one. */
static __always_inline bool take_seat(u32 vm, u32 domain, u32 lane)
{
	return take_slot(slot_waiting_at(vm, domain, lane));
}

/* Takes a vCPU that waits on a seat of this gang in this domain: the one that sits here, else any. */
SEPARATE int take_waiting(u32 vm, u32 domain, u32 lane)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	struct gang_part *part;
	u64 waiting;

	if (!v || !s || !is_gang(v))
		return false;
	if (take_seat(vm, domain, lane))
		return true;
	part = part_in(v, domain);
	waiting = part->domain == domain ? part->waiting : 0;
	/* Where siblings may use different CPUs, not each may use this one. */
	bpf_repeat(v->assigned ? pol_count(waiting) : waiting > 0)
		if (take_slot(slot_of_seat(s, part, pol_take(&waiting))))
			return true;
	return false;
}

/*
 * Takes a vCPU of a gang that was refused; where none waits, of any: it may have woken up since, or its CPU was taken
 * from it.
 */
SEPARATE int fill_hole(struct domain_state *d, u32 lane)
{
	u32 n, domain;
	s32 k;

	if (!d || !on(INSTEP_M_HOLES))
		return false;
	domain = d->host.domain;
	n = refused_of(d);
	bpf_for(k, 0, n)
		if (take_waiting(d->refused[k & (MAX_REFUSED - 1)], domain, lane))
			return true;
	if (!d->seat_waits)
		return false;
	/* Before the look: a vCPU that comes meanwhile sets it again. */
	__sync_lock_test_and_set(&d->seat_waits, 0);
	n = members_of(d);
	bpf_for(k, 0, n) {
		u32 vm = d->members[within(k, INSTEP_MAX_VMS)];
		struct vm_state *v = vm_of(vm);

		if (!v || !is_gang(v) || !part_in(v, domain)->waiting)
			continue;
		d->seat_waits = 1;
		if (take_waiting(vm, domain, lane))
			return true;
	}
	return false;
}

/* The same in other domains: where gangs share one, this CPU may idle while a vCPU waits on its seat there. */
SEPARATE int fill_elsewhere(struct domain_state *d, u32 lane)
{
	s32 k;

	if (!d)
		return false;
	bpf_for(k, 0, d->nr_next) {
		struct domain_state *o = domain_of(d->next[within(k, INSTEP_MAX_DOMAINS)]);

		if (o && o->slotted && fill_hole(o, lane))
			return true;
	}
	return false;
}

/*
 * The vCPU in this queue, which no plan names any more, and which may not use the CPU that looks, goes to the pool of the domain
 * where it was: there a CPU finds it that it may use.
 */
SEPARATE int move_to_pool(u32 slot)
{
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, seat_queue(slot), 0) {
		struct task_state *t = task_of(p);
		s32 cpu = scx_bpf_task_cpu(p);
		struct cpu_state *c = cpu_of(cpu);
		struct domain_state *d = c ? domain_of(c->domain) : NULL;

		if (!t || !d)
			continue;
		leave_seat(t);
		d->pooled = 1;
		d->in_pool.put_at = scx_bpf_now();
		scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, place_of(t, c->domain));
		if (!scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, p, pool_queue(c->domain), 0))
			continue;
		/* It may use the CPU where it was, if no other that idles. */
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		call_idle(d);
	}
	return 0;
}

#define DRAIN_STEP 128

/*
 * After a change of the table of VMs: takes vCPUs that wait on seats, a part of them each time. Their entries may be gone
 * or another's, so that no plan names them; when they run they look themselves up again.
 */
SEPARATE int drain_seats(void)
{
	u32 from = INSTEP_STATE->drained, slots = SET.nr_slots;
	s32 k;

	if (from >= slots || __sync_val_compare_and_swap(&INSTEP_STATE->drained, from, from + DRAIN_STEP) != from)
		return false;
	bpf_for(k, from, from + DRAIN_STEP) {
		if ((u32)k >= slots || scx_bpf_dsq_nr_queued(seat_queue(k)) <= 0)
			continue;
		if (scx_bpf_dsq_move_to_local(seat_queue(k), 0)) {
			/* The rest of this part waits for the next CPU that looks. */
			INSTEP_STATE->drained = k;
			return true;
		}
		move_to_pool(k);
	}
	return false;
}

/* A VM with vCPUs that lost their seats while they waited there; 0 if there is none. */
SEPARATE u32 find_stray(struct domain_state *d)
{
	u32 n;
	s32 k;

	if (!d)
		return 0;
	n = members_of(d);
	bpf_for(k, 0, n) {
		u32 vm = d->members[within(k, INSTEP_MAX_VMS)];
		struct vm_state *v = vm_of(vm);

		if (v && v->strays)
			return vm;
	}
	return 0;
}

/* Takes a vCPU that lost its seat while it waited there. */
SEPARATE int take_stray(struct domain_state *d)
{
	struct instep_vm_settings *s;
	struct vm_state *v;
	u32 vm, n;
	s32 k;

	if (!d)
		return false;
	vm = d->stray;
	v = vm_of(vm);
	if (!v || !v->strays) {
		d->stray = vm = find_stray(d);
		v = vm_of(vm);
	}
	s = vm_set_of(vm);
	if (!vm || !v || !s)
		return false;
	n = vcpus_of(s);
	bpf_for(k, 0, n) {
		u32 slot = s->first_slot + k;
		struct slot_info *i = slot_of(slot);

		if (!i || !i->stray || slot >= SET.nr_slots)
			continue;
		i->stray = 0;
		__sync_fetch_and_sub(&v->strays, 1);
		if (scx_bpf_dsq_move_to_local(seat_queue(slot), 0)) {
			call_idle(d);
			return true;
		}
		move_to_pool(slot);
	}
	return false;
}

/* What may run next: the thread that ran, and the first of the pool. */
struct chance {
	bool runnable;	/* it may go on */
	bool seated;	/* it is a vCPU of a gang, and slots are planned */
	bool owns;	/* and this is its slot */
	bool sits_here;	/* and this is the CPU of its seat */
	u64 place;	/* of one that is not seated, among what waits in this CPU's domain */
	u32 domain;	/* in whose queue it would wait */
	bool asked;	/* what waits in the pool is known: */
	u32 seen;	/* enum first_seen, ... */
	u64 first;	/* ... and the place of the first there that may use this CPU (queue.bpf.h, first_place) */
};

/* Asks once what waits in the pool; whether somebody does. */
SEPARATE int ask_pool(s32 cpu, struct domain_state *d, struct chance *p, u64 now)
{
	if (!d || !p)
		return false;
	if (p->asked)
		return p->seen;
	p->asked = true;
	p->seen = first_of_pool(d, cpu, now, &p->first);
	return p->seen;
}

static __always_inline void weigh_prev(struct task_struct *prev, struct cpu_state *c, struct domain_state *d,
				       struct chance *out)
{
	struct task_state *t = prev ? task_of(prev) : NULL;
	struct vm_state *v = t ? vm_of(t->vm) : NULL;
	s32 seat, here = prev ? scx_bpf_task_cpu(prev) : NO_CPU;

	out->runnable = t && (prev->scx.flags & SCX_TASK_QUEUED) && !is_limited(prev, t);
	if (!out->runnable)
		return;
	t->own = c->tid ? c->own : t->own;
	/* Of a VM with more vCPUs than CPUs one that goes on and on is ahead of its siblings, too. */
	if (v && v->wide && pol_before(v->account.front, t->own))
		v->account.front = t->own;
	seat = d->slotted ? seat_cpu(t) : NO_CPU;
	out->seated = seat >= 0;
	if (!out->seated) {
		out->domain = is_bound(prev) ? c->domain : domain_for(t, here);
		out->place = place_of(t, c->domain);
	}
	out->owns = out->seated && c->owner == t->vm;
	out->sits_here = seat == here;
}

/* Whether the vCPU of the slot's gang that sits on this CPU has waited for longer than its VM is patient. */
static __always_inline bool seat_is_overdue(struct cpu_state *c, struct vm_state *owner, u64 now)
{
	struct slot_info *i = slot_of(slot_waiting_at(c->owner, c->domain, c->lane));

	return i && pol_since(i->queued_at, now) > pol_patience(wanting(&owner->account), owner->account.share);
}

/* Whether a thread that is bound to this CPU, with this place, goes before what else there is. */
static __always_inline bool bound_is_first(s32 cpu, struct cpu_state *c, struct domain_state *d,
					   struct chance *prev, u64 place, u64 now)
{
	struct vm_state *o = vm_of(c->owner);

	if (prev->runnable && !prev->seated && !pol_before(place, prev->place))
		return false;
	if (!c->owner || c->owner == POOL || !o)
		return !ask_pool(cpu, d, prev, now) || !(prev->seen & MAY_RUN) || !pol_before(prev->first, place);
	if (seat_is_overdue(c, o, now))
		return false;
	if (d->slotted && on(INSTEP_M_HOST))
		return is_overdue_place(place, d);
	return pol_before(place, vtime_in(o, c->domain));
}

/* Takes what is bound to this CPU, if it goes before what else there is; whether it did. */
static __always_inline bool take_bound(s32 cpu, struct cpu_state *c, struct domain_state *d, struct chance *prev, u64 now)
{
	u64 place = 0;

	if (!somebody_in(&c->bound, bound_queue(cpu), now))
		return false;
	sweep_seldom(d, bound_queue(cpu), &c->swept_at, now);
	if (!(first_place(bound_queue(cpu), cpu, &place) & MAY_RUN))
		return false;
	if (bound_is_first(cpu, c, d, prev, place, now) && scx_bpf_dsq_move_to_local(bound_queue(cpu), 0))
		return true;
	if (waiting(&d->host) && !(d->pending & pol_lane(c->lane)))
		__sync_fetch_and_or(&d->pending, pol_lane(c->lane));
	return false;
}

/*
 * Takes a thread from a queue, of the first eight there: one of the host's (if it goes on and on, one whose place is before `began`:
 * one of little weight would have a part of each slot), or one of a VM that has not used up a slice since it woke up and is further
 * behind than `began` by what a wake-up needs to preempt (wake.bpf.h).
 */
static __noinline bool take_of_queue(s32 cpu, u64 queue, bool hosts, u64 began)
{
	struct task_struct *p;
	bool taken = false;
	u32 seen = 0;

	bpf_for_each(scx_dsq, p, queue, 0) {
		struct task_state *t = task_of(p);

		if (seen++ >= 8 || (!hosts && !pol_wake_preempts(p->scx.dsq_vtime, began, SET.wake_slack_ns)))
			break;
		if (!t || hosts != (t->vm == INSTEP_HOST && on(INSTEP_M_HOST)) || !may_use(p, cpu))
			continue;
		if (t->is_long && (!hosts || !pol_before(p->scx.dsq_vtime, began)))
			continue;
		taken = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
		break;
	}
	return taken;
}

#define OWN_LOOKS 16

/*
 * Takes a vCPU from the pool that ran on this CPU last, of the first 16 threads there, if its place is less than a slice behind
 * that of the first and no thread of the host is before it: it finds its caches warm, and the next CPU takes the others.
 */
static __noinline bool take_own_of_pool(s32 cpu, u32 domain)
{
	struct task_struct *p;
	bool taken = false;
	u64 first = 0;
	u32 seen = 0;

	bpf_for_each(scx_dsq, p, pool_queue(domain), 0) {
		struct task_state *t = task_of(p);

		if (!seen)
			first = p->scx.dsq_vtime;
		/* Threads of the host keep their order: one that had little waits at the front for less than a slice. */
		if (!t || t->vm == INSTEP_HOST)
			break;
		if (seen++ >= OWN_LOOKS || pol_before(first + own_bound(), p->scx.dsq_vtime))
			break;
		if (scx_bpf_task_cpu(p) != cpu || !may_use(p, cpu))
			continue;
		taken = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
		break;
	}
	return taken;
}

/*
 * A thread that might interrupt the gang whose slot it is if it woke up now, but found no CPU when it did, or was preempted
 * by the begin of a slot: else it would wait for slot after slot until it is overdue. Only on CPUs of the gang that
 * is interrupted first.
 */
static __always_inline bool interrupt_slot(s32 cpu, struct cpu_state *c, struct domain_state *d, struct chance *p, u64 now)
{
	struct vm_state *v = vm_of(c->owner);
	u64 began;

	if (!d->slotted || !v || !on(INSTEP_M_WAKE) || !(d->victims & pol_lane(c->lane)) || !ask_pool(cpu, d, p, now))
		return false;
	began = part_in(v, c->domain)->began;
	if (!(p->seen & MAY_RUN) || !pol_wake_preempts(p->first, began, SET.wake_slack_ns) ||
	    !take_of_queue(cpu, pool_queue(c->domain), false, began))
		return false;
	note_torn(v);
	count(INSTEP_C_WAKE_TEAR);
	return true;
}

/*
 * Takes a thread before the owner's in the middle or at the end of a gang's slot: one that is bound here and might interrupt the gang if it
 * woke up now, or one of the host, unless the host's threads are far ahead of their share. Not any that is bound, nor on CPUs of no gang:
 * it would come before all that wait there in each half of a slot.
 */
static __always_inline bool take_in_window(s32 cpu, struct cpu_state *c, struct domain_state *d, u64 now)
{
	struct vm_state *v = vm_of(c->owner);
	bool bound;
	u64 began;

	if (!c->owner || c->owner == POOL || !v)
		return false;
	began = part_in(v, c->domain)->began;
	bound = somebody_in(&c->bound, bound_queue(cpu), now);
	if (bound && on(INSTEP_M_WAKE) && take_of_queue(cpu, bound_queue(cpu), false, began))
		return true;
	if (!waiting(&d->host) || pol_before(d->clock + SET.lag_ns, d->host.vtime))
		return false;
	return (bound && take_of_queue(cpu, bound_queue(cpu), true, d->clock + OVERDUE_LEAD)) ||
	       ((d->victims & pol_lane(c->lane)) && somebody_in(&d->in_pool, pool_queue(c->domain), now) &&
		take_of_queue(cpu, pool_queue(c->domain), true, began));
}

/*
 * A thread of another domain that runs here gives way to one that waits there and is further behind than an account may
 * be: else it would have this CPU alone while others share theirs.
 */
static __always_inline bool give_way_to_own(s32 cpu, struct cpu_state *c, struct chance *prev)
{
	u64 first = 0;

	if (!prev->runnable || prev->seated || prev->domain == c->domain ||
	    !(first_place(pool_queue(prev->domain), cpu, &first) & MAY_RUN) ||
	    !pol_before(first + SET.lag_ns, prev->place + clock_of(prev->domain) - clock_of(c->domain)) ||
	    !scx_bpf_dsq_move_to_local(pool_queue(prev->domain), 0))
		return false;
	count(INSTEP_C_STOLEN);
	return true;
}

/* A gang's vCPU that fills a hole gives way to one of the gang that had least, where no thread of the pool waits. */
static __always_inline bool give_hole_away(struct cpu_state *c, struct domain_state *d, struct chance *prev)
{
	return prev->seated && (!c->owner || c->owner == POOL) && nobody_waits(c->domain) && is_anothers_hole(d, c->vm) &&
	       take_waiting(d->refused[0], c->domain, c->lane);
}

/* Goes on with what ran, for as long as `ns`. */
static __always_inline void go_on(struct task_struct *prev, u64 ns)
{
	scx_bpf_task_set_slice(prev, ns);
}

#endif
