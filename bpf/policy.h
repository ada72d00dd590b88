/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Decisions of the kernel scheduler as pure functions: integers in, a verdict out.
 *
 * No helper calls, no globals, no loops, no floats: it compiles to BPF and natively alike, where
 * crates/native tests it. Virtual times are nanoseconds of CPU time at weight 100, offset by
 * POL_ORIGIN so that subtracting never wraps; they are compared by signed difference.
 */
#ifndef INSTEP_POLICY_H
#define INSTEP_POLICY_H

#include "intf.h"

#define POL_MS 1000000ull
#define POL_ORIGIN (1ull << 50)
#define POL_WEIGHT_MAX 10000u
#define POL_DEFAULT_PERIOD (24 * POL_MS)

static inline bool pol_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

/* Time since `at`: none if the clock of the CPU that noted it is ahead of this one's. */
static inline u64 pol_since(u64 at, u64 now)
{
	return pol_before(at, now) ? now - at : 0;
}

static inline u64 pol_min(u64 a, u64 b)
{
	return pol_before(a, b) ? a : b;
}

static inline u64 pol_max(u64 a, u64 b)
{
	return pol_before(a, b) ? b : a;
}

/*
 * How far an episode may lead: on a CPU where nobody else waits a VM begins one after the other, and
 * would take all of another CPU with them (seen: a VM of one busy vCPU had 24 % beside one of two).
 */
#define POL_LEAD_NS (48 * POL_MS)

/* --- Fair shares (design.md, kernel scheduler, 1) ------------------------------------------- */

/* What `ran` ns of CPU time cost a VM of this weight: ran * 100 / weight. */
static inline u64 pol_cost(u64 ran, u32 weight)
{
	u64 w = weight < 1 ? 1 : weight > POL_WEIGHT_MAX ? POL_WEIGHT_MAX : weight;

	/* A second at a time at most: no clock jump can overflow the product. */
	return (ran > 1000 * POL_MS ? 1000 * POL_MS : ran) * 100 / w;
}

/* A virtual time within `debt` of the CPU's own: neither a debt nor a claim is unbounded. */
static inline u64 pol_clamp(u64 vtime, u64 cpu_vtime, u64 debt)
{
	return pol_max(pol_min(vtime, cpu_vtime + debt), cpu_vtime - debt);
}

/*
 * The account of a VM over its allocation period. `mark` is the host's virtual time at the
 * period's begin: who is behind it at the end and never had to wait did not want that time.
 */
struct pol_account {
	u64 vtime;
	u64 mark;
	u64 period_at;
	u32 waited; /* a vCPU of it had to wait in this period */
};

enum pol_rolled { POL_SAME, POL_ROLLED, POL_EXPIRED };

/* Ends the period when it is over; POL_EXPIRED when unused time was lost. */
static inline enum pol_rolled pol_roll(struct pol_account *a, u64 now, u64 period, u64 host_vtime)
{
	enum pol_rolled rolled = POL_ROLLED;
	u64 age = pol_since(a->period_at, now);
	u64 floor;

	if (age < period)
		return POL_SAME;
	/*
	 * Absent for more than a whole period: all that passed meanwhile is gone. Else it may be behind
	 * because others lead, while it runs all the time (seen: one vCPU beside two lost a sixth).
	 */
	floor = age >= 2 * period ? host_vtime : a->mark - POL_LEAD_NS;
	if (!a->waited && pol_before(a->vtime, floor)) {
		a->vtime = floor;
		rolled = POL_EXPIRED;
	}
	a->mark = host_vtime;
	a->period_at = now;
	a->waited = 0;
	return rolled;
}

/*
 * Threads that belong to no VM have accounts of their own, which order them among each other, and
 * one together, which places them among the VMs. One that is behind its equals by more than
 * `light`, as it mostly sleeps, goes first (an ssh session beside a fork bomb), unless all together
 * are far beyond their share.
 */
static inline u64 pol_host_rank(u64 behind, u64 group, u64 cpu_vtime, u64 light, u64 bound)
{
	if (behind > light && pol_before(group, cpu_vtime + bound))
		return pol_min(group, cpu_vtime - light);
	return group;
}

