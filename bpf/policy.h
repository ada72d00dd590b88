/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Decisions of the kernel scheduler as pure functions: integers in, a verdict out.
 *
 * No helper calls, no globals, no floats: it compiles to BPF and natively alike, where crates/scx/tests/policy.rs
 * tests it. Virtual times are nanoseconds, offset by POL_ORIGIN so that subtracting never wraps; they
 * are compared by signed difference. An account that has exactly the CPU time that it is entitled to
 * advances by one nanosecond of virtual time in each nanosecond.
 */
#ifndef INSTEP_POLICY_H
#define INSTEP_POLICY_H

#include "intf.h"

#define POL_MS 1000000ull
#define POL_ORIGIN (1ull << 50)
#define POL_WEIGHT_MAX 10000u
#define POL_DEFAULT_PERIOD (24 * POL_MS)
/* A whole CPU, where CPUs are counted in parts. */
#define POL_CPU 1024u

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

/* The earlier of a time found so far, 0 if there is none, and another. */
static inline u64 pol_first(u64 found, u64 other)
{
	return found ? pol_min(found, other) : other;
}

static inline u64 pol_max(u64 a, u64 b)
{
	return pol_before(a, b) ? b : a;
}

static inline u64 pol_clamp(u64 value, u64 least, u64 most)
{
	return pol_max(pol_min(value, most), least);
}

/* --- Sets of CPUs of one domain: bit n is the domain's n-th CPU (lane n) ------------------------- */

static inline u32 pol_count(u64 set)
{
	set -= set >> 1 & 0x5555555555555555ull;
	set = (set & 0x3333333333333333ull) + (set >> 2 & 0x3333333333333333ull);
	set = (set + (set >> 4)) & 0x0f0f0f0f0f0f0f0full;
	return set * 0x0101010101010101ull >> 56;
}

/* The lowest lane of a set that is not empty. */
static inline u32 pol_lowest(u64 set)
{
	return pol_count((set & -set) - 1);
}

/* Takes the lowest lane out of a set that is not empty. */
static inline u32 pol_take(u64 *set)
{
	u32 lane = pol_lowest(*set);

	*set &= *set - 1;
	return lane;
}

/* The highest lane of a set that is not empty. */
static inline u32 pol_highest(u64 set)
{
	set |= set >> 1;
	set |= set >> 2;
	set |= set >> 4;
	set |= set >> 8;
	set |= set >> 16;
	set |= set >> 32;
	return pol_count(set) - 1;
}

static inline u64 pol_lane(u32 lane)
{
	return 1ull << (lane & (INSTEP_LANES - 1));
}

/*
 * Where the lane with this number in a set is, counted from its lowest; INSTEP_LANES if the set has no such lane. Without branches: the
 * verifier would follow 64 paths.
 */
static inline u32 pol_nth(u64 set, u32 n)
{
	u64 rest = n;
	u32 lane = 0;

	if (n >= pol_count(set))
		return INSTEP_LANES;
	for (u32 half = INSTEP_LANES / 2; half; half /= 2) {
		u64 low = pol_count(set & ((1ull << half) - 1));
		/* All ones if the lane is not among these. */
		u64 above = (u64)((s64)(low - 1 - rest) >> 63);

		rest -= low & above;
		set >>= half & above;
		lane += half & above;
	}
	return lane;
}

/* Of a set the `count` lanes from number `first` on; 0 if it does not have them. */
static inline u64 pol_pick(u64 set, u32 first, u32 count)
{
	u32 from = pol_nth(set, first), to = pol_nth(set, first + count - 1);

	if (!count || to >= INSTEP_LANES)
		return 0;
	return set & (~0ull << from) & (~0ull >> (INSTEP_LANES - 1 - to));
}

/* Which of a set's lanes, counted from its lowest, this lane is. */
static inline u32 pol_rank_of_lane(u64 set, u32 lane)
{
	return pol_count(set & (pol_lane(lane) - 1));
}

/* Whether two sets have CPUs in common although neither holds the other. */
static inline bool pol_crosses(u64 a, u64 b)
{
	return (a & b) && (a & ~b) && (b & ~a);
}

/* The first of `n` domains that lie side by side, one of which is `home`: at a multiple of the next power of two. */
static inline u32 pol_first_domain(u32 home, u32 n, u32 domains)
{
	u32 bits = n > 1 ? pol_highest(n - 1) + 1 : 0, first = home >> bits << bits;

	if (home >= first + n)
		first = home + 1 - n;
	return first + n > domains && n <= domains ? domains - n : first;
}

/*
 * Sets of `size` of so many CPUs begin at multiples of this: the next power of two, so that sets of different sizes nest. Where that
 * leaves more than a quarter of the CPUs unused, a quarter of it: of each block, or of all although another set would fit.
 */
static inline u32 pol_set_step(u32 size, u32 cpus)
{
	u32 block = 1, sets;

	while (block < size && block < INSTEP_LANES)
		block <<= 1;
	sets = cpus < size ? 0 : (cpus - size) / block + 1;
	if (size * 4 >= block * 3 && (sets * size * 4 >= cpus * 3 || sets >= cpus / (size ?: 1)))
		return block;
	return block / 4 ?: 1;
}

/* --- Fair shares ------------------------------------------------------------------------------ */

/* What `ran` ns of CPU time cost an account that is entitled to `share` 1024ths of a CPU. */
static inline u64 pol_charge(u64 ran, u32 share)
{
	/* A second at a time at most: no clock jump can overflow the product. */
	return (ran > 1000 * POL_MS ? 1000 * POL_MS : ran) * POL_CPU / (share ?: 1);
}

