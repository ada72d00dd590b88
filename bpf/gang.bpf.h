/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Relaxed co-scheduling: siblings of a VM that never blocks run at the same time.
 *
 * Flags: gang, skew, probe. Counters: gang_on, gang_off, episodes, episode_kicks, kicks_saved, skew_stops,
 * probes, probes_kept.
 *
 * Problem: a vCPU that spins for one that does not run wastes its share; with phases shorter than
 * a slice nearly all of it (measured: 0.02 of fair-share speed at 100 us).
 * Method: when a CPU chooses a vCPU of such a VM, an *episode* of `episode_ns` begins: CPUs where
 * siblings wait are told to choose again, and until the episode ends its vCPUs go before those of
 * other such VMs. Whoever chooses next begins the next episode and thereby ends this one on all
 * CPUs at once. Holes are filled by others. VMs that block are compared by virtual time alone, in
 * an episode or not: they never wait for one.
 * Skew: siblings are apart by an episode at most; a vCPU that ran `skew_ns` more of it than a sibling
 * that waits gives way at its next tick to a waiter of another kind, even to one ahead of it by what
 * an episode may lead (POL_LEAD_NS; not to another such VM: seen, 2 CPUs, that costs some per cent and
 * wins nothing). Beyond that fair shares go before skew.
 * Which VMs (policy.h, pol_gang), by what its vCPUs did in a window of WINDOW_NS:
 *     blocks * 20 ms <= CPU time    together
 *     blocks * 10 ms >  CPU time    apart; between the two it stays as it is
 * The trial (mechanism `probe`): a VM that blocks is tried together for PROBE_WINDOWS after 1 s, 2 s, 4 s ...
 * 64 s: one that spins for a while before it blocks then hardly blocks any more, and stays. It fails when
 *     blocks / CPU time > half of what it was apart
 * Limits: slices end at ticks, so episodes are as precise as the tick where neither another episode nor a turn
 * (turn.bpf.h) ends them; VMs whose CPUs overlap only in part are co-scheduled as far as virtual times allow.
 */
#ifndef INSTEP_GANG_BPF_H
#define INSTEP_GANG_BPF_H

#include "gather.bpf.h"
#include "strict.bpf.h"

#define WINDOW_NS (48 * POL_MS)
#define PROBE_WINDOWS 3

static __always_inline bool in_episode(struct vm_state *v, u64 now)
{
	return v->gang && pol_before(now, v->episode_until);
}

/* Whether a CPU would choose a gang's vCPU with this virtual time rather than go on. */
static __always_inline bool would_choose(s32 cpu, u64 vtime)
{
	struct cpu_state *c = cpu_of(cpu);
	struct vm_state *runs;

	if (!c || !c->tid || c->vm == INSTEP_HOST)
		return true;
	runs = vm_of(c->vm);
	return !runs || runs->gang || !pol_before(runs->account.vtime, vtime);
}

/* Tells the CPUs where siblings wait to choose again, unless that would change nothing. */
SEPARATE int call_siblings(u32 vm, s32 self)
{
	u64 vtime = vm_vtime(vm);
	struct instep_vm_settings *s = vm_set_of(vm);
	u32 n;

	if (!s)
		return 0;
	n = s->nr_vcpus < INSTEP_MAX_VCPUS ? s->nr_vcpus : INSTEP_MAX_VCPUS;
	s32 k;
	bpf_for(k, 0, n) {
		struct slot_info *i = slot_of(s->first_slot + k);

		if (!i || i->state != SLOT_QUEUED || (s32)i->cpu == self)
			continue;
		if (!would_choose(i->cpu, vtime)) {
			count(INSTEP_C_KICK_SAVED);
			continue;
		}
		scx_bpf_kick_cpu(i->cpu, SCX_KICK_PREEMPT);
		count(INSTEP_C_EPISODE_KICK);
	}
	return 0;
}

/* A vCPU of a gang was chosen: its VM's episode begins unless it is under way. */
static __always_inline void begin_episode(u32 vm, s32 cpu, u64 now)
{
	struct vm_state *v = vm_of(vm);
	u64 until;

	if (!v || !v->gang || !on(INSTEP_M_GANG))
		return;
	until = v->episode_until;
	if (pol_before(now, until))
		return;
	if (__sync_val_compare_and_swap(&v->episode_until, until, now + SET.episode_ns) != until)
		return;
	count(INSTEP_C_EPISODE);
	if (is_strict(vm))
		hold_cpus(vm, cpu, now, now + SET.episode_ns);
	call_siblings(vm, cpu);
}

