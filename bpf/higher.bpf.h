/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPUs that a higher scheduling class has taken: real-time and deadline threads.
 *
 * Flag: none (a thread must not wait for as long as that class pleases). Counters: none.
 *
 * Problem: what lies in the local queue of such a CPU no ops.dispatch sees, and a gang whose set has the CPU would be
 * torn in each of its slots.
 * Method: the switch to a thread of a higher class marks the CPU and puts what lies in its local queue in order again. So
 * does a thread that runs and becomes one: for it there is no switch, and it may never sleep.
 * No thread is sent to a marked CPU that may run elsewhere, and it is not free in any slot, so that a gang which has it
 * in its set is refused and moves. Waiting threads are in the queues of the domain, where other CPUs find them.
 *     Kernel threads of one CPU (migration, timers) have real-time priority, too, but are gone at once: the CPU is not
 * marked for them.
 * Limits: threads bound to that CPU wait. From Linux 6.19 on the kernel keeps 5 % of a CPU for this class (its deadline
 * server); before that nothing does, and the watchdog ends the scheduler.
 *
 * The tracepoint is what the kernel names in place of ops.cpu_release, deprecated since Linux 6.19; before, a local
 * queue can be put in order from ops.cpu_release only. The loader keeps the one that the kernel wants (crates/kernel,
 * loaded.rs).
 */
#ifndef INSTEP_HIGHER_BPF_H
#define INSTEP_HIGHER_BPF_H

#include "idle.bpf.h"

/* MAX_RT_PRIO (include/linux/sched/prio.h): below it are real-time, deadline and stop threads. */
#define BELOW_RT_PRIO 100

static __always_inline void mark_taken(struct cpu_state *c, u64 at)
{
	struct domain_state *d = domain_of(c->domain);

	c->taken_at = at;
	if (!d)
		return;
	if (at)
		__sync_fetch_and_or(&d->taken, pol_lane(c->lane));
	else
		__sync_fetch_and_and(&d->taken, ~pol_lane(c->lane));
}

SEC("tp_btf/sched_switch")
int BPF_PROG(instep_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct cpu_state *c = cpu_of(bpf_get_smp_processor_id());

	if (!c)
		return 0;
	if (next->prio >= BELOW_RT_PRIO) {
		if (c->taken_at)
			mark_taken(c, 0);
		return 0;
	}
	/* What such a kernel thread interrupts may be what took the CPU. */
	if (c->taken_at || is_per_cpu_kthread(next))
		return 0;
	mark_taken(c, scx_bpf_now());
	scx_bpf_reenqueue_local_from_anywhere();
	return 0;
}

/* A thread leaves this class. */
static __always_inline void leave_class(struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_of(cpu);

	if (!c || !is_on_cpu(p))
		return;
	mark_taken(c, scx_bpf_now());
	if (__COMPAT_has_generic_reenq())
		scx_bpf_dsq_reenq___compat(SCX_DSQ_LOCAL_ON | cpu, 0);
}

void BPF_STRUCT_OPS(instep_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	if (!__COMPAT_scx_bpf_reenqueue_local_from_anywhere())
		scx_bpf_reenqueue_local();
}

#endif
