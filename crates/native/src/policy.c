/* SPDX-License-Identifier: GPL-2.0-only */
/* Functions of bpf/policy.h for callers in other languages: scalars and ranks. */
#include "policy.h"

u64 native_cost(u64 ran, u32 weight)
{
	return pol_cost(ran, weight);
}

u64 native_clamp(u64 vtime, u64 cpu_vtime, u64 debt)
{
	return pol_clamp(vtime, cpu_vtime, debt);
}

u32 native_roll(u64 *vtime, u64 *mark, u64 *period_at, u32 *waited, u64 now, u64 period, u64 host)
{
	struct pol_account a = { .vtime = *vtime, .mark = *mark, .period_at = *period_at,
				 .waited = *waited };
	enum pol_rolled rolled = pol_roll(&a, now, period, host);

	*vtime = a.vtime;
	*mark = a.mark;
	*period_at = a.period_at;
	*waited = a.waited;
	return rolled;
}

u64 native_host_rank(u64 behind, u64 group, u64 cpu_vtime, u64 light, u64 bound)
{
	return pol_host_rank(behind, group, cpu_vtime, light, bound);
}

bool native_gang(u32 cosched, bool now, u64 ran_ns, u32 blocks, u32 nr_vcpus)
{
	struct pol_evidence e = { .ran_ns = ran_ns, .blocks = blocks, .nr_vcpus = nr_vcpus };

	return pol_gang(cosched, now, e);
}

bool native_gang_before(struct pol_rank a, struct pol_rank b)
{
	return pol_gang_before(a, b);
}

bool native_tick_preempts(struct pol_rank waiter, struct pol_rank runs)
{
	return pol_tick_preempts(waiter, runs);
}

bool native_goes_on(struct pol_rank runs, struct pol_rank waiter)
{
	return pol_goes_on(runs, waiter);
}

bool native_skew_stops(struct pol_rank runs, struct pol_rank waiter)
{
	return pol_skew_stops(runs, waiter);
}

bool native_wake_preempts(struct pol_rank wakes, struct pol_rank runs, u64 slack)
{
	return pol_wake_preempts(wakes, runs, slack);
}

u64 native_slice(bool episode, u64 now, u64 until, u64 slice, u32 siblings)
{
	struct pol_rank rank = { .gang = true, .episode = episode };

	return pol_slice(rank, now, until, slice, siblings);
}

u64 native_turn(u64 episode, u64 slice)
{
	return pol_turn(episode, slice);
}

bool native_held_up(u64 waited, u32 all_vcpus, u32 cpus, u64 slice, u32 ready)
{
	return pol_held_up(waited, all_vcpus, cpus, slice, ready);
}

bool native_may_boost(u64 vtime, u64 host_vtime)
{
	return pol_may_boost(vtime, host_vtime);
}

bool native_may_gather(u64 ran, u64 wall, u64 wakes, u64 idle, bool gathered)
{
	struct pol_handover h = { .ran_ns = ran, .wall_ns = wall, .wakes = wakes, .idle = idle };

	return pol_may_gather(h, gathered);
}

bool native_gather_pays(u64 apart_ran, u64 apart_wall, u64 apart_wakes, u64 ran, u64 wall, u64 wakes,
			u32 gain)
{
	struct pol_handover apart = { .ran_ns = apart_ran, .wall_ns = apart_wall,
				      .wakes = apart_wakes };
	struct pol_handover gathered = { .ran_ns = ran, .wall_ns = wall, .wakes = wakes };

	return pol_gather_pays(apart, gathered, gain);
}

bool native_may_use(u32 held_vm, u64 held_until, u64 now, u32 vm)
{
	return pol_may_use(held_vm, held_until, now, vm);
}

bool native_overdue(u64 since, u64 now, u64 bound)
{
	return pol_overdue(since, now, bound);
}

u64 native_overdue_bound(u32 siblings)
{
	return pol_overdue_bound(siblings);
}

u64 native_first(u64 cpu_vtime)
{
	return pol_first(cpu_vtime);
}

u64 native_first_by_age(u64 cpu_vtime, u64 waited)
{
	return pol_first_by_age(cpu_vtime, waited);
}

u64 native_waits_since(u64 waited, u64 came, u64 ran, u64 had, u64 turn)
{
	return pol_waits_since(waited, came, ran, had, turn);
}

bool native_pulls(u64 waiter, u64 runs, u64 waited, u64 pull)
{
	return pol_pulls(waiter, runs, waited, pull);
}

bool native_probe_fails(u64 ran_apart, u32 blocks_apart, u64 ran, u32 blocks)
{
	return pol_probe_fails(ran_apart, blocks_apart, ran, blocks);
}

u64 native_probe_next(u64 before)
{
	return pol_probe_next(before);
}