static __always_inline void set_gang(struct vm_state *v, u32 vm, bool gang, u64 now)
{
	if (!!v->gang == gang)
		return;
	v->gang = gang;
	v->episode_until = now;
	count(gang ? INSTEP_C_GANG_ON : INSTEP_C_GANG_OFF);
	emit(now, gang ? INSTEP_E_GANG_ON : INSTEP_E_GANG_OFF, vm, v->blocks, v->ran_ns);
}

/* Begins, goes on with or ends a trial; whether the VM is to run together. */
static __always_inline bool probe(struct vm_state *v, u32 vm, bool verdict, u64 now)
{
	if (v->probing) {
		v->probing--;
		if (pol_probe_fails(v->apart_ran, v->apart_blocks, v->ran_ns, v->blocks)) {
			v->probing = 0;
			verdict = false;
		}
		if (v->probing)
			return true;
		if (verdict) {
			count(INSTEP_C_PROBE_KEPT);
			emit(now, INSTEP_E_PROBE_KEPT, vm, v->blocks, v->ran_ns);
			v->probe_gap = 0;
			v->spins = 1;
		} else {
			v->probe_gap = pol_probe_next(v->probe_gap);
			v->probe_at = now + v->probe_gap;
		}
		return verdict;
	}
	if (verdict || !v->ran_ns)
		return verdict;
	if (!v->probe_at)
		v->probe_at = now + POL_PROBE_FIRST_NS;
	if (pol_before(now, v->probe_at))
		return false;
	v->probing = PROBE_WINDOWS;
	v->apart_ran = v->ran_ns;
	v->apart_blocks = v->blocks;
	count(INSTEP_C_PROBE);
	emit(now, INSTEP_E_PROBE, vm, v->blocks, v->ran_ns);
	return true;
}

/* Looks at a VM's evidence at the end of each window. */
SEPARATE int weigh(u32 vm, u64 now)
{
	struct vm_state *v = vm_of(vm);
	struct instep_vm_settings *s = vm_set_of(vm);
	bool gang, tried;
	u64 begun, wall;

	if (!v || !s)
		return 0;
	begun = v->window_at;
	wall = pol_since(begun, now);
	/* A VM that runs little is given more time to show what it does. */
	if (wall < WINDOW_NS || (v->ran_ns < POL_EVIDENCE_NS && wall < 10 * WINDOW_NS))
		return 0;
	struct pol_evidence e = { .ran_ns = v->ran_ns, .blocks = v->blocks, .nr_vcpus = s->nr_vcpus };

	tried = v->probing;
	/* Another CPU's tick may be at it, too. */
	if (__sync_val_compare_and_swap(&v->window_at, begun, now) != begun || !begun)
		return 0;
	gang = on(INSTEP_M_GANG) && pol_gang(s->cosched, v->gang, e);
	if (on(INSTEP_M_GANG) && on(INSTEP_M_PROBE) && s->cosched == INSTEP_COSCHED_AUTO &&
	    s->nr_vcpus > 1)
		gang = probe(v, vm, gang, now);
	set_gang(v, vm, gang, now);
	if (!gang)
		v->spins = 0;
	else if (v->spins || s->cosched != INSTEP_COSCHED_AUTO)
		INSTEP_STATE->spinner_at = now;
	else
		INSTEP_STATE->gang_at = now;
	/* Windows of a trial together say nothing of gathering, which goes on if the trial fails. */
	if (!v->probing && (gang || !tried))
		weigh_gathering(v, vm, wall, now);
	v->ran_ns = 0;
	v->blocks = 0;
	v->sibling_wakes = 0;
	v->idle_wakes = 0;
	return 0;
}

/* Whether a running vCPU is further ahead in this episode than a waiting sibling may see. */
SEPARATE int ahead(u32 vm, u32 slot)
{
	struct vm_state *v = vm_of(vm);
	struct instep_vm_settings *s = vm_set_of(vm);
	struct slot_info *own = slot_of(slot);
	bool found = false;
	u32 n;
	s32 k;

	if (!on(INSTEP_M_SKEW) || !v || !s || !own || !v->gang || own->episode != v->episode_until)
		return false;
	n = s->nr_vcpus < INSTEP_MAX_VCPUS ? s->nr_vcpus : INSTEP_MAX_VCPUS;
	bpf_for(k, 0, n) {
		struct slot_info *i = slot_of(s->first_slot + k);
		u64 ran;

		if (!i || i->state != SLOT_QUEUED)
			continue;
		ran = i->episode == v->episode_until ? i->ran_ns : 0;
		if (own->ran_ns > ran + SET.skew_ns) {
			found = true;
			break;
		}
	}
	return found;
}

#endif
