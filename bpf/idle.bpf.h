/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Idle CPUs: which one a thread that wakes up takes, and whole cores before halves.
 *
 * Flags: cores, home. Counters: idle_core, idle_cpu, idle_remote, cores_left.
 *
 * Problem: two busy threads on one core slow each other (systems.md, 1), and a thread that never sleeps stays beside
 * the other although a core is idle meanwhile.
 * Method: each domain has the set of its idle CPUs. A thread takes, in its domain:
 *     the CPU where it was, if its whole core is idle; a wholly idle core; the CPU where it was; any idle CPU;
 * each time one of the last-level cache where it was, if there is one; and then the same in the other domains, those of
 * the same node first. A VM is in a domain of its home node, so it is at home as long as there is an idle CPU. A vCPU that
 * is at home there, has no seat and runs for less than a slice at a time goes to another node only if no CPU of its domain
 * became idle or busy for SPILL_NS (queue.bpf.h, may_spill).
 *     A vCPU takes a wholly idle core of another domain before half of one in its own: where its VM has no home node one
 * of any domain, else one of that node.
 *     A vCPU that never sleeps is looked at when its slice ends and nothing waits: where another thread runs on its
 * core and a core of the domain is wholly idle, it is queued again and goes there.
 * Limits: "core" is what user space numbers as one; modules that share only decoders are placement's. Of cores with more
 * than two threads pairs count.
 */
#ifndef INSTEP_IDLE_BPF_H
#define INSTEP_IDLE_BPF_H

#include "slot.bpf.h"
#include "frequency.bpf.h"

/* The first lanes of cores of which all threads are idle. */
static __always_inline u64 idle_cores(struct domain_state *d)
{
	u64 idle = d->idle;

	return idle & (d->alone | (idle >> 1 & d->first));
}

/* A CPU of this set that the thread may use; NO_CPU if there is none. */
static __noinline s32 first_allowed(struct task_struct *p, u32 domain, u64 set)
{
	struct domain_state *d = domain_of(domain);

	if (!d)
		return NO_CPU;
	bpf_repeat(INSTEP_LANES) {
		u32 lane;
		s32 cpu;

		if (!set)
			break;
		lane = pol_lowest(set);
		set &= set - 1;
		cpu = cpu_at(d, lane);
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			return cpu;
	}
	return NO_CPU;
}

/* The same, of the lanes `near` first. */
static __always_inline s32 first_near(struct task_struct *p, u32 domain, u64 set, u64 near)
{
	s32 cpu = set & near ? first_allowed(p, domain, set & near) : NO_CPU;

	return cpu < 0 && (set & ~near) ? first_allowed(p, domain, set & ~near) : cpu;
}

/* The lanes of this domain that share a last-level cache with a CPU. */
static __always_inline u64 lanes_near(u32 domain, s32 cpu)
{
	struct cpu_state *c = cpu_of(cpu);

	return c && c->domain == domain ? c->cache : 0;
}

static __always_inline bool claim(struct domain_state *d, s32 cpu)
{
	struct cpu_state *c = cpu_of(cpu);

	if (!c)
		return false;
	__sync_fetch_and_and(&d->idle, ~pol_lane(c->lane));
	return scx_bpf_test_and_clear_cpu_idle(cpu);
}

enum claim_rule {
	CLAIM_WHOLE = 1, /* only of cores that are wholly idle */
	CLAIM_HOME = 2,	 /* only of domains of the same node */
};

/* Claims an idle CPU of one domain. */
static __noinline s32 claim_in(struct task_struct *p, u32 domain, s32 prev, u32 rule)
{
	struct domain_state *d = domain_of(domain);
	struct cpu_state *c = cpu_of(prev);
	u64 own = 0, near = lanes_near(domain, prev), cores;
	s32 cpu;

	if (!d || !d->idle)
		return NO_CPU;
	if (c && c->domain == domain && may_use(p, prev))
		own = pol_lane(c->lane) & d->idle;
	/* One that is idle may be another thread's meanwhile: twice is enough, the next CPU that goes idle looks again. */
	bpf_repeat(2) {
		cores = on(INSTEP_M_CORES) ? idle_cores(d) : 0;
		if (own && c && (!on(INSTEP_M_CORES) || (c->core & d->idle) == c->core) && claim(d, prev)) {
			count(on(INSTEP_M_CORES) ? INSTEP_C_IDLE_CORE : INSTEP_C_IDLE_CPU);
			return prev;
		}
		cpu = cores ? first_near(p, domain, cores, near) : NO_CPU;
		if (cpu >= 0 && claim(d, cpu)) {
			count(INSTEP_C_IDLE_CORE);
			return cpu;
		}
		if (rule & CLAIM_WHOLE)
			return NO_CPU;
		if (own && claim(d, prev)) {
			count(INSTEP_C_IDLE_CPU);
			return prev;
		}
		own = 0;
		cpu = first_near(p, domain, d->idle, near);
		if (cpu >= 0 && claim(d, cpu)) {
			count(INSTEP_C_IDLE_CPU);
			return cpu;
		}
	}
	return NO_CPU;
}

