/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which gang of several domains has the next slot.
 *
 * Flag: none (without gangs of several domains it does nothing). Counters: none.
 *
 * Problem: the planners of several domains must grant a gang the same slot, and no planner waits for another.
 * Method: a slot is promised one slot before. Slots are numbered by the clock, alike in all domains. At the start of slot n
 * a planner promises slot n + 1 to each wide gang of its domain that is due in all its domains:
 *     virtual time of the part <= clock of the domain + what a slot costs the gang
 * where a part that has slot n counts as charged for it. It is barred while VMs that come before it in one of its domains, and want
 * less than 7/8 of their share, want more CPUs of the pool there than its part leaves, and while threads of a pool or gangs of one domain there are
 * overdue. A gang that had no slot for too long (account.bpf.h, overdue_by) is due, never barred, and comes before those that are not.
 *     The promise is written into each domain in ascending order by compare and swap: of two gangs
 * that want the same domain the first one has all, the other one takes back what it had.
 *     So its domains share their CPUs between the gang and others as their clocks say, and the slowest of them decides. Of two gangs
 * each can be ahead of the other in another domain, so that neither is due. A gang is set equally far ahead in all its domains, by the
 * mean, when it was refused four slots, and at the end of each window of evidence (gang.bpf.h): one that has a domain for itself is
 * refused nothing there, and would hold the clocks of others back.
 * Limits: a gang that has become due waits for up to a slot longer than one of a single domain.
 */
#ifndef INSTEP_PROMISE_BPF_H
#define INSTEP_PROMISE_BPF_H

#include "moves.bpf.h"

/* After so many slots that it was refused a gang is equally far ahead in all its domains. */
#define EVEN_AFTER 4

/* The number of the slot that begins now, for timers that are a little early or late, too. */
static __always_inline u64 slot_number(u64 now)
{
	u64 length = INSTEP_STATE->slot_ns ?: POL_MS;

	return (now + length / 16) / length;
}

/* Whether a gang has its CPUs of this domain in this slot. */
static __always_inline bool has_slot(struct vm_state *v, struct domain_state *d)
{
	struct gang_part *part = part_in(v, d->host.domain);

	return part->domain == d->host.domain && part->granted == d->slot;
}

/* Bars a gang of several domains if those before it in a plan's order, which want less than their share, want `light` of the pool. */
SEPARATE int note_barred(struct vm_state *v, struct domain_state *d, u32 light)
{
	struct gang_part *part;

	if (!v || !d)
		return 0;
	part = part_in(v, d->host.domain);
	part->barred = light >= POL_CPU / 2 && light + pol_count(part->set) * POL_CPU > d->nr_lanes * POL_CPU;
	return 0;
}

/* A promise is one word, as planners of other domains read and write it: the slot's number and the VM's. */
static __always_inline u64 promise_to(u64 slot, u32 vm)
{
	return slot << 16 | vm;
}

static __always_inline u64 *nth_promise(struct domain_state *d, u64 slot, u32 k)
{
	return &d->promises[slot & 1][k & (INSTEP_PROMISES - 1)];
}

/* Which VM has this promise, if it is of that slot; 0 else. */
static __always_inline u32 promised_to(u64 promise, u64 slot)
{
	return promise >> 16 == (slot & ~0ull >> 16) ? promise & 0xffff : 0;
}

SEPARATE int is_promised(struct domain_state *d, u64 slot, u32 vm)
{
	s32 k;

	if (!d)
		return false;
	bpf_for(k, 0, INSTEP_PROMISES)
		if (*nth_promise(d, slot, k) == promise_to(slot, vm))
			return true;
	return false;
}

/* Whether a slot of a domain is promised to a gang that has CPUs there of this one's. */
SEPARATE int is_in_the_way(struct domain_state *d, u64 slot, u32 vm)
{
	struct vm_state *v = vm_of(vm), *o;
	s32 k;

	if (!d || !v)
		return true;
	bpf_for(k, 0, INSTEP_PROMISES) {
		u32 other = promised_to(*nth_promise(d, slot, k), slot);

		o = vm_of(other);
		if (other && other != vm && o && (part_in(o, d->host.domain)->set & part_in(v, d->host.domain)->set))
			return true;
	}
	return false;
}

