/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * In which domains a VM is, and which of their CPUs it may use.
 *
 * Flag: none. Counters: none.
 *
 * Problem: a VM is in one domain or has parts in several (span.bpf.h), and may not use all CPUs of each.
 * Method: what follows from its parts and from what its vCPUs note (allowed.bpf.h).
 */
#ifndef INSTEP_PARTS_BPF_H
#define INSTEP_PARTS_BPF_H

#include "state.bpf.h"

/* Whether a VM has CPUs that it takes as a gang. */
static __always_inline bool is_gang(struct vm_state *v)
{
	return v->seats > 1 && v->nr_parts;
}

/* Whether a VM has parts in several domains (span.bpf.h). */
static __always_inline bool is_spread(struct vm_state *v)
{
	return v->nr_parts > 1;
}

static __always_inline bool is_spread_gang(struct vm_state *v)
{
	return is_spread(v) && v->seats > 1;
}

/* Whether it waits in the pools of several domains. */
static __always_inline bool is_spread_pool(struct vm_state *v)
{
	return is_spread(v) && !v->seats;
}

/* The part of a VM in one of its domains. */
static __always_inline struct gang_part *part_in(struct vm_state *v, u32 domain)
{
	/* They lie in domains side by side. */
	u32 k = domain - v->parts[0].domain;

	return &v->parts[within(k < v->nr_parts ? k : 0, INSTEP_MAX_PARTS)];
}

/* The part in which a vCPU sits. */
static __always_inline struct gang_part *part_of(struct vm_state *v, struct slot_info *i)
{
	return &v->parts[within(i->part, INSTEP_MAX_PARTS)];
}

/* The domain of part `k` of a VM; NULL if it has no such part. */
static __always_inline struct domain_state *domain_of_part(struct vm_state *v, u32 k)
{
	return k < v->nr_parts ? domain_of(v->parts[within(k, INSTEP_MAX_PARTS)].domain) : NULL;
}

/* How many parts a VM has, for loops whose end the verifier has to see. */
static __always_inline u32 parts_of(struct vm_state *v)
{
	return v->nr_parts < INSTEP_MAX_PARTS ? v->nr_parts : INSTEP_MAX_PARTS;
}

/* Whether a VM competes for a domain's CPUs: its own, or one where a part of it is. */
static __always_inline bool is_member(struct vm_state *v, u32 domain)
{
	return v->account.domain == domain || (is_spread(v) && domain - v->parts[0].domain < v->nr_parts);
}

/* The virtual time of a VM that counts in one of its domains. */
static __always_inline u64 vtime_in(struct vm_state *v, u32 domain)
{
	return is_spread(v) ? part_in(v, domain)->vtime : v->account.vtime;
}

/* The CPUs of a domain that a VM may use, as far as it is known. */
static __always_inline u64 lanes_for(struct vm_state *v, struct domain_state *d)
{
	return v->restricted ? v->may_use[within(d->host.domain, INSTEP_MAX_DOMAINS)] : d->lanes;
}

/* The CPUs of each domain that a VM may use count as used by VMs. */
SEPARATE int note_used(u32 vm)
{
	struct vm_state *v = vm_of(vm);
	u32 n = SET.nr_domains;
	s32 k;

	if (!v)
		return 0;
	bpf_for(k, 0, n < INSTEP_MAX_DOMAINS ? n : INSTEP_MAX_DOMAINS) {
		struct domain_state *d = domain_of(k);
		u64 more = d ? lanes_for(v, d) & ~d->used : 0;

		/* All CPUs of the domain read that line. */
		if (d && more)
			__sync_fetch_and_or(&d->used, more);
	}
	return 0;
}

/* Whether the siblings may use all CPUs of a part: after CPUs were taken from them they do not until the end of the window. */
static __always_inline bool may_use_part(struct vm_state *v, struct gang_part *part)
{
	struct domain_state *d = domain_of(part->domain);

	return !v->restricted || (d && lanes_for(v, d) && !(part->set & ~lanes_for(v, d)));
}

#endif