/* Claims an idle CPU of the domains after this one. */
static __noinline s32 claim_elsewhere(struct task_struct *p, u32 own, s32 prev, u32 rule)
{
	struct domain_state *d = domain_of(own), *next;
	s32 cpu, k;

	if (!d)
		return NO_CPU;
	bpf_for(k, 0, d->nr_next) {
		u32 other = d->next[within(k, INSTEP_MAX_DOMAINS)];

		next = domain_of(other);
		if (!next || ((rule & CLAIM_HOME) && next->node != d->node))
			break;
		if (!(rule & CLAIM_WHOLE ? idle_cores(next) : next->idle))
			continue;
		cpu = claim_in(p, other, prev, rule);
		if (cpu >= 0) {
			count(INSTEP_C_IDLE_REMOTE);
			return cpu;
		}
	}
	return NO_CPU;
}

/* Whether a thread is to have a core of its own, and where such a one is looked for (enum claim_rule); 0 if not. */
static __always_inline u32 whole_core_rule(struct task_state *t)
{
	struct instep_vm_settings *s = vm_set_of(t->vm);

	if (!s || t->slot == INSTEP_NO_SLOT || !on(INSTEP_M_CORES))
		return 0;
	return CLAIM_WHOLE | (home_of(s) != INSTEP_NO_NODE ? CLAIM_HOME : 0);
}

/* Claims an idle CPU for a thread that wakes up; NO_CPU when there is none. */
static __noinline s32 pick_idle(struct task_struct *p, struct task_state *t, s32 prev, u32 own)
{
	struct domain_state *d = domain_of(own);
	bool stays;
	u32 rule;
	s32 cpu;

	if (!t || !d)
		return NO_CPU;
	/* While slots are planned a gang's vCPU belongs on its seat. */
	if (d->slotted && d->idle) {
		cpu = seat_cpu(t);
		if (cpu >= 0 && may_use(p, cpu) && claim(d, cpu)) {
			count(INSTEP_C_IDLE_CPU);
			return cpu;
		}
	}
	rule = idle_cores(d) || !d->nr_next ? 0 : whole_core_rule(t);
	cpu = rule ? claim_elsewhere(p, own, prev, rule) : NO_CPU;
	if (cpu < 0 && d->idle)
		cpu = claim_in(p, own, prev, 0);
	if (cpu >= 0 || !d->nr_next)
		return cpu;
	stays = waits_at_home(p, t, d->node) && seat_cpu(t) < 0 && !may_spill(d, own, scx_bpf_now());
	return claim_elsewhere(p, own, prev, stays ? CLAIM_HOME : 0);
}

/* Whether a vCPU that runs here, and that nothing delays, would better have a core of its own. */
static __always_inline bool wants_core(struct task_struct *p, struct task_state *t, struct cpu_state *c)
{
	struct domain_state *d = domain_of(c->domain);
	u64 others;

	if (!d || !on(INSTEP_M_CORES) || t->slot == INSTEP_NO_SLOT || is_bound(p))
		return false;
	others = c->core & ~pol_lane(c->lane);
	return others && (others & ~d->idle) && idle_cores(d);
}

/* Whether a vCPU that has a core for itself in another domain stays there until it finds one in its own. */
static __always_inline bool keeps_core(struct task_state *t, struct cpu_state *c, struct domain_state *own)
{
	struct domain_state *d = domain_of(c->domain);
	u32 rule = whole_core_rule(t);

	return rule && d && (!(rule & CLAIM_HOME) || own->node == d->node) &&
	       !(c->core & ~pol_lane(c->lane) & ~d->idle);
}

/* Whether a thread that runs here belongs to another domain, where a CPU is idle. */
static __always_inline bool may_go_home(struct task_struct *p, struct task_state *t, s32 cpu, struct cpu_state *c)
{
	u32 domain = domain_for(t, cpu);
	struct domain_state *d = domain_of(domain);
	u64 idle;

	if (!d || domain == c->domain || is_bound(p))
		return false;
	idle = keeps_core(t, c, d) ? idle_cores(d) : d->idle;
	return idle && first_allowed(p, domain, idle) >= 0;
}

void BPF_STRUCT_OPS(instep_update_idle, s32 cpu, bool idle)
{
	struct cpu_state *c = cpu_of(cpu);
	struct domain_state *d = c ? domain_of(c->domain) : NULL;

	if (!d)
		return;
	d->idle_at = scx_bpf_now();
	note_use(cpu, d->idle_at, idle);
	if (idle)
		__sync_fetch_and_or(&d->idle, pol_lane(c->lane));
	else
		__sync_fetch_and_and(&d->idle, ~pol_lane(c->lane));
}

#endif