SEPARATE int break_promise(struct domain_state *d, u64 slot, u32 vm)
{
	s32 k;

	if (!d)
		return 0;
	bpf_for(k, 0, INSTEP_PROMISES)
		__sync_val_compare_and_swap(nth_promise(d, slot, k), promise_to(slot, vm), 0);
	return 0;
}

/* Whether this slot of a domain is promised to a gang; promises it if nothing is in the way. */
SEPARATE int promise_part(struct domain_state *d, u32 vm, u64 slot)
{
	s32 k;

	if (!d)
		return false;
	if (is_promised(d, slot, vm))
		return true;
	if (is_in_the_way(d, slot, vm))
		return false;
	bpf_for(k, 0, INSTEP_PROMISES) {
		u64 *p = nth_promise(d, slot, k), before = *p;

		if (promised_to(before, slot) || __sync_val_compare_and_swap(p, before, promise_to(slot, vm)) != before)
			continue;
		/* Another planner may have promised it meanwhile. */
		if (!is_in_the_way(d, slot, vm))
			return true;
		break_promise(d, slot, vm);
		break;
	}
	return false;
}

/* Whether a gang may have this slot in all its domains. */
SEPARATE int is_due_in_all(u32 vm, u64 slot)
{
	struct vm_state *v = vm_of(vm);
	struct domain_state *d;
	u64 cost, most;
	bool due = true;
	s32 k;

	if (!v)
		return false;
	cost = pol_charge(INSTEP_STATE->slot_ns * v->seats, v->account.share);
	if (v->refusals >= EVEN_AFTER)
		even_leads(vm, cost);
	d = domain_of_part(v, 0);
	most = LEAD_ORIGIN + (d && is_promised(d, slot - 1, vm) ? 0 : cost);
	bpf_for(k, 0, parts_of(v)) {
		d = domain_of_part(v, k);
		if (d && (lead_of(vm, k, cost) > most || (d->slotted && (v->parts[within(k, INSTEP_MAX_PARTS)].barred || d->owes))))
			due = false;
	}
	return due;
}

/* Promises a slot to a gang in all its domains, if that can be, and if the gang is overdue or not as `overdue` says. */
SEPARATE int promise(u32 vm, u64 slot, u64 now, bool overdue)
{
	struct vm_state *v = vm_of(vm);
	struct domain_state *d;
	bool all = true;
	s32 k;

	if (!v || !is_active(&v->account))
		return false;
	d = domain_of_part(v, 0);
	/* Another planner was here before. */
	if (!d || is_promised(d, slot, vm))
		return false;
	if (!overdue_by(&v->account, v, now) == overdue || (!overdue && !is_due_in_all(vm, slot)))
		return false;
	bpf_for(k, 0, parts_of(v)) {
		d = domain_of_part(v, k);
		if (d && all && !promise_part(d, vm, slot))
			all = false;
	}
	if (all) {
		count(INSTEP_C_SPAN);
		return true;
	}
	bpf_for(k, 0, parts_of(v)) {
		d = domain_of_part(v, k);
		if (d)
			break_promise(d, slot, vm);
	}
	return false;
}

/*
 * Promises the next slot to the gangs of this domain that have parts in others, too: to those that are overdue first. Which of them comes
 * first changes from slot to slot.
 */
SEPARATE int promise_slots(struct domain_state *d, u64 now)
{
	u64 next = slot_number(now) + 1;
	u32 n;
	s32 k;

	if (!d)
		return 0;
	n = members_of(d);
	bpf_for(k, 0, 2 * n) {
		u32 vm = d->members[within((k + (u32)next) % n, INSTEP_MAX_VMS)];
		struct vm_state *v = vm_of(vm);

		if (v && is_spread_gang(v))
			promise(vm, next, now, (u32)k < n);
	}
	return 0;
}

#endif
