/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the scheduler knows, for the report that the kernel writes when it throws a scheduler out or SysRq-D is pressed.
 *
 * Flag: none (it only reports). Counters: none. A line for each domain, each VM, each CPU, and each thread that waits.
 * Virtual times are given as their distance from the domain's clock in nanoseconds; negative is behind. The native build
 * has none of it.
 */
#ifndef INSTEP_DUMP_BPF_H
#define INSTEP_DUMP_BPF_H
#ifdef __bpf__

#include "higher.bpf.h"

static __always_inline void dump_account(struct account *a, u64 clock)
{
	scx_bpf_dump("    wants %u share %u of 1024ths, runs %u waits %u held %d, lag %lld ns\n", a->demand, a->share,
		     a->nr_running, a->nr_queued, a->nr_held, (s64)(a->vtime - clock));
}

static __always_inline void dump_vm(u32 vm, struct vm_state *v, struct domain_state *d)
{
	scx_bpf_dump("  VM %u: seats %u in %u domains, first set %llx waiting %llx, strays %u refused %u\n", vm, v->seats,
		     v->nr_parts, v->parts[0].set, v->parts[0].waiting, v->strays, v->refusals);
	dump_account(&v->account, d->clock);
}

void BPF_STRUCT_OPS(instep_dump, struct scx_dump_ctx *info)
{
	u32 k, n = SET.nr_domains, vms = INSTEP_STATE->nr_vms;

	bpf_for(k, 0, n < INSTEP_MAX_DOMAINS ? n : INSTEP_MAX_DOMAINS) {
		struct domain_state *d = domain_of(k);

		if (!d)
			continue;
		scx_bpf_dump("domain %u: lanes %llx idle %llx taken %llx lost %llx pending %llx\n", k, d->lanes, d->idle,
			     d->taken, d->lost, d->pending);
		scx_bpf_dump("  slot %u slotted %u armed %u gangs %u stray %u clock %llu\n", d->slot, d->slotted, d->armed,
			     d->nr_gangs, d->stray, d->clock);
		dump_account(&d->host, d->clock);
	}
	bpf_for(k, 1, vms < INSTEP_MAX_VMS ? vms : INSTEP_MAX_VMS) {
		struct vm_state *v = vm_of(k);
		struct domain_state *d = v && v->joined ? domain_of(v->account.domain) : NULL;

		if (d)
			dump_vm(k, v, d);
	}
}

void BPF_STRUCT_OPS(instep_dump_cpu, struct scx_dump_ctx *info, s32 cpu, bool idle)
{
	struct cpu_state *c = cpu_of(cpu);

	if (c)
		scx_bpf_dump("domain %u lane %u: owner %d, runs VM %u slot %d, hole %u, taken since %llu\n", c->domain,
			     c->lane, c->owner, c->vm, c->slot, c->hole, c->taken_at);
}

void BPF_STRUCT_OPS(instep_dump_task, struct scx_dump_ctx *info, struct task_struct *p)
{
	struct task_state *t = task_of(p);
	struct slot_info *i = t ? slot_of(t->slot) : NULL;

	if (t)
		scx_bpf_dump("VM %u slot %d, stands %u, on seat %d, limit %llu, held %u since %llu\n", t->vm, t->slot,
			     t->standing, t->seat, t->limit, t->held, t->held_at);
	if (i)
		scx_bpf_dump("seat %d, waits %u, stray %u, in gang %u\n", i->seat, i->waits, i->stray, i->gang);
}

#endif
#endif
