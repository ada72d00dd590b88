/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * For how long vCPUs wait for a CPU: a histogram for each vCPU.
 *
 * Flag: none (it only reports). Counters: none. A wait begins when a vCPU can run, because it woke up or lost its CPU, and ends
 * when it runs. Time for which a CPU limit holds it is no wait. Only the CPU on which the vCPU runs next writes the vCPU's
 * histogram, so that no two CPUs write the same one; user space adds up those of a VM (crates/kernel, loaded/waits.rs).
 */
#ifndef INSTEP_WAITS_BPF_H
#define INSTEP_WAITS_BPF_H

#include "state.bpf.h"

SEPARATE int count_wait(u32 slot, u64 waited_ns)
{
	struct slot_info *i = slot_of(slot);
	u64 us = waited_ns / 1000;
	u32 bits = us ? pol_highest(us) + 1 : 0;

	if (!i)
		return 0;
	i->wait_counts[within(bits < INSTEP_WAITS ? bits : INSTEP_WAITS - 1, INSTEP_WAITS)]++;
	if (us > i->longest_wait_us)
		i->longest_wait_us = us < 0xffffffffu ? us : 0xffffffffu;
	return 0;
}

/* A thread runs: of a vCPU that waited it is counted for how long. */
static __always_inline void note_wait(struct task_state *t, u64 now)
{
	if (t->slot != INSTEP_NO_SLOT && t->standing == STANDS_QUEUED)
		count_wait(t->slot, pol_since(t->waits_since, now));
}

#endif
