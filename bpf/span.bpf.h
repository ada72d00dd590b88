/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * VMs that are wider than a scheduling domain.
 *
 * Flag: span. Counters: spans.
 *
 * Problem: a plan is of one domain, and a VM with more vCPUs that never block than a domain has CPUs must have all its
 * CPUs at once, too.
 * Method: such a gang has a part in each of several domains, as few as have room for it, and side by side: the first is a
 * multiple of the next power of two of their number, so that wide gangs have the same domains or none in common. Of these
 * places it has the one with the fewest such gangs, then the one that is least loaded; if the VM has a home node, one with
 * its own domain. The seats are divided evenly. Each part has a gang set (set.bpf.h), and virtual time of its own: it
 * is charged by
 *     CPU time in the domain / (share * seats of the part / seats)
 * and starts with the lag that the VM has in its own domain.
 *     Slots begin at the same moments in all domains. At the start of each slot every planner looks at the wide gangs that
 * have a part in its domain (promise.bpf.h). A gang that is not ahead of the clock of any of its domains is promised the next
 * slot in all of them, unless CPUs of its set are promised to another. A planner grants what was promised before all else.
 *     A VM with more vCPUs than its domain has CPUs that forms no gang has parts, too: in as many domains as have room for all its
 * vCPUs, else in as many as there are side by side, at most 16. Its vCPUs are divided evenly among them, and each waits in the
 * pool of its part's domain. Each part is charged by
 *     CPU time in the domain / (share / least of the number of parts and of the threads that the VM wants to run)
 * and at the end of each window of evidence (gang.bpf.h) all are set equally far ahead of the clocks of their domains, by the mean of what
 * all have used: what siblings do not use elsewhere a part may use, and none holds the clock of its domain back. After eight windows in
 * which some waited each vCPU goes to the next part: those that wait beside a gang have less, as the VM may have its share in the other
 * parts alone.
 *     A VM with vCPUs that may not use its domain, as one pinned to several nodes, has parts where they have their homes (parts.bpf.h).
 *     The seats of such a VM are where its vCPUs are at home, in place of evenly divided.
 * Limits: while some of its vCPUs form a gang that fits into its domain all wait there. What lies in several domains moves only when
 * a gang loses CPUs, when a vCPU may use others, when the VM gets another home, or when a trial as a gang begins or ends.
 */
#ifndef INSTEP_SPAN_BPF_H
#define INSTEP_SPAN_BPF_H

#include "set.bpf.h"

/* A wide gang in a domain speaks against it as much as a load of so many 1024ths for each CPU. */
#define WIDE_COSTS (64 * POL_CPU)
/* Leads are counted from here, so that none is negative. */
#define LEAD_ORIGIN (1ull << 50)

static __always_inline bool may_spread(struct vm_state *v)
{
	return on(INSTEP_M_SPAN) && (!v->restricted || v->alike || v->split);
}

/* So many CPUs a VM may have as a gang in `n` domains from this one on; 0 if it may have none in one of these. */
SEPARATE u32 room_from(u32 vm, u32 first, u32 n)
{
	struct vm_state *v = vm_of(vm);
	u32 room = 0;
	s32 k;

	if (!v)
		return 0;
	bpf_for(k, 0, n < INSTEP_MAX_PARTS ? n : INSTEP_MAX_PARTS) {
		struct domain_state *d = domain_of(first + k);

		/* Also those of isolated CPUs have numbers. */
		if (!d || !room_for(v, d))
			return 0;
		room += room_for(v, d);
	}
	return room;
}

/* How far part `k` of a VM is ahead of its domain's clock, from LEAD_ORIGIN on. What it saved and owes is bounded. */
SEPARATE u64 lead_of(u32 vm, u32 k, u64 cost)
{
	struct vm_state *v = vm_of(vm);
	struct gang_part *part;
	struct domain_state *d;
	u64 vtime, bounded;

	if (!v)
		return LEAD_ORIGIN;
	part = &v->parts[within(k, INSTEP_MAX_PARTS)];
	d = domain_of(part->domain);
	if (!d)
		return LEAD_ORIGIN;
	vtime = part->vtime;
	bounded = pol_clamp(vtime, d->clock - MOST_BEHIND * SET.lag_ns, d->clock + 2 * SET.lag_ns + 2 * cost);
	/* CPUs of its domain may charge it at the same time. */
	if (bounded != vtime)
		__sync_fetch_and_add(&part->vtime, bounded - vtime);
	return LEAD_ORIGIN + bounded - d->clock;
}

