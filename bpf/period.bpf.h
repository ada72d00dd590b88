/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is done for all accounts once in an allocation period of 24 ms: demand, lag, level, shares, the length of a slot.
 *
 * Flag: none. Counters: none (account.bpf.h has those of shares).
 *
 * Problem: what an account wants changes, and with it what all others may have.
 * Method: `end_period` takes over what each account wanted in the period, bounds what it saved and owes, seeks the level at which all
 * shares fill the host, and sets them. account.bpf.h has the formulas.
 * Limits: in a domain without slots the clock knows the VMs that have their home there, and no parts of others (span.bpf.h).
 */
#ifndef INSTEP_PERIOD_BPF_H
#define INSTEP_PERIOD_BPF_H

#include "account.bpf.h"

/*
 * The most that an account may be ahead of the clock: never less than what two slots cost it. Of the host's threads as many count as
 * its domain has CPUs: a burst of new ones would leave the others nothing for as long as the watchdog waits.
 */
static __always_inline u64 most_ahead(struct account *a, u32 share)
{
	struct domain_state *d = a->is_host ? domain_of(a->domain) : NULL;
	u32 cpus = d && a->peak > d->nr_lanes ? d->nr_lanes : a->peak ?: 1;
	u64 slots = pol_charge(2 * INSTEP_STATE->slot_ns * cpus, share);

	return slots > 2 * SET.lag_ns ? slots : 2 * SET.lag_ns;
}

/* Whether the clock waits for an account: it has something to run, and wants about its share. */
static __always_inline bool moves_clock(struct account *a)
{
	return a->nr_running + waiting(a) && !a->light;
}

/* The clock of a domain without slots is set at the end of a period; where it has no such account it goes on by itself. */
static __always_inline void raise_clock(struct domain_state *d, u64 period)
{
	if (!d->slotted)
		d->clock = d->least ? pol_max(d->clock, d->least) : d->clock + period;
	d->least = 0;
}

static __always_inline void note_least(struct account *a, u32 domain)
{
	struct domain_state *d = domain_of(domain);

	if (d && moves_clock(a))
		d->least = pol_first(d->least, a->vtime);
}

/* What an account saved and owes is bounded. */
SEPARATE int bound_lag(struct account *a, u32 vm, u32 domain, u32 share)
{
	u64 clock = clock_of(domain), vtime, most;
	struct vm_state *v = vm_of(vm);

	if (!a)
		return 0;
	vtime = a->vtime;
	most = !a->waited || a->light ? lag_of(vm) : MOST_BEHIND * lag_of(vm);
	if (v && is_spread_pool(v) && most == lag_of(vm))
		expire_parts(vm);
	if (pol_before(vtime, clock - most)) {
		if (set_vtime(a, vtime, clock - most))
			count(INSTEP_C_EXPIRED);
	} else if (pol_before(clock + most_ahead(a, share), vtime)) {
		if (set_vtime(a, vtime, pol_shorten(vtime, clock + most_ahead(a, share))))
			count(INSTEP_C_CLAMPED);
	}
	return 0;
}

/* An account's period is over: its demand is taken over. */
static __always_inline void end_account_period(struct account *a, u32 vm, u32 domain, u64 now, u64 period)
{
	u64 want;
	u32 share;

	measure(a, now);
	end_weight_period(a, vm);
	share = share_of(a);
	want = __sync_lock_test_and_set(&a->want_ns, 0);
	a->wanted_ns += want;
	want = want * POL_CPU / period;
	if (a->room && want > a->room * POL_CPU)
		want = a->room * POL_CPU;
	a->demand = (3 * (u64)a->demand + want) / 4;
	a->light = a->demand < share - share / 8;
	bound_lag(a, vm, domain, share);
	note_least(a, domain);
	a->waited = waiting(a) > 0;
	a->peak_before = a->peak;
	a->peak = wanting(a);
}

/* Adds what a VM loads its domains with to the load of each or, if the VM `leaves` them, takes it from there. */
SEPARATE int note_load(u32 vm, struct account *a, bool leaves)
{
	struct vm_state *v = vm_of(vm);
	struct domain_state *d;
	u32 load;
	s32 k;

	if (!v || !a)
		return 0;
	load = load_of(a) / (is_spread(v) ? v->nr_parts : 1);
	bpf_for(k, 0, is_spread(v) ? parts_of(v) : 1) {
		d = is_spread(v) ? domain_of_part(v, k) : domain_of(a->domain);
		if (d)
			d->loaded = leaves ? d->loaded - pol_min(d->loaded, load) : d->loaded + load;
	}
	return 0;
}

/* The load of a domain is that of its threads of the host, to which VMs add theirs. */
static __always_inline void note_load_of_host(struct account *a)
{
	struct domain_state *d = domain_of(a->domain);

	if (d)
		d->loaded = load_of(a);
}

