/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What kernels and their verifiers need, from Linux 6.12 to 7.3, where the headers of scx_utils do not provide for it.
 *
 * Flag: none. Counters: none.
 */
#ifndef INSTEP_COMPAT_BPF_H
#define INSTEP_COMPAT_BPF_H

/* The verifier checks such a function once for all callers; it takes scalars, pointers to plain memory and tasks (__arg_trusted). */
#define SEPARATE __noinline

#ifndef E2BIG
#define E2BIG 7 /* what a map of BPF answers that is full */
#endif

#ifdef __bpf__
/*
 * Linux 6.18's verifier ends with an error of its own ("backtracking call unexpected regs") where registers that nobody reads
 * differ between two rounds of a loop.
 */
#define bpf_iter_num_next(it) \
	({ asm volatile("r2 = 0; r3 = 0; r4 = 0; r5 = 0" ::: "r2", "r3", "r4", "r5"); (bpf_iter_num_next)(it); })
#endif

#ifdef __bpf__
struct task_struct___rcu {
	int rcu_read_lock_nesting;
} __attribute__((preserve_access_index));
#endif

/*
 * Whether a thread was preempted between rcu_read_lock and rcu_read_unlock (CONFIG_PREEMPT_RCU). Not for the one that runs: programs
 * are such sections themselves.
 */
static __always_inline bool reads_under_rcu(struct task_struct *task)
{
#ifdef __bpf__
	struct task_struct___rcu *t = (void *)task;

	return bpf_core_field_exists(t->rcu_read_lock_nesting) && BPF_CORE_READ(t, rcu_read_lock_nesting) > 0;
#else
	return task->rcu_read_lock_nesting > 0;
#endif
}

/* Whether a thread is on a CPU. The field has a byte since Linux 7.2, and an int before: a plain read fits one kernel only. */
static __always_inline bool is_on_cpu(struct task_struct *task)
{
#ifdef __bpf__
	return BPF_CORE_READ_BITFIELD(task, on_cpu); /* which has a variable p of its own */
#else
	return task->on_cpu;
#endif
}

#endif
