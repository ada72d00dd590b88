/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Synchronisation-aware boost: the vCPU that all others wait for goes first (systems.md, 2).
 *
 * Flag: boost. Counters: boosts.
 *
 * Problem: a sibling that is ready but does not run (a bottleneck) holds up the whole VM; the time
 * that the waiting vCPUs give away is lost for it.
 * Method: the wait table. When a vCPU that siblings usually wake goes to sleep, it has an entry with
 * that time; when a sibling wakes any vCPU of the VM, all entries of the VM are removed, and when
 * something else wakes it, its own. The VM's oldest entry is kept beside them: a look at all
 * siblings is needed only when that one goes alone. The VM is held up when it is older than the
 * ideal scheduling interval
 *     |C| / |P| * T        (all vCPUs, all CPUs, the slice)
 * and a vCPU is ready that does not run. It is then preferred by `boost_ns`, as long as the VM is
 * not ahead of the host's virtual time: within its fair allocation (a slice more: seen, simulated, VMs
 * that spin before they block lost a tenth, as it tears episodes apart). Chosen, it keeps that against who
 * wakes up while a sibling still waits for it.
 * Limits: an idle guest's vCPUs sleep long, too, but are woken by timers and I/O: the share of
 * wake-ups by siblings tells them apart, so it takes some wake-ups to learn. It is looked at when
 * a CPU chooses and at ticks, not by a clock of its own: precise to a tick.
 */
#ifndef INSTEP_BOOST_BPF_H
#define INSTEP_BOOST_BPF_H

#include "account.bpf.h"

/* Of 256: above it, a vCPU's sleeps are taken for synchronisation. */
#define MOSTLY_BY_SIBLINGS 128

static __always_inline void wait_begins(struct vm_state *v, struct slot_info *i, u64 now)
{
	i->waits_since = i->sibling_wakes >= MOSTLY_BY_SIBLINGS ? now : 0;
	if (i->waits_since && !v->wait_since)
		v->wait_since = now;
}

/* The VM's oldest entry has gone alone: the oldest of the others, 0 if there is none. */
SEPARATE int find_oldest_wait(u32 vm)
{
	struct vm_state *v = vm_of(vm);
	struct instep_vm_settings *s = vm_set_of(vm);
	u64 oldest = 0;
	u32 n;
	s32 k;

	if (!v || !s)
		return 0;
	n = s->nr_vcpus < INSTEP_MAX_VCPUS ? s->nr_vcpus : INSTEP_MAX_VCPUS;
	bpf_for(k, 0, n) {
		struct slot_info *i = slot_of(s->first_slot + k);

		/* Before the last removal of all: no entry any more. */
		if (!i || !i->waits_since || !pol_before(v->waits_removed_at, i->waits_since))
			continue;
		if (!oldest || pol_before(i->waits_since, oldest))
			oldest = i->waits_since;
	}
	v->wait_since = oldest;
	return 0;
}

/* A vCPU wakes up: removes its entry, or all of the VM when a sibling did it, and learns. */
static __always_inline void wait_ends(struct vm_state *v, u32 vm, struct slot_info *i,
				      bool by_sibling, u64 now)
{
	u64 since = i->waits_since;

	i->sibling_wakes = i->sibling_wakes - i->sibling_wakes / 8 + (by_sibling ? 32 : 0);
	i->waits_since = 0;
	if (by_sibling) {
		v->wait_since = 0;
		v->waits_removed_at = now;
	} else if (since && since == v->wait_since) {
		find_oldest_wait(vm);
	}
}

/* Whether a VM of which so many vCPUs are ready is held up by a bottleneck and may be helped now. */
static __always_inline bool bottlenecked(struct vm_state *v, u32 ready, u64 now)
{
	u64 since = v->wait_since;

	if (!on(INSTEP_M_BOOST) || !since || !pol_before(since, now))
		return false;
	return pol_held_up(now - since, INSTEP_STATE->all_vcpus, INSTEP_STATE->online, SET.slice_ns,
			   ready) &&
	       pol_may_boost(v->account.vtime, INSTEP_STATE->vtime);
}

#endif