/* What policy.h, pol_level wants to know of all accounts. */
struct level_sums {
	u64 filled;
	u64 weight;
	u64 all;
};

/* The account with this number of VMs, or with `hosts` of the host's threads; NULL if there is none. */
static __always_inline struct account *nth_account(u32 k, bool hosts)
{
	u32 vm = hosts ? INSTEP_HOST : k;
	struct instep_vm_settings *s = vm_set_of(vm);

	return hosts || (s && s->weight) ? account_of(vm, k) : NULL;
}

static __always_inline u32 nr_accounts(bool hosts)
{
	u32 n = hosts ? SET.nr_domains : INSTEP_STATE->nr_vms;

	return n < INSTEP_MAX_VMS ? n : INSTEP_MAX_VMS;
}

/* Ends the period of all accounts of VMs or, with `hosts`, of the host's threads. */
SEPARATE int end_account_periods(u64 now, u64 period, bool hosts)
{
	u32 n = nr_accounts(hosts);
	s32 k;

	bpf_for(k, hosts ? 0 : 1, n) {
		struct account *a = nth_account(k, hosts);
		struct domain_state *d = domain_of(k);

		if (!a)
			continue;
		if (hosts && d)
			raise_clock(d, period);
		end_account_period(a, hosts ? INSTEP_HOST : k, hosts ? (u32)k : a->domain, now, period);
	}
	return 0;
}

SEPARATE int sum_claims(bool hosts, struct level_sums *sums)
{
	u32 n = nr_accounts(hosts);
	s32 k;

	if (!sums)
		return 0;
	bpf_for(k, hosts ? 0 : 1, n) {
		struct account *a = nth_account(k, hosts);
		u32 w;

		if (!a)
			continue;
		w = weight_of(a);
		if (a->demand)
			sums->all += w;
		if (a->demand <= pol_claim(w, INSTEP_STATE->level))
			sums->filled += a->demand;
		else
			sums->weight += w;
	}
	return 0;
}

/* Sets the share of each account. `least` becomes the least share of a vCPU of a gang that had something to run. */
SEPARATE int set_shares(bool hosts, u32 *least)
{
	u32 n = nr_accounts(hosts);
	struct vm_state *v;
	s32 k;

	if (!least)
		return 0;
	bpf_for(k, hosts ? 0 : 1, n) {
		struct account *a = nth_account(k, hosts);

		if (!a)
			continue;
		a->share = share_of(a);
		if (hosts)
			note_load_of_host(a);
		else
			note_load(k, a, false);
		v = hosts ? NULL : vm_of(k);
		if (v && is_gang(v) && a->demand)
			*least = pol_min(*least, a->share / v->seats);
	}
	return 0;
}

/* A gang is to have its turn after this time at the latest. */
#define MOST_TURN (90 * POL_MS)

/*
 * The length of a slot. A VM with as many vCPUs as its domain has CPUs, each entitled to 1/26 of a CPU, gets every 26th slot. While
 * a gang's turn would come later than it may, slots are half as long.
 */
static __always_inline void set_slot_length(u32 least)
{
	u64 turn = SET.slot_ns * POL_CPU / (least ?: 1), most = MOST_TURN, length;

	if (INSTEP_STATE->slot_ns < SET.slot_ns)
		most -= most / 4;
	length = turn > most ? SET.slot_ns / 2 : SET.slot_ns;
	/* Every CPU reads it. */
	if (INSTEP_STATE->slot_ns != length)
		INSTEP_STATE->slot_ns = length;
}

/* Steps towards the level in one period: one that has to begin anew is there after some, and not after some periods. */
#define LEVEL_STEPS 8

/* Once in an allocation period, on whichever CPU comes first. */
SEPARATE int end_period(u64 now)
{
	u64 at = INSTEP_STATE->rolled_at;
	u32 least = POL_CPU;

	if (pol_since(at, now) < POL_DEFAULT_PERIOD && at)
		return 0;
	if (__sync_val_compare_and_swap(&INSTEP_STATE->rolled_at, at, now) != at)
		return 0;
	/* Entries of VMs may have gone while vCPUs wait on seats (choose.bpf.h, drain_seats). */
	if (INSTEP_STATE->generation != SET.generation) {
		INSTEP_STATE->generation = SET.generation;
		INSTEP_STATE->drained = 0;
	}
	if (!at)
		return 0;
	end_account_periods(now, now - at, true);
	end_account_periods(now, now - at, false);
	bpf_repeat(LEVEL_STEPS) {
		struct level_sums sums = {};
		u64 level;

		sum_claims(true, &sums);
		sum_claims(false, &sums);
		level = pol_level((u64)INSTEP_STATE->online * POL_CPU, sums.filled, sums.weight, sums.all);
		if (level == INSTEP_STATE->level)
			break;
		INSTEP_STATE->level = level;
	}
	set_shares(true, &least);
	set_shares(false, &least);
	set_slot_length(least);
	return 0;
}

#endif
