/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which CPUs a VM's vCPUs are on, counted per VM and CPU while one runs or waits there.
 *
 * Problem: whether a sibling is on a CPU is asked at every wake-up, and must not need a look at all
 * siblings.
 * Method: a vCPU arrives where it is queued, dispatched or taken over, and leaves when it sleeps or
 * stops; arriving and leaving twice changes nothing.
 *     a sibling is on a CPU    where on_cpu[VM][CPU] > 0
 * Limits: counts are of this moment; two siblings that arrive at the same time may meet.
 */
#ifndef INSTEP_WHERE_BPF_H
#define INSTEP_WHERE_BPF_H

#include "state.bpf.h"

/* A vCPU is on `cpu` from now on. */
static __noinline void arrive(struct task_state *t, s32 cpu)
{
	struct vm_state *v;
	struct slot_info *i;

	if (!t || t->placed || t->slot == INSTEP_NO_SLOT)
		return;
	v = vm_of(t->vm);
	i = slot_of(t->slot);
	if (!v || !i || (u32)cpu >= INSTEP_MAX_CPUS)
		return;
	t->placed = 1;
	t->placed_in = v->generation;
	i->cpu = cpu;
	__sync_fetch_and_add(&v->on_cpu[within(cpu, INSTEP_MAX_CPUS)], 1);
}

/* Whether a thread came to a CPU as a vCPU of this VM: another may have its entry and slots meanwhile. */
static __always_inline bool is_vcpu_of(struct task_state *t, struct vm_state *v)
{
	return t->placed_in == v->generation;
}

/* It is on none. */
static __noinline void leave(struct task_state *t)
{
	struct vm_state *v;
	struct slot_info *i;
	u32 cpu;

	if (!t || !t->placed)
		return;
	v = vm_of(t->vm);
	i = slot_of(t->slot);
	if (!v || !i)
		return;
	t->placed = 0;
	if (!is_vcpu_of(t, v))
		return;
	cpu = within(i->cpu, INSTEP_MAX_CPUS);
	if (v->on_cpu[cpu])
		__sync_fetch_and_sub(&v->on_cpu[cpu], 1);
}

/* How many of the VM's vCPUs run or wait on a CPU. */
static __always_inline u32 siblings_on(struct task_state *t, s32 cpu)
{
	struct vm_state *v = vm_of(t->vm);

	if (t->slot == INSTEP_NO_SLOT || !v || (u32)cpu >= INSTEP_MAX_CPUS)
		return 0;
	return v->on_cpu[within(cpu, INSTEP_MAX_CPUS)];
}

static __always_inline bool sibling_on(struct task_state *t, s32 cpu)
{
	return siblings_on(t, cpu) > 0;
}

#endif