/*
 * Weighted max-min fairness: an account is entitled to `level` for each unit of its weight, but to no more
 * than it can use. The true level is where the shares of all fill the host. One step towards it, from the demand of
 * those that have all they want at the present level (`filled`), and the weight of the others (`weight`, of `all`).
 * The level of an equal division is never too high, and each step from below comes nearer and not beyond; so where the
 * filled ones alone want more than there is, it begins there again.
 */
#define POL_LEVEL_BITS 10
#define POL_LEVEL_MOST (1ull << 30)

static inline u64 pol_level(u64 cpus, u64 filled, u64 weight, u64 all)
{
	u64 least = (cpus << POL_LEVEL_BITS) / (all ?: 1), level;

	if (filled > cpus)
		return least;
	if (!weight)
		return POL_LEVEL_MOST;
	level = ((cpus - filled) << POL_LEVEL_BITS) / weight;
	return level > least ? level : least;
}

/* What the level gives this weight, 1024ths of a CPU. */
static inline u64 pol_claim(u32 weight, u64 level)
{
	return (u64)weight * level >> POL_LEVEL_BITS;
}

/* Its share: no more than it can use, and no less than a 64th of a CPU. */
static inline u32 pol_share(u32 most, u64 claim)
{
	u64 share = claim < most ? claim : most;

	return share < POL_CPU / 64 ? POL_CPU / 64 : share;
}

/*
 * The place of a thread among all that wait: its account's virtual time, and among threads of one account
 * by what it had itself (`own`) against the last that ran (`front`), within `bound`.
 */
static inline u64 pol_key(u64 vtime, u64 own, u64 front, u64 bound)
{
	s64 apart = (s64)(own - front), most = (s64)bound;

	return vtime + (apart > most ? most : apart < -most ? -most : apart);
}

/* The weight of a thread of average weight in its account. */
#define POL_WEIGHT 1000u
/* By so much a thread of the host may be ahead of the others at most. */
#define POL_MOST_LEAD (1000 * POL_MS)

/*
 * The same for `threads` of the host that share by weight: `mean` is what one of average weight had, which is what each is to have. One
 * that had more waits until the others had as much, at the pace of threads that have `share` together; one that had less is
 * before them within `bound`.
 */
static inline u64 pol_host_key(u64 vtime, u64 own, u64 mean, u64 bound, u32 threads, u32 share)
{
	s64 lead = (s64)(own - mean);
	u64 all = (u64)threads * POL_CPU;

	if (lead <= 0)
		return vtime - (-lead < (s64)bound ? (u64)-lead : bound);
	lead = lead > (s64)POL_MOST_LEAD ? (s64)POL_MOST_LEAD : lead;
	if (all > share)
		lead = lead * all / (share ?: 1);
	return vtime + (lead > (s64)POL_MOST_LEAD ? POL_MOST_LEAD : (u64)lead);
}

/*
 * A debt beyond the bound is halved, not cut: accounts that are both far ahead, as nobody else can use their
 * CPUs, keep their order.
 */
static inline u64 pol_shorten(u64 vtime, u64 most)
{
	return pol_before(most, vtime) ? most + (vtime - most) / 2 : vtime;
}

/*
 * A thread that waits for so long is overdue and goes first, if it is entitled to a fifth of a CPU or more: less than half of the
 * stated bound of 100 ms, as others may be overdue, too. With a smaller part it is patient for longer: for half as long again
 * as gangs of that part wait for each other, slot by slot of 6 ms. If all of them were overdue, virtual time would count no more.
 */
#define POL_OVERDUE_NS (45 * POL_MS)
#define POL_OVERDUE_PART 5u

/* How long a thread waits before it is overdue, one of `threads` of an account that is entitled to `share`. */
static inline u64 pol_patience(u32 threads, u32 share)
{
	u64 least = (u64)POL_OVERDUE_PART * (share ?: 1), all = (u64)threads * POL_CPU;

	return all > least ? POL_OVERDUE_NS * all / least : POL_OVERDUE_NS;
}

/* --- Which vCPUs form a gang -------------------------------------------------------------------- */

/* Fewer blocks than one in this much CPU time: a vCPU computes or spins. */
#define POL_GANG_ON_NS (20 * POL_MS)
/* More than one in this much: it waits by blocking. */
#define POL_GANG_OFF_NS (10 * POL_MS)
/* Less CPU time than this in a window says nothing. */
#define POL_EVIDENCE_NS (4 * POL_MS)

/* A vCPU stays in the gang that it was tried in while it blocks so many times less often than before. */
#define POL_TRIAL_FACTOR 4

/* Whether a vCPU hardly ever blocks. One of the gang (`before`) leaves it with less than `bound` of CPU time for each block. */
static inline bool pol_hardly_blocks(bool before, u32 bound, u64 ran_ns, u32 blocks)
{
	if (ran_ns < POL_EVIDENCE_NS)
		return before && !blocks;
	return (u64)blocks * (before ? bound : POL_GANG_ON_NS) <= ran_ns;
}

/* That bound for a vCPU on trial, from what it did before. */
static inline u32 pol_trial_bound(u64 ran_ns, u32 blocks)
{
	return blocks ? pol_min(POL_TRIAL_FACTOR * ran_ns / blocks, POL_GANG_OFF_NS) : POL_GANG_OFF_NS;
}

/* --- Wake-ups ------------------------------------------------------------------------------------ */

/* Whether a thread that wakes up takes the CPU at once from one with this place. */
static inline bool pol_wake_preempts(u64 wakes, u64 runs, u64 slack)
{
	return pol_before(wakes + slack, runs);
}

#endif
