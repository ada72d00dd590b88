/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Strict co-scheduling: all siblings of a VM at once, or none; what they leave stays empty.
 *
 * Flag: gang (for VMs set so). Counters: holes_left, holes_ended.
 *
 * Problem: the published balance scheduling is compared with co-scheduling as hypervisors first had
 * it (systems.md, 3). Relaxed co-scheduling fills the holes of an episode; this does not, so that
 * what filling is worth can be measured. A setting of a VM, never chosen by evidence.
 * Method: the VM's episode (gang.bpf.h) *holds* the CPUs of all its vCPUs, those that sleep too, until
 * it ends: threads of other VMs are not chosen there (policy.h, pol_may_use), nor sent there when it
 * idles. CPUs that run something else are told to choose again. A CPU where somebody is overdue, or
 * further behind than an episode may lead (POL_LEAD_NS), is not held: the episode runs without it
 * (seen: one vCPU beside five on four CPUs was never chosen). The hold is a time, so it ends by
 * itself; the end of the episode, or the last sibling going to sleep, calls the CPUs that stand still.
 *
 *     a thread may be chosen    where now >= held_until, or its VM holds the CPU, or it is of no VM
 *
 *	begin_episode --> hold CPUs --> siblings run | CPU idle, others wait
 *	                     |                 |
 *	                     +-- until reached or no sibling runs --> CPUs choose again
 *
 * Limits: threads of no VM do run on held CPUs, or a host would not stay responsive; siblings start
 * within an interrupt of each other. A VM with more vCPUs than CPUs holds all CPUs and takes turns.
 * Two such VMs share CPUs in turn, but where their CPUs overlap in part the second holds only
 * what the first left.
 */
#ifndef INSTEP_STRICT_BPF_H
#define INSTEP_STRICT_BPF_H

#include "account.bpf.h"

static __always_inline bool is_strict(u32 vm)
{
	struct instep_vm_settings *s = vm_set_of(vm);

	return s && s->cosched == INSTEP_COSCHED_STRICT && on(INSTEP_M_GANG);
}

/* Whether a CPU is held by another VM than `vm`. */
static __always_inline bool held_from(struct cpu_state *c, u32 vm, u64 now)
{
	return !pol_may_use(c->held_vm, c->held_until, now, vm);
}

static __always_inline bool held(struct cpu_state *c, u64 now)
{
	return pol_before(now, c->held_until);
}

/* Whether any CPU may be held, or was a moment ago and is still to wake up. */
static __always_inline bool some_held(u64 now)
{
	return pol_before(now, INSTEP_STATE->held_until + SET.slice_ns);
}

SEPARATE int owed_more(s32 cpu, u32 vm, u64 now);

/* The VM's episode begins: its vCPUs' CPUs are its own until it ends. */
SEPARATE int hold_cpus(u32 vm, s32 self, u64 now, u64 until)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	u32 n;
	s32 k;

	if (!s)
		return 0;
	n = s->nr_vcpus < INSTEP_MAX_VCPUS ? s->nr_vcpus : INSTEP_MAX_VCPUS;
	bpf_for(k, 0, n) {
		struct slot_info *i = slot_of(s->first_slot + k);
		struct cpu_state *c;

		if (!i)
			continue;
		c = cpu_of(i->cpu);
		if (!c || held_from(c, vm, now) || owed_more(i->cpu, vm, now))
			continue;
		c->held_vm = vm;
		c->held_until = until;
		INSTEP_STATE->held_until = until;
		if ((s32)i->cpu != self && c->vm != vm)
			scx_bpf_kick_cpu(i->cpu, SCX_KICK_PREEMPT);
	}
	return 0;
}

/* The hold is over, in time or before: CPUs that stand still choose again. */
SEPARATE int release_cpus(u32 vm)
{
	u32 n = SET.nr_cpus;
	s32 cpu;

	if (n > INSTEP_MAX_CPUS)
		n = INSTEP_MAX_CPUS;
	bpf_for(cpu, 0, n) {
		struct cpu_state *c = cpu_of(cpu);

		if (!c || c->held_vm != vm || !c->held_until)
			continue;
		c->held_until = 0;
		scx_bpf_kick_cpu(cpu, c->tid ? 0 : SCX_KICK_PREEMPT);
	}
	return 0;
}

/* The last sibling that ran goes to sleep: nobody would end the hold. */
static __always_inline void none_runs(struct vm_state *v, u32 vm, u64 now)
{
	if (!is_strict(vm) || v->nr_running || !pol_before(now, v->episode_until))
		return;
	v->episode_until = now;
	count(INSTEP_C_HOLES_ENDED);
	release_cpus(vm);
}

#endif
