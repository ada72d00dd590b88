/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A thread that waits for a CPU: its place in the queue, since when it waits, and who counts it.
 *
 * Flag: none (who cannot run waits). Counters: queued.
 *
 * Problem: a queue is ordered once, when a thread comes; CPUs, VMs and vCPU slots want to know who waits
 * without a look at queues.
 * Method: the place is the VM's virtual time, behind siblings of this CPU that when its turn will come:
 *     key   = virtual time + (siblings there - 1) * siblings running * slice * 100 / weight
 *     since = when it came; if it was torn away at once or had no whole turn, since when it waited before
 * Counts go up before the kernel has the thread in a queue and down when it runs or is taken out, so none that
 * waits is overlooked.
 * Limits: keys grow stale (queue.bpf.h ranks anew); a thread that was taken from a queue and does not run yet is
 * still counted on kernels that do not tell.
 */
#ifndef INSTEP_WAITING_BPF_H
#define INSTEP_WAITING_BPF_H

#include "account.bpf.h"

/* How many wait for a CPU, nearly, without asking the kernel: for CPUs that look at many others. */
static __always_inline u32 waiting_near(s32 cpu)
{
	struct cpu_state *c = cpu_of(cpu);

	return c ? c->waiting : 0;
}

/* A thread is about to be queued for a CPU, and is counted there until it runs or is taken out. */
static __always_inline void count_waiting(struct task_state *t, struct cpu_state *c, s32 cpu)
{
	t->waits_on = cpu + 1;
	__sync_fetch_and_add(&c->waiting, 1);
}

static __always_inline void count_no_longer(struct task_state *t)
{
	struct cpu_state *c = cpu_of(t->waits_on - 1);

	if (!t->waits_on || !c)
		return;
	t->waits_on = 0;
	__sync_fetch_and_sub(&c->waiting, 1);
}

/*
 * A thread's place in a queue. Behind siblings that run or wait on this CPU it is its VM's virtual time
 * when its turn will come, or the many threads of one VM would lie before those of others, whose
 * keys are of later (seen: 200 vCPUs on two CPUs left a VM of two a tenth of its share).
 */
static __always_inline u64 key_of(struct task_state *t, s32 cpu)
{
	struct vm_state *v = vm_of(t->vm);
	struct instep_vm_settings *s = vm_set_of(t->vm);
	u64 siblings, running;

	if (t->vm == INSTEP_HOST || !on(INSTEP_M_SHARES) || !v || !s)
		return t->vtime;
	siblings = v->on_cpu[within(cpu, INSTEP_MAX_CPUS)];
	if (t->slot == INSTEP_NO_SLOT || siblings < 2)
		return v->account.vtime;
	running = v->nr_running > 1 ? v->nr_running : 1;
	return v->account.vtime + (siblings - 1) * running * pol_cost(SET.slice_ns, s->weight);
}

/* A thread is to wait: one that slept had what it wanted, one that waits already goes on to. */
static __always_inline void begins_to_wait(struct task_state *t, u64 enq_flags, u64 now)
{
	u64 ran = pol_since(t->came_at, now);

	if (enq_flags & SCX_ENQ_WAKEUP) {
		t->queued_at = now;
	} else if (!t->queued_at) {
		t->turn_ran += ran;
		t->queued_at = pol_waits_since(t->waited_at, t->came_at, ran, t->turn_ran,
					       SET.slice_ns / 2);
	}
	if (t->queued_at != t->waited_at)
		t->turn_ran = 0;
}

static __always_inline void now_queued(struct task_state *t, s32 cpu, u64 now)
{
	struct slot_info *i = slot_of(t->slot);
	struct vm_state *v = vm_of(t->vm);
	struct cpu_state *c = cpu_of(cpu);

	count(INSTEP_C_QUEUED);
	if (c)
		count_waiting(t, c, cpu);
	if (!i || !v)
		return;
	i->cpu = cpu;
	i->state = SLOT_QUEUED;
	i->queued_at = now;
	v->account.waited = 1;
	measure(v, now);
	__sync_fetch_and_add(&v->nr_queued, 1);
}

static __always_inline void no_longer_queued(struct task_state *t)
{
	struct slot_info *i = slot_of(t->slot);
	struct vm_state *v = vm_of(t->vm);

	count_no_longer(t);
	if (!i || !v || i->state != SLOT_QUEUED || !is_vcpu_of(t, v))
		return;
	i->state = SLOT_BLOCKED;
	measure(v, scx_bpf_now());
	if (v->nr_queued)
		__sync_fetch_and_sub(&v->nr_queued, 1);
}

#endif
