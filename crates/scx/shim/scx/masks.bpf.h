/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Masks of CPUs: what BPF's kfuncs answer of them is arithmetic on the words that common.bpf.h
 * declares, and is done here. Included there, after what it needs.
 */
#ifndef SHIM_SCX_MASKS_H
#define SHIM_SCX_MASKS_H

static __always_inline bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *mask)
{
	return cpu < SHIM_MAX_CPUS && (mask->bits[cpu / 64] >> (cpu % 64) & 1);
}

#define SHIM_WORDS ((HERE->nr_cpus + 63) / 64)

/* The first CPU of a & (b or all); the number of CPUs when there is none. */
static __always_inline u32 shim_first(const struct cpumask *a, const struct cpumask *b)
{
	for (u32 at = 0; at < SHIM_WORDS; at++) {
		u64 word = a->bits[at] & (b ? b->bits[at] : ~0ull);

		if (word)
			return at * 64 + __builtin_ctzll(word);
	}
	return HERE->nr_cpus;
}

static __always_inline u32 bpf_cpumask_first(const struct cpumask *mask)
{
	return shim_first(mask, NULL);
}

static __always_inline u32 bpf_cpumask_first_and(const struct cpumask *a, const struct cpumask *b)
{
	return shim_first(a, b);
}

static __always_inline bool bpf_cpumask_empty(const struct cpumask *mask)
{
	return shim_first(mask, NULL) >= HERE->nr_cpus;
}

static __always_inline bool bpf_cpumask_intersects(const struct cpumask *a, const struct cpumask *b)
{
	return shim_first(a, b) < HERE->nr_cpus;
}

static __always_inline bool bpf_cpumask_subset(const struct cpumask *a, const struct cpumask *b)
{
	for (u32 at = 0; at < SHIM_WORDS; at++)
		if (a->bits[at] & ~b->bits[at])
			return false;
	return true;
}

static __always_inline bool bpf_cpumask_equal(const struct cpumask *a, const struct cpumask *b)
{
	return bpf_cpumask_subset(a, b) && bpf_cpumask_subset(b, a);
}

static __always_inline u32 bpf_cpumask_weight(const struct cpumask *mask)
{
	u32 weight = 0;

	for (u32 at = 0; at < SHIM_WORDS; at++)
		weight += __builtin_popcountll(mask->bits[at]);
	return weight;
}

static __always_inline u32 bpf_cpumask_any_distribute(const struct cpumask *mask)
{
	return shim_any(KERNEL, mask, NULL);
}

static __always_inline u32 bpf_cpumask_any_and_distribute(const struct cpumask *a, const struct cpumask *b)
{
	return shim_any(KERNEL, a, b);
}

static __always_inline s32 scx_bpf_pick_any_cpu(const struct cpumask *allowed, u64 flags)
{
	s32 cpu = scx_bpf_pick_idle_cpu(allowed, flags);

	if (cpu >= 0)
		return cpu;
	cpu = bpf_cpumask_any_distribute(allowed);
	return cpu < (s32)HERE->nr_cpus ? cpu : -EBUSY;
}

#endif
