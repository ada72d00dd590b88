/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which CPUs the vCPUs of a VM may use.
 *
 * Flag: none. Counters: none.
 *
 * Problem: vCPUs may be bound to some CPUs: all of a VM to the same, as on a host that keeps CPUs for itself, or each to others.
 * Method: each vCPU notes which lanes of each domain it may use when it first runs, when that changes and when its VM comes to another
 * domain (note_allowed). Where all may use the same these lanes are the VM's in every domain, and it may go wherever it
 * has some. Else each vCPU has a home: its VM's domain if it may use CPUs there, or the domain where it may use most. The VM has the
 * lanes that any of those at home in a domain may use. One with vCPUs at home in several domains has a part in each.
 */
#ifndef INSTEP_ALLOWED_BPF_H
#define INSTEP_ALLOWED_BPF_H

#include "queue.bpf.h"

/* The CPUs of a domain that a thread may use. */
SEPARATE u64 allowed_lanes(struct task_struct *p __arg_trusted, struct domain_state *d)
{
	u64 allowed;
	s32 lane;

	if (!d)
		return 0;
	allowed = d->lanes;
	/* A timer's program holds no such lock by itself. */
	bpf_rcu_read_lock();
	bpf_for(lane, 0, INSTEP_LANES)
		if ((allowed & pol_lane(lane)) && !may_use(p, cpu_at(d, lane)))
			allowed &= ~pol_lane(lane);
	bpf_rcu_read_unlock();
	return allowed;
}

/* The CPUs that vCPUs at home in a domain may use. */
SEPARATE u64 lanes_of_home(u32 vm, u32 domain)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	u64 lanes = 0;
	u32 n;
	s32 k;

	if (!s)
		return 0;
	n = vcpus_of(s);
	bpf_for(k, 0, n) {
		struct slot_info *i = slot_of(s->first_slot + k);

		if (i && i->noted && i->home == domain)
			lanes |= i->allowed;
	}
	return lanes;
}

/* Which CPUs a VM may use, as far as its vCPUs were seen. */
SEPARATE int sum_allowed(u32 vm)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	u64 masks = 0, common = ~0ull, allowed;
	u32 n, room = 0, cpus = 0, away = 0, more = 0;
	struct domain_state *d;
	bool alike, split;
	s32 k;

	if (!v || !s)
		return 0;
	d = domain_of(v->account.domain);
	if (!d)
		return 0;
	n = vcpus_of(s);
	bpf_for(k, 0, n) {
		struct slot_info *i = slot_of(s->first_slot + k);

		if (!i || !i->noted)
			continue;
		/* Sums of bits: the verifier would follow each answer to each question. */
		masks |= i->mask;
		common &= i->mask;
		cpus |= i->cpus;
		away |= i->home ^ v->account.domain;
		/* Not 0 where it may use all CPUs, or some that are not at its home. */
		more |= i->cpus ^ pol_count(i->allowed);
	}
	alike = masks == common;
	split = away && !alike;
	n = SET.nr_domains;
	bpf_for(k, 0, n < INSTEP_MAX_DOMAINS ? n : INSTEP_MAX_DOMAINS) {
		if (cpus && !alike)
			v->may_use[within(k, INSTEP_MAX_DOMAINS)] = lanes_of_home(vm, k);
		if (!alike || (u32)k == v->account.domain)
			room += pol_count(v->may_use[within(k, INSTEP_MAX_DOMAINS)]);
	}
	v->restricted = cpus > 0;
	note_used(vm);
	allowed = lanes_for(v, d);
	if (v->allowed != allowed || v->alike != alike || v->split != split)
		d->stale = 1;
	v->allowed = allowed;
	v->alike = alike;
	v->split = split;
	v->account.room = more ? 0 : room;
	return 0;
}

/* Which CPUs of all domains a vCPU may use that may not use all. */
SEPARATE int note_may_use(struct task_struct *p __arg_trusted, struct slot_info *i, struct vm_state *v)
{
	u32 n = SET.nr_domains, most = 0;
	u64 mask = 1;
	s32 k;

	if (!i || !v)
		return 0;
	i->allowed = 0;
	bpf_for(k, 0, n < INSTEP_MAX_DOMAINS ? n : INSTEP_MAX_DOMAINS) {
		u64 lanes = allowed_lanes(p, domain_of(k));
		u32 count = pol_count(lanes);

		/* An odd factor: the same lanes in another domain make another mask. */
		mask = (mask + lanes) * 0x9e3779b97f4a7c55ull;
		v->may_use[within(k, INSTEP_MAX_DOMAINS)] = lanes;
		if (count && (u32)k == v->account.domain)
			count += INSTEP_LANES;
		if (count <= most)
			continue;
		most = count;
		i->home = k;
		i->allowed = lanes;
	}
	v->masks += i->mask != mask;
	i->mask = mask;
	return 0;
}

/* Which CPUs a vCPU may use. */
SEPARATE int note_allowed(struct task_struct *p __arg_trusted, struct task_state *t)
{
	struct slot_info *i = t ? slot_of(t->slot) : NULL;
	struct vm_state *v = t ? vm_of(t->vm) : NULL;
	struct domain_state *d = v ? domain_of(v->account.domain) : NULL;

	if (!t || !i || !v || !d || !v->joined)
		return 0;
	i->cpus = t->narrow ? p->nr_cpus_allowed : 0;
	if (i->cpus) {
		note_may_use(p, i, v);
	} else {
		v->masks += i->mask > 1;
		i->mask = 1;
		i->home = v->account.domain;
		i->allowed = d->lanes;
	}
	i->noted = v->account.domain + 1;
	sum_allowed(t->vm);
	return 0;
}

#endif