/* Part `k` of a VM is so far ahead from now on. CPUs of its domain may charge it at the same time. */
SEPARATE int set_lead(u32 vm, u32 k, u64 lead)
{
	struct vm_state *v = vm_of(vm);
	struct gang_part *part;
	struct domain_state *d;

	if (!v)
		return 0;
	part = &v->parts[within(k, INSTEP_MAX_PARTS)];
	d = domain_of(part->domain);
	if (d)
		__sync_fetch_and_add(&part->vtime, d->clock + (lead - LEAD_ORIGIN) - part->vtime);
	return 0;
}

/* Sets the parts of a VM equally far ahead. */
SEPARATE int even_leads(u32 vm, u64 cost)
{
	struct vm_state *v = vm_of(vm);
	u64 sum = 0;
	s32 k;

	if (!v || !v->nr_parts)
		return 0;
	bpf_for(k, 0, parts_of(v))
		sum += lead_of(vm, k, cost);
	sum += __sync_lock_test_and_set(&v->uneven, 0);
	sum /= v->nr_parts;
	if (is_spread_pool(v))
		sum = pol_min(sum, LEAD_ORIGIN + 2 * SET.lag_ns);
	bpf_for(k, 0, parts_of(v))
		set_lead(vm, k, sum);
	return 0;
}

/* Divides the seats of a gang among `n` domains; whether all have a CPU. */
SEPARATE int spread_over(u32 vm, u32 first, u32 n)
{
	struct vm_state *v = vm_of(vm);
	struct domain_state *home;
	struct numbering *c;
	bool fits = true;
	u64 lag;
	s32 k;

	if (!v)
		return false;
	home = domain_of(v->account.domain);
	if (!home)
		return false;
	lag = v->account.vtime - home->clock;
	c = &v->numbering;
	*c = (struct numbering){};
	bpf_for(k, 0, n < INSTEP_MAX_PARTS ? n : INSTEP_MAX_PARTS) {
		struct gang_part *part = &v->parts[within(k, INSTEP_MAX_PARTS)];
		struct domain_state *d = domain_of(first + k);
		u32 size, room;

		if (!d)
			return false;
		room = room_for(v, d);
		size = (v->seats - c->next + n - k - 1) / (n - k ?: 1);
		size = size < room ? size : room;
		part->first = c->next;
		part->vtime = d->clock + lag;
		part->barred = 0;
		fits &= place_part(vm, k, first + k, size) || v->split;
		if (v->split)
			size = pol_count(part->set);
		/* Gangs that look for a place before the domain lists its members again see this one. */
		d->nr_spread++;
		/* Its vCPUs may wait in the pools of all these domains. */
		d->pooled = 1;
		c->next += size;
	}
	return fits && c->next == v->seats;
}

/*
 * What speaks against `n` domains from this one on: other wide gangs, as these do not move, and then what the domains
 * are loaded with.
 */
SEPARATE u32 load_from(u32 first, u32 n)
{
	u32 load = 0;
	s32 k;

	bpf_for(k, 0, n < INSTEP_MAX_PARTS ? n : INSTEP_MAX_PARTS) {
		struct domain_state *d = domain_of(first + k);

		if (d)
			load += load_per_cpu(d, 0) + d->nr_spread * WIDE_COSTS;
	}
	return load;
}

/* Of the places for `n` parts the one that is least loaded; NO_DOMAIN if none has room. A VM with a home stays there. */
SEPARATE u32 least_loaded_from(u32 vm, u32 n, u32 size)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	u32 domains = SET.nr_domains, found = NO_DOMAIN, least = ~0u;
	bool stays;
	s32 k;

	if (!v || !s)
		return NO_DOMAIN;
	stays = home_of(s) != INSTEP_NO_NODE;
	bpf_for(k, 0, domains < INSTEP_MAX_DOMAINS ? domains : INSTEP_MAX_DOMAINS) {
		u32 first = pol_first_domain(k, n, domains), load;

		if (stays && v->account.domain - first >= n)
			continue;
		load = load_from(first, n);
		if (load >= least || room_from(vm, first, n) < size)
			continue;
		least = load;
		found = first;
	}
	return found;
}

/* A VM is to have parts in `n` domains from this one on; `n`. */
static __always_inline u32 begin_at(struct vm_state *v, u32 first, u32 n)
{
	if (v->account.domain - first >= n)
		enter_domain(v, first);
	v->numbering.part = first;
	return n;
}

/*
 * Domains for so many vCPUs, which no single one has room for: how many, 0 if all together have too few CPUs. The first one is
 * left in `numbering`.
 */
SEPARATE u32 find_domains(u32 vm, u32 size)
{
	struct vm_state *v = vm_of(vm);
	u32 domains = SET.nr_domains;
	s32 n;

	if (!v)
		return 0;
	bpf_for(n, 2, INSTEP_MAX_PARTS + 1) {
		u32 first;

		if ((u32)n > domains)
			break;
		first = least_loaded_from(vm, n, size);
		if (first != NO_DOMAIN)
			return begin_at(v, first, n);
	}
	return 0;
}

