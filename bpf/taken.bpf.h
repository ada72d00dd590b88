/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPUs that a higher scheduling class has taken: real-time and deadline threads.
 *
 * Flag: rescue. Counters: rescued.
 *
 * Problem: what waits for such a CPU waits for as long as that class pleases, while its siblings on
 * other CPUs keep the VM's virtual time moving, so that nobody finds it behind. And what lies in
 * the CPU's local queue no ops.dispatch sees.
 * Method: the switch to a thread of a higher class marks the CPU and puts what lies in its local
 * queue in order again; nobody queues behind a marked CPU who may run elsewhere; what waited there
 * already is fetched by the other CPUs in turn, once the CPU has been marked for a slice. A running
 * thread that becomes a real-time thread is seen by no switch: where threads wait and none of this
 * class has run for two slices, the CPU counts as taken, too.
 *     taken     since the switch to a real-time or deadline thread, or no thread of this class for 2 slices
 *     fetched   taken for longer than a slice
 * Kernel threads of one CPU (migration, timers) have real-time priority, too, but are gone at once:
 * what they interrupt stays.
 * Limits: a vCPU that is interrupted loses its place in the queue, however short the interruption.
 * Threads bound to that CPU wait. From Linux 6.19 on the kernel keeps 5 % of a CPU for this
 * class (its deadline server); before that nothing does, and the watchdog ends the scheduler.
 *
 * The tracepoint is what the kernel names in place of ops.cpu_release, deprecated since Linux 6.19;
 * before, a local queue can be put in order from ops.cpu_release only. The loader keeps the one
 * that the kernel wants (crates/kernel, loaded.rs).
 */
#ifndef INSTEP_TAKEN_BPF_H
#define INSTEP_TAKEN_BPF_H

#include "place.bpf.h"

/* MAX_RT_PRIO (include/linux/sched/prio.h): below it are real-time, deadline and stop threads. */
#define BELOW_RT_PRIO 100

SEC("tp_btf/sched_switch")
int BPF_PROG(instep_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct cpu_state *c = cpu_of(bpf_get_smp_processor_id());

	if (!c)
		return 0;
	if (next->prio < BELOW_RT_PRIO && c->brief_until)
		let_go(c, bpf_get_smp_processor_id(), scx_bpf_now(), 0);
	if (next->prio >= BELOW_RT_PRIO) {
		if (c->taken_at)
			c->taken_at = 0;
		return 0;
	}
	/* What such a kernel thread interrupts may be what took the CPU. */
	if (c->taken_at || per_cpu_kthread(next))
		return 0;
	c->taken_at = scx_bpf_now();
	scx_bpf_reenqueue_local_from_anywhere();
	return 0;
}

void BPF_STRUCT_OPS(instep_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	if (!__COMPAT_scx_bpf_reenqueue_local_from_anywhere())
		scx_bpf_reenqueue_local();
}

/* Whether a CPU has been taken for a slice; marks one whose taking no switch showed. */
static __always_inline bool long_taken(struct cpu_state *o, s32 cpu, u64 now)
{
	if (o->taken_at)
		return pol_before(o->taken_at + SET.slice_ns, now);
	if (o->tid || !pol_before(o->left_at + 2 * SET.slice_ns, now) || !waiting_for(cpu))
		return false;
	o->taken_at = now;
	/* From Linux 7.1 on, of another CPU, too. */
	if (__COMPAT_has_generic_reenq())
		scx_bpf_dsq_reenq___compat(SCX_DSQ_LOCAL_ON | cpu, 0);
	return true;
}

/* Takes over what waits for a CPU that has been taken for a slice: one thread, one CPU in turn. */
SEPARATE int rescue(s32 cpu, u64 now)
{
	u32 n = SET.nr_cpus;
	struct cpu_state *o;
	s32 other;

	if (n < 2 || n > INSTEP_MAX_CPUS)
		return false;
	other = (cpu + 1 + (now >> 20) % (n - 1)) % n;
	o = cpu_of(other);
	if (!o || o->node < 0 || !long_taken(o, other, now))
		return false;
	if (!take_best(other, cpu, now))
		return false;
	count(INSTEP_C_RESCUED);
	return true;
}

#endif
