/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fair shares: who is charged, and when unused time expires.
 *
 * Flag: shares. Counters: expired, clamped.
 *
 * Problem: the kernel's fair class charges threads (or, with groups, queues per CPU); a VM's share
 * is that of the whole VM, whichever of its vCPUs used it.
 * Method: one virtual time per VM, to which every run of every thread of it adds
 *     ran * 100 / weight
 * so that a sequential section may use one CPU fully while the siblings sleep (systems.md, 5).
 * Time that a VM did not want expires at the end of its allocation period: its virtual time is
 * lifted to what others may lead (48 ms) below the host's at the period's begin (policy.h, pol_roll).
 * Threads of no VM have a virtual time each and one together with a weight of its own (host.bpf.h).
 * Limits: virtual times are global, queues are per CPU; where affinities cut the host into parts
 * with different contention, a VM in several parts is only kept within `debt_ns` of each.
 */
#ifndef INSTEP_ACCOUNT_BPF_H
#define INSTEP_ACCOUNT_BPF_H

#include "state.bpf.h"

static __always_inline u64 vm_vtime(u32 vm)
{
	struct vm_state *v = vm_of(vm);

	return v ? v->account.vtime : POL_ORIGIN;
}

/* It grows; of two CPUs that set it at once the one behind may win, until either chooses again. */
static __always_inline void host_reached(u64 vtime)
{
	if (pol_before(INSTEP_STATE->vtime, vtime))
		INSTEP_STATE->vtime = vtime;
}

/*
 * A CPU's own virtual time is that of what it chose, also when it chose to go on: else it stood still
 * under a thread that runs for long, and bound_vm() forgave VMs ahead of it what they had used
 * (seen: one vCPU had 38 % beside two that had 62 %).
 */
static __always_inline void cpu_reached(struct cpu_state *c, u64 vtime)
{
	c->vtime = pol_max(c->vtime, pol_min(vtime, c->vtime + SET.debt_ns));
	host_reached(c->vtime);
}

static __always_inline void charge_vm(u32 vm, u32 slot, u64 ran)
{
	struct vm_state *v = vm_of(vm);
	struct instep_vm_settings *s = vm_set_of(vm);
	struct slot_info *i = slot_of(slot);

	if (!v || !s)
		return;
	__sync_fetch_and_add(&v->account.vtime, pol_cost(ran, s->weight));
	__sync_fetch_and_add(&v->total_ns, ran);
	if (!i)
		return;
	__sync_fetch_and_add(&v->ran_ns, ran);
	if (i->episode != v->episode_until) {
		i->episode = v->episode_until;
		i->ran_ns = 0;
	}
	i->ran_ns += ran;
}

/* Charges what the running thread of a CPU has used since it was last charged. */
SEPARATE int charge(s32 cpu, u64 now)
{
	struct cpu_state *c = cpu_of(cpu);
	u64 since, ran;

	if (!c || !c->tid || !pol_before(c->since, now))
		return 0;
	/* Another CPU may do so at the same time: whoever exchanges first charges. */
	since = __sync_lock_test_and_set(&c->since, now);
	if (!pol_before(since, now))
		return 0;
	ran = now - since;
	if (c->vm != INSTEP_HOST && on(INSTEP_M_SHARES)) {
		charge_vm(c->vm, c->slot, ran);
		return 0;
	}
	if (c->vm != INSTEP_HOST)
		charge_vm(c->vm, c->slot, ran);
	else
		__sync_fetch_and_add(&INSTEP_STATE->group_vtime, pol_cost(ran, SET.host_weight));
	c->own_vtime += pol_cost(ran, c->weight);
	return 0;
}

/*
 * Before the number of running or waiting vCPUs changes: for how long they were as they are. The
 * measure of co-scheduling (design.md, co-run); an update lost to another CPU costs one interval.
 */
static __always_inline void measure(struct vm_state *v, u64 now)
{
	u64 since = v->changed_at;

	v->changed_at = now;
	if (!since || !pol_before(since, now))
		return;
	if (v->nr_running > 1)
		v->together_ns += now - since;
	else if (v->nr_running && v->nr_queued)
		v->apart_ns += now - since;
}

/* Sets a VM's virtual time unless it has been charged meanwhile: no charge is lost. */
static __always_inline bool set_vtime(struct vm_state *v, u64 before, u64 vtime)
{
	return __sync_val_compare_and_swap(&v->account.vtime, before, vtime) == before;
}

/* Ends a VM's allocation period when it is over. */
static __always_inline void roll(u32 vm, u64 now)
{
	struct vm_state *v = vm_of(vm);
	struct instep_vm_settings *s = vm_set_of(vm);
	struct pol_account rolled;
	u64 period, before;

	if (!v || !s || !on(INSTEP_M_SHARES))
		return;
	/* One that has waited since before the period waits in it, too. */
	if (v->nr_queued)
		v->account.waited = 1;
	period = s->period_ns ?: POL_DEFAULT_PERIOD;
	/* Looked at each tick: one shorter than that would take who runs for absent. */
	if (period < 2 * SET.slice_ns)
		period = 2 * SET.slice_ns;
	if (pol_since(v->account.period_at, now) < period)
		return;
	rolled = v->account;
	before = rolled.vtime;
	/* Another CPU may charge the VM at the same time, or end the period. */
	if (pol_roll(&rolled, now, period, INSTEP_STATE->vtime) == POL_EXPIRED &&
	    set_vtime(v, before, rolled.vtime))
		count(INSTEP_C_EXPIRED);
	v->account.mark = rolled.mark;
	v->account.period_at = rolled.period_at;
	v->account.waited = rolled.waited;
}

/*
 * Bounds how far a VM is from the virtual time of the CPU where it is about to wait. Ahead it may be by
 * what two slices cost it, too: else a small weight would be forgiven most of what it used.
 */
static __always_inline void bound_vm(u32 vm, struct cpu_state *c)
{
	struct vm_state *v = vm_of(vm);
	struct instep_vm_settings *s = vm_set_of(vm);
	u64 lead, bounded, before;

	if (!v || !s)
		return;
	lead = pol_cost(2 * SET.slice_ns, s->weight);
	if (lead < SET.debt_ns)
		lead = SET.debt_ns;
	before = v->account.vtime;
	bounded = pol_max(pol_min(before, c->vtime + lead), c->vtime - SET.debt_ns);
	if (bounded != before && set_vtime(v, before, bounded))
		count(INSTEP_C_CLAMPED);
}

#endif