/* By how much a thread's own virtual time is behind that of its equals. */
static inline u64 pol_behind(u64 own, u64 equals)
{
	return pol_before(own, equals) ? equals - own : 0;
}

/*
 * Nothing waits without bound (design.md, 8), although virtual times are global and CPUs may advance
 * at different speeds: a thread of a VM that has waited for this long goes first; behind siblings
 * on its CPU so much longer for each, as they take turns in their VM's share (seen: 511 on two CPUs
 * always had one that was overdue, and nobody else ran).
 */
#define POL_OVERDUE_NS (240 * POL_MS)
#define POL_OVERDUE_SIBLINGS 32u

static inline u64 pol_overdue_bound(u32 siblings)
{
	u32 n = siblings < 1 ? 1 : siblings > POL_OVERDUE_SIBLINGS ? POL_OVERDUE_SIBLINGS : siblings;

	return n * POL_OVERDUE_NS;
}

/* So does one of no VM where none has run for this long: a slice of 3 ms in it at least. */
#define POL_HOST_TURN_NS (96 * POL_MS)

static inline bool pol_overdue(u64 since, u64 now, u64 bound)
{
	return since && pol_before(since + bound, now);
}

/*
 * The rank of what is overdue: before all others. Not before what is kept near the CPU only: a VM that
 * runs on one CPU and never waits may be further behind another than that.
 */
#define POL_FIRST (1ull << 40)
/* More than anybody waits before the watchdog ends it: 34 s. */
#define POL_OLDEST (1ull << 35)

static inline u64 pol_first(u64 cpu_vtime)
{
	return cpu_vtime - POL_FIRST - POL_OLDEST;
}

/* Of vCPUs that are overdue: who has waited longest first, and none before who has its turn already. */
static inline u64 pol_first_by_age(u64 cpu_vtime, u64 waited)
{
	return cpu_vtime - POL_FIRST - (waited < POL_OLDEST ? waited : POL_OLDEST - 1);
}

/* Who ran for less lost the CPU at once, and has not had a turn. */
#define POL_TORN_NS (POL_MS / 20)

/*
 * Since when a thread waits that must wait again, after it ran for `ran` from `came` on and had waited
 * since `waited` before: what was torn away at once still waits (seen: by siblings that start together,
 * again and again), and so does one that was chosen for having waited too long and had, in pieces, `had`, less
 * than its `turn`.
 */
static inline u64 pol_waits_since(u64 waited, u64 came, u64 ran, u64 had, u64 turn)
{
	if (waited && (ran < POL_TORN_NS ||
		       (had < turn && pol_overdue(waited, came, POL_OVERDUE_NS))))
		return waited;
	return came + ran;
}

/* --- Co-scheduling (systems.md, 3; design.md, 6) --------------------------------------------- */

/* Evidence of a VM over one window. */
struct pol_evidence {
	u64 ran_ns;   /* CPU time of its vCPUs */
	u32 blocks;   /* how often one of them gave its CPU up to wait */
	u32 nr_vcpus;
};

/* Fewer blocks than one in this much CPU time: it computes or spins. */
#define POL_GANG_ON_NS (20 * POL_MS)
/* More than one in this much: it waits by blocking. */
#define POL_GANG_OFF_NS (10 * POL_MS)
/* Less CPU time than this says nothing. */
#define POL_EVIDENCE_NS (10 * POL_MS)

/*
 * Whether the siblings of a VM should run together, from what they did. A vCPU that never blocks
 * computes, and loses nothing, or spins, and wins all (platform.md, what was measured).
 */
static inline bool pol_gang(u32 cosched, bool now, struct pol_evidence e)
{
	if (e.nr_vcpus < 2 || cosched == INSTEP_COSCHED_NEVER)
		return false;
	if (cosched != INSTEP_COSCHED_AUTO)
		return true;
	if (e.ran_ns < POL_EVIDENCE_NS)
		return now;
	if (now)
		return (u64)e.blocks * POL_GANG_OFF_NS <= e.ran_ns;
	return (u64)e.blocks * POL_GANG_ON_NS <= e.ran_ns;
}

