/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which VM a thread belongs to, and as which vCPU.
 *
 * Flag: none. Counters: none. User space writes the table of threads (crates/kernel, loaded.rs). A thread looks itself up when it
 * comes, and again when the table has another generation.
 */
#ifndef INSTEP_THREAD_BPF_H
#define INSTEP_THREAD_BPF_H

#include "state.bpf.h"

/* Whether an entry is of this thread: a thread id that was reused is told by its start time. */
static __always_inline bool is_of(struct instep_thread *entry, u64 start_boottime)
{
	return entry && entry->vm < INSTEP_MAX_VMS &&
	       entry->start_ticks == start_boottime / (10 * POL_MS);
}

/* Whether a thread may not use all CPUs of the host. One that is bound to isolated CPUs may use more than others do. */
static __always_inline bool is_narrow(struct task_struct *p)
{
	return (u32)p->nr_cpus_allowed < INSTEP_STATE->common || !bpf_cpumask_test_cpu(INSTEP_STATE->ordinary, p->cpus_ptr);
}

/*
 * The thread's record, brought up to date with the table of threads (`start_boottime`, task_struct
 * since Linux 5.5). A thread that the table does not have yet is of the VM whose process it
 * belongs to: else a VM that starts many at once would compete with the agent that is to tell of
 * them (seen: 511 threads, and no cycle came to its end).
 */
static __noinline void look_up_thread(struct task_struct *p, struct task_state *t)
{
	struct instep_thread *entry = thread_of(p->pid);
	struct slot_info *i;

	t->generation = SET.generation;
	t->narrow = is_narrow(p);
	t->vm = INSTEP_HOST;
	t->slot = INSTEP_NO_SLOT;
	if (is_of(entry, p->start_boottime)) {
		t->vm = entry->vm;
		t->slot = entry->slot;
		i = slot_of(t->slot);
		if (i) {
			i->noted = 0;
		}
		return;
	}
	if (p->pid == p->tgid)
		return;
	entry = thread_of(p->tgid);
	if (is_of(entry, p->group_leader->start_boottime))
		t->vm = entry->vm;
}

#endif
