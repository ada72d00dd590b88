/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is made once, when the scheduler is loaded: clocks, queues and timers.
 *
 * Flag: none (without it nothing runs). Counters: none. The loader has written before which CPUs there are and in which
 * domains they lie (crates/kernel, loaded.rs). What does not fit ends the loading with an error.
 */
#ifndef INSTEP_BEGIN_BPF_H
#define INSTEP_BEGIN_BPF_H

#include "held.bpf.h"

/* The clocks, queues and timer of one domain. */
static __always_inline s32 begin_domain(u32 domain)
{
	struct domain_state *d = domain_of(domain);
	s32 error;

	if (!d)
		return -EINVAL;
	d->clock = POL_ORIGIN;
	d->host.vtime = POL_ORIGIN;
	d->host.front = POL_ORIGIN;
	d->host.mean = POL_ORIGIN;
	d->host.domain = domain;
	d->host.is_host = 1;
	/* As the kernel does: an idle CPU tells of it only when it goes idle again. */
	d->idle = d->lanes;
	d->pool = d->lanes;
	error = scx_bpf_create_dsq(pool_queue(domain), -1);
	return error ?: make_timer(domain);
}

/* A CPU that is online counts, and learns which lanes share its last-level cache. */
SEPARATE int begin_cpu(s32 cpu)
{
	struct cpu_state *c = cpu_of(cpu);
	struct domain_state *d = c ? domain_of(c->domain) : NULL;
	s32 k;

	if (!c || !d || c->node < 0)
		return 0;
	INSTEP_STATE->online++;
	INSTEP_STATE->common += !d->isolated;
	if (!d->isolated)
		INSTEP_STATE->ordinary = cpu;
	d->capacity += scx_bpf_cpuperf_cap(cpu);
	/* The kernel begins with the highest frequency. */
	c->use = c->asked = 1024;
	bpf_for(k, 0, INSTEP_LANES) {
		if (d->caches & pol_lane(k)) {
			if ((u32)k > c->lane)
				break;
			c->cache = 0;
		}
		c->cache |= pol_lane(k);
	}
	c->cache &= d->lanes;
	return 0;
}

/* The other domains of the same node (`near`), or those of other nodes, follow in the order in which they are looked through. */
SEPARATE int order_domains(u32 domain, bool near)
{
	struct domain_state *d = domain_of(domain);
	u32 n = SET.nr_domains;
	s32 k;

	if (!d || n > INSTEP_MAX_DOMAINS)
		return 0;
	bpf_for(k, 1, n) {
		u32 other = domain + k;
		struct domain_state *o;

		if (other >= n)
			other -= n;
		o = domain_of(other);
		if (!o || (o->node == d->node) != near)
			continue;
		d->next[within(d->nr_next, INSTEP_MAX_DOMAINS)] = other;
		d->nr_next++;
	}
	return 0;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(instep_init)
{
	u32 n = SET.nr_cpus, domains = SET.nr_domains, slots = SET.nr_slots;
	s32 k, error;

	if (!n || n > INSTEP_MAX_CPUS || !domains || domains > INSTEP_MAX_DOMAINS || slots > INSTEP_MAX_SLOTS)
		return -EINVAL;
	INSTEP_STATE->level = POL_LEVEL_MOST;
	INSTEP_STATE->slot_ns = SET.slot_ns;
	error = begin_held();
	if (error)
		return error;
	bpf_for(k, 0, domains) {
		error = begin_domain(k);
		if (error)
			return error;
		order_domains(k, true);
		order_domains(k, false);
	}
	bpf_for(k, 0, n) {
		begin_cpu(k);
		error = scx_bpf_create_dsq(bound_queue(k), -1);
		if (error)
			return error;
	}
	bpf_for(k, 0, slots) {
		error = scx_bpf_create_dsq(seat_queue(k), -1);
		if (error)
			return error;
	}
	return 0;
}

#endif