/*
 * Whether a thread of `vm` may be chosen on a CPU that is held for `held_vm` until a time: held CPUs
 * are for the siblings of a VM that runs all at once or not at all, and for threads of no VM.
 */
static inline bool pol_may_use(u32 held_vm, u64 held_until, u64 now, u32 vm)
{
	return !pol_before(now, held_until) || vm == held_vm || vm == INSTEP_HOST;
}

/* A candidate for a CPU. */
struct pol_rank {
	u64 vtime;
	bool gang;	/* of a VM whose siblings run together */
	bool episode;	/* which do so now */
};

/* Whether the episode of one of two gangs settles which goes first. */
static inline bool pol_episode_counts(struct pol_rank a, struct pol_rank b)
{
	u64 runs = a.episode ? a.vtime : b.vtime, other = a.episode ? b.vtime : a.vtime;

	return a.gang && b.gang && a.episode != b.episode &&
	       pol_before(runs, other + POL_LEAD_NS);
}

/* Whether `a` goes before `b`, both gangs: one that is under way is not torn apart. */
static inline bool pol_gang_before(struct pol_rank a, struct pol_rank b)
{
	if (pol_episode_counts(a, b))
		return a.episode;
	return pol_before(a.vtime, b.vtime);
}

/* Whether a waiter should take the CPU from what runs there when its tick comes. */
static inline bool pol_tick_preempts(struct pol_rank waiter, struct pol_rank runs)
{
	if (pol_episode_counts(waiter, runs))
		return waiter.episode;
	return pol_before(waiter.vtime, runs.vtime);
}

/*
 * Whether what runs goes on at the end of its slice although another waits: only if it is still
 * behind. Equals take turns, or siblings and threads of no VM, whose ranks are one, would starve.
 */
static inline bool pol_goes_on(struct pol_rank runs, struct pol_rank waiter)
{
	if (pol_episode_counts(runs, waiter))
		return runs.episode;
	return pol_before(runs.vtime, waiter.vtime);
}

/*
 * Whether a vCPU that is too far ahead of a waiting sibling gives way to this waiter, which may be ahead
 * of its share by what an episode may lead. Not to another gang: whose siblings would be torn apart.
 */
static inline bool pol_skew_stops(struct pol_rank runs, struct pol_rank waiter)
{
	return runs.episode && !waiter.gang && pol_before(waiter.vtime, runs.vtime + POL_LEAD_NS);
}

/*
 * Whether a thread that wakes up takes the CPU at once. It may be ahead by `slack` of a VM that
 * never blocks, so that a VM at its share is not held up by rounding; of others it must be behind.
 */
static inline bool pol_wake_preempts(struct pol_rank wakes, struct pol_rank runs, u64 slack)
{
	if (wakes.gang && runs.gang)
		return pol_tick_preempts(wakes, runs);
	if (runs.gang)
		return pol_before(wakes.vtime, runs.vtime + slack);
	return pol_before(wakes.vtime + slack, runs.vtime);
}

/*
 * Whether a CPU takes over a waiter that is behind what it runs by `pull`, or that has waited for
 * so long, behind a VM that is gathered there, although its own is not ahead.
 */
static inline bool pol_pulls(u64 waiter, u64 runs, u64 waited, u64 pull)
{
	return pol_before(waiter + pull, runs) || (waited > pull && !pol_before(runs, waiter));
}

/*
 * How long a thread may run: to the end of the episode, or a slice. Siblings that share a CPU take turns in the
 * episode: one that spins for another that waits behind it must not keep it to the end.
 */
static inline u64 pol_slice(struct pol_rank r, u64 now, u64 episode_until, u64 slice, u32 siblings)
{
	u64 left;

	if (!r.episode || !pol_before(now, episode_until))
		return slice;
	left = episode_until - now;
	return siblings > 1 && slice < left ? slice : left;
}

/* Parts of an episode: at a barrier every 1 ms six gave a seventh less than four. */
#define POL_TURNS 4
/* Shorter ones cost more by switching than they bring. */
#define POL_TURN_LEAST_NS (POL_MS / 2)

