/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How fast each CPU should run, for the governor schedutil.
 *
 * Flag: none (it chooses no thread). Counters: none. Under a sched_ext scheduler schedutil follows what the scheduler asks for each
 * CPU, and that is the highest frequency until it asks for something else (Linux 6.12, kernel/sched/ext.c and
 * cpufreq_schedutil.c). Here it is the part of the time in which the CPU was busy, over some 32 ms, as the default scheduler does it:
 *
 *     use += (now - use) * elapsed / 32 ms,   `now` 1024 while it is busy, 0 while it idles
 *
 * It is computed when the CPU begins to idle, ceases to, and at its ticks, and told when it differs by a sixteenth. The kernel adds a
 * quarter and keeps the bounds of uclamp. Limits: a CPU that idles is told of nothing, so that where CPUs share a frequency one
 * that idles after much work asks for as much until it runs again.
 */
#ifndef INSTEP_FREQUENCY_BPF_H
#define INSTEP_FREQUENCY_BPF_H

#include "state.bpf.h"

#define USE_WINDOW (32 * POL_MS)
#define USE_STEP 64

/* A CPU was busy, or idled, since this was last called for it. */
SEPARATE int note_use(s32 cpu, u64 now, u32 busy)
{
	struct cpu_state *c = cpu_of(cpu);
	u64 part;
	u32 use;

	if (!c)
		return 0;
	part = pol_min(pol_since(c->used_at, now), USE_WINDOW);
	use = busy ? c->use + (1024 - c->use) * part / USE_WINDOW : c->use - c->use * part / USE_WINDOW;
	c->use = use;
	c->used_at = now;
	if (use + USE_STEP > c->asked && use < c->asked + USE_STEP)
		return 0;
	c->asked = use;
	scx_bpf_cpuperf_set(cpu, use);
	return 0;
}

#endif