/* As many domains as there are side by side, at most as many as a VM may have parts. */
SEPARATE u32 find_most_domains(u32 vm)
{
	struct vm_state *v = vm_of(vm);
	u32 domains = SET.nr_domains;
	s32 k;

	if (!v)
		return 0;
	bpf_for(k, 0, INSTEP_MAX_PARTS - 1) {
		u32 n = INSTEP_MAX_PARTS - k, first;

		if (n > domains)
			continue;
		first = least_loaded_from(vm, n, 1);
		if (first != NO_DOMAIN)
			return begin_at(v, first, n);
	}
	return 0;
}

/* A VM leaves its domains before it gets a place, so that its own load speaks against none of them. Their planners list members anew. */
SEPARATE int leave_domains(u32 vm)
{
	struct vm_state *v = vm_of(vm);
	s32 k;

	if (!v)
		return 0;
	note_load(vm, &v->account, true);
	bpf_for(k, 0, parts_of(v)) {
		struct domain_state *d = domain_of_part(v, k);

		if (!d)
			continue;
		d->stale = 1;
		d->nr_spread -= is_spread(v) && v->parts[0].set && d->nr_spread;
	}
	v->nr_parts = 0;
	return 0;
}

/* The domains from the first home of a VM's vCPUs to the last: how many, 0 if these are too many. The first one is left in `numbering`. */
SEPARATE u32 find_homes(u32 vm)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	u32 n, first = INSTEP_MAX_DOMAINS, last = 0;
	s32 k;

	if (!s || !v)
		return 0;
	n = vcpus_of(s);
	bpf_for(k, 0, n) {
		struct slot_info *i = slot_of(s->first_slot + k);

		if (!i || !i->noted)
			continue;
		first = pol_min(first, i->home);
		last = pol_max(last, i->home);
	}
	return first <= last && last - first < INSTEP_MAX_PARTS ? begin_at(v, first, last - first + 1) : 0;
}

/* Whether a VM has more vCPUs than its domain has CPUs, or some that may not use these, and may use other domains. */
static __always_inline bool is_broad(u32 vm, struct vm_state *v, struct domain_state *d)
{
	struct instep_vm_settings *s = vm_set_of(vm);

	return s && (v->split || s->nr_vcpus > pol_count(lanes_for(v, d))) && !d->isolated && SET.nr_domains > 1 && may_spread(v);
}

/* A broad VM that forms no gang waits in the pools of as many domains as have room for it, or of as many as there are. */
SEPARATE int spread_pool(u32 vm)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	u32 n, first;
	u64 lag;
	s32 k;

	if (!v || !s)
		return 0;
	n = v->split ? find_homes(vm) : find_domains(vm, s->nr_vcpus) ?: find_most_domains(vm);
	first = v->numbering.part;
	lag = v->account.vtime - clock_of(v->account.domain);
	bpf_for(k, 0, n) {
		struct gang_part *part = &v->parts[within(k, INSTEP_MAX_PARTS)];
		struct domain_state *d = domain_of(first + k);

		if (!d)
			return 0;
		part->domain = first + k;
		part->set = 0;
		part->vtime = d->clock + lag;
		d->stale = 1;
	}
	v->nr_parts = n;
	return 0;
}

/* A gang gets the best set of its domain, or sets in several. Without any it is none. */
static __always_inline void find_place(u32 vm, struct vm_state *v, struct domain_state *d)
{
	u32 n;

	if (v->split || v->seats > room_for(v, d)) {
		n = !may_spread(v) || v->seats < 2 ? 0 : v->split ? find_homes(vm) : find_domains(vm, v->seats);
		if (n && spread_over(vm, v->numbering.part, n))
			v->nr_parts = n;
	} else if (v->seats > 1) {
		v->parts[0].first = 0;
		v->nr_parts = place_part(vm, 0, v->account.domain, v->seats);
	}
	if (v->nr_parts)
		return;
	v->seats = 0;
	d = domain_of(v->account.domain);
	v->broad = d && is_broad(vm, v, d);
	if (v->broad)
		spread_pool(vm);
}

/* Gives the vCPUs of a VM the best place, as if it had none. */
SEPARATE int place_gang(u32 vm, u64 now)
{
	struct vm_state *v = vm_of(vm);
	struct domain_state *d = v ? domain_of(v->account.domain) : NULL;

	if (!v || !d)
		return 0;
	leave_domains(vm);
	v->moved_at = now;
	v->masks_at = v->masks;
	find_place(vm, v, d);
	note_load(vm, &v->account, false);
	return 0;
}

#endif