/* How long a turn is of siblings that share a CPU: part of an episode, no longer than a slice. */
static inline u64 pol_turn(u64 episode, u64 slice)
{
	u64 turn = episode / POL_TURNS;

	turn = turn < POL_TURN_LEAST_NS ? POL_TURN_LEAST_NS : turn;
	return turn < slice ? turn : slice;
}

/* --- Synchronisation (systems.md, 2) ---------------------------------------------------------- */

/*
 * Whether a VM is held up: one of its vCPUs has waited for a sibling longer than the ideal
 * scheduling interval |C| / |P| * T, while another of them is ready and does not run.
 */
static inline bool pol_held_up(u64 waited, u32 all_vcpus, u32 cpus, u64 slice, u32 ready)
{
	return ready && cpus && waited > (u64)all_vcpus * slice / cpus;
}

/* Only within its fair allocation: not when it is ahead of the host. */
static inline bool pol_may_boost(u64 vtime, u64 host_vtime)
{
	return !pol_before(host_vtime, vtime);
}

/* --- Gathering (gather.bpf.h) ------------------------------------------------------------------ */

/* What a VM did in one window, or in several. */
struct pol_handover {
	u64 ran_ns;  /* CPU time of its vCPUs */
	u64 wall_ns; /* length */
	u64 wakes;   /* wake-ups of a vCPU by a sibling: what it gets done, as far as can be seen */
	u64 idle;    /* wake-ups that found an idle CPU */
};

/* At least one wake-up by a sibling in this much CPU time. */
#define POL_FINE_NS (POL_MS)

/*
 * Most of a CPU, in 128ths, that a VM may use and still be tried on one: what it uses apart is more
 * than it needs there.
 */
#define POL_ONE_CPU 160

/*
 * Whether a VM might be served better by one CPU: its vCPUs hand over to each other at a fine
 * grain, it is not given more than about one CPU, and its wake-ups find no idle one. One that is
 * gathered already stays so at half the frequency.
 */
static inline bool pol_may_gather(struct pol_handover h, bool gathered)
{
	if (h.ran_ns < POL_EVIDENCE_NS || h.idle * 8 > h.wakes)
		return false;
	if (h.ran_ns * 128 > h.wall_ns * POL_ONE_CPU)
		return false;
	return h.wakes * POL_FINE_NS * (gathered ? 2 : 1) >= h.ran_ns;
}

/* The least gain by gathering, in 32nds; and beside VMs that never block, which might spin. */
#define POL_GAIN 1u
#define POL_GAIN_BESIDE_GANGS 3u

/*
 * Whether it gets more done gathered than apart: for its CPU time at least `gain` 32nds more, and
 * not less in the time that passed (a VM that could have used several CPUs shows it there).
 */
static inline bool pol_gather_pays(struct pol_handover apart, struct pol_handover gathered,
				   u32 gain)
{
	/* In microseconds, so that the products fit for windows of up to minutes. */
	u64 ran_apart = apart.ran_ns / 1000, ran = gathered.ran_ns / 1000;

	if (gathered.ran_ns < POL_EVIDENCE_NS)
		return false;
	if (gathered.wakes * ran_apart * 32 < apart.wakes * ran * (32 + gain))
		return false;
	return gathered.wakes * (apart.wall_ns / 1000) * 32 >=
	       apart.wakes * (gathered.wall_ns / 1000) * 31;
}

/* --- Trying a VM that blocks together (spin-then-block) ---------------------------------------- */

#define POL_PROBE_FIRST_NS (1000 * POL_MS)
#define POL_PROBE_MOST_NS (64000 * POL_MS)

/*
 * Whether a trial of a VM that blocks has failed already: together, it blocks more than half as
 * often for its CPU time as it did apart.
 */
static inline bool pol_probe_fails(u64 ran_apart, u32 blocks_apart, u64 ran, u32 blocks)
{
	return ran / 1000 * blocks_apart < ran_apart / 1000 * blocks * 2;
}

/* When to try again after a trial that failed: twice as long as before. */
static inline u64 pol_probe_next(u64 before)
{
	if (before < POL_PROBE_FIRST_NS)
		return POL_PROBE_FIRST_NS;
	return before >= POL_PROBE_MOST_NS / 2 ? POL_PROBE_MOST_NS : 2 * before;
}

#endif
