/* SPDX-License-Identifier: GPL-2.0-only */
/* The functions of bpf/policy.h for tests/policy.rs: scalars and sets. Nothing else links this file. */
#include "policy.h"

bool policy_before(u64 a, u64 b)
{
	return pol_before(a, b);
}

u64 policy_since(u64 at, u64 now)
{
	return pol_since(at, now);
}

u64 policy_clamp(u64 value, u64 least, u64 most)
{
	return pol_clamp(value, least, most);
}

u32 policy_count(u64 set)
{
	return pol_count(set);
}

u32 policy_lowest(u64 set)
{
	return pol_lowest(set);
}

u32 policy_highest(u64 set)
{
	return pol_highest(set);
}

u32 policy_nth(u64 set, u32 n)
{
	return pol_nth(set, n);
}

u64 policy_pick(u64 set, u32 first, u32 count)
{
	return pol_pick(set, first, count);
}

u32 policy_rank_of_lane(u64 set, u32 lane)
{
	return pol_rank_of_lane(set, lane);
}

bool policy_crosses(u64 a, u64 b)
{
	return pol_crosses(a, b);
}

u32 policy_set_step(u32 size, u32 cpus)
{
	return pol_set_step(size, cpus);
}

u64 policy_charge(u64 ran, u32 share)
{
	return pol_charge(ran, share);
}

u64 policy_level(u64 cpus, u64 filled, u64 weight, u64 all)
{
	return pol_level(cpus, filled, weight, all);
}

u64 policy_claim(u32 weight, u64 level)
{
	return pol_claim(weight, level);
}

u32 policy_share(u32 most, u64 claim)
{
	return pol_share(most, claim);
}

u64 policy_key(u64 vtime, u64 own, u64 front, u64 bound)
{
	return pol_key(vtime, own, front, bound);
}

u64 policy_host_key(u64 vtime, u64 own, u64 mean, u64 bound, u32 threads, u32 share)
{
	return pol_host_key(vtime, own, mean, bound, threads, share);
}

u64 policy_shorten(u64 vtime, u64 most)
{
	return pol_shorten(vtime, most);
}

bool policy_hardly_blocks(bool before, u32 bound, u64 ran_ns, u32 blocks)
{
	return pol_hardly_blocks(before, bound, ran_ns, blocks);
}

u32 policy_trial_bound(u64 ran_ns, u32 blocks)
{
	return pol_trial_bound(ran_ns, blocks);
}

bool policy_wake_preempts(u64 wakes, u64 runs, u64 slack)
{
	return pol_wake_preempts(wakes, runs, slack);
}
