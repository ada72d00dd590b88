/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the scheduler remembers: the host, its domains, an entry per CPU, VM and vCPU slot, and a small
 * record per thread. Everything is reached through the accessors here, so that another environment (the
 * simulator) can keep one copy per run: it defines INSTEP_STATE and the functions that look in maps.
 *
 * Flag: none. Counters: events_lost.
 *
 * A scheduling domain is a set of at most 64 CPUs of one NUMA node that share one clock of virtual time.
 * User space numbers its CPUs as lanes 0, 1, ... so that CPUs of a last-level cache, and threads of a core,
 * lie side by side. So a set of CPUs is one 64-bit word.
 *
 * Layout: words that every operation reads and hardly anything writes come first and are apart; an entry of a
 * CPU has lines that only this CPU writes and one that others read and write.
 *
 * Concurrency: an entry of a CPU is written by that CPU (its plan by the planner of its domain) and read
 * racily by others; fields of accounts are changed atomically or tolerate a lost update.
 */
#ifndef INSTEP_STATE_BPF_H
#define INSTEP_STATE_BPF_H

#include "intf.h"
#include "policy.h"
#include "compat.bpf.h"

#define NO_CPU (-1)
#define NO_SEAT 0xffffu
#define NO_DOMAIN 0xffffffffu
#define OWN_NOWHERE 0xffffffffu
/* Owner of a CPU in a slot: threads that form no gang. */
#define POOL 0xffffffffu
#define MAX_REFUSED 8
#define LINE __attribute__((aligned(64)))
/* A timer for each domain's slots, and one for threads that are held. */
#define INSTEP_HELD_TIMER INSTEP_MAX_DOMAINS
#define INSTEP_NR_TIMERS (INSTEP_MAX_DOMAINS + 1)

/* What CPU time is charged to: a VM, or the threads of no VM in one domain. */
struct account {
	u64 vtime LINE;	 /* virtual time (policy.h) */
	u64 served_at;	 /* when one of its threads last began to run */
	u64 want_ns;	 /* time that its threads were runnable in this period, summed over them */
	u64 changed_at;	 /* when nr_running or nr_queued last changed */
	u64 front;	 /* own time of the thread that ran last (policy.h, pol_key) */
	u64 total_ns;	 /* CPU time since it is known */
	u64 wanted_ns;	 /* time for which its threads were runnable since then, summed over them; of the periods that ended */
	u64 held_ns;	 /* time for which CPU limits held its threads, summed over them */
	u32 share;	 /* entitled to, 1024ths of a CPU */
	u32 demand;	 /* runnable threads, 1024ths, mean over some periods */
	u32 peak;	 /* most threads that were runnable at once in this period */
	u32 peak_before; /* in the one before */
	u32 nr_running;
	u32 nr_queued;
	s32 nr_held;	 /* of these, held by a CPU limit (held.bpf.h) */
	u32 waited;	 /* a thread had to wait in this period */
	u32 domain;
	u32 nr_long;	 /* runnable threads that used up a slice since they woke up */
	u32 light;	 /* it wants less than 7/8 of what it is entitled to */
	u32 is_host;	 /* of the host's threads */
	u32 room;	 /* CPUs that its threads may use together, 0 if all */
	u32 weight;	 /* in this period */
	/* Of the host's threads only (group.bpf.h). */
	u64 mean;	 /* own time of one of average weight (policy.h, pol_host_key) */
	s32 weights;	 /* of those that are runnable now, in units of POL_WEIGHT for one of average weight */
	u64 weight_ns;	 /* the same times how long, in this period */
	u64 active_ns;	 /* time in which there were any */
	u64 in_windows;	 /* CPU time in windows of gang slots (slot.bpf.h, serve_host) since it was judged whether they are enough */
	u32 pressed;	 /* windows are too little for them: they count as a VM's do */
};

/* While seats are numbered: in memory, as the verifier would tell each number from the next. */
struct numbering {
	u32 next;
	u32 part;
	u32 strays;
};

/* The vCPUs of a VM that have their seats in one domain, or wait in its pool. */
struct gang_part {
	u64 set LINE; /* of a gang, their CPUs: lanes of the domain */
	u64 waiting; /* seats of them whose vCPU waits in its own queue */
	u64 vtime;   /* of a VM with several parts: virtual time in this domain (span.bpf.h) */
	u64 began;   /* what a thread has to be behind to interrupt it in its slot: its virtual time when that began */
	u32 domain;
	u32 first;   /* number of its first seat in the gang */
	u32 granted; /* the slot of its domain that it had last */
	u32 next;    /* in the planner's order */
	u32 barred;  /* accounts before it in the last plan's order left it too few CPUs */
};

struct vm_state {
	struct account account;
	/* Read in every operation, written when the gang or its set changes. */
	u32 seats LINE;	 /* vCPUs of the gang, 0 if it forms none */
	u32 nr_parts;	 /* domains in which they have their seats, or in whose pools they wait if these are several; else 0 */
	u32 generation;	 /* of the table when this entry was begun; 0 while user space begins it */
	u32 joined;	 /* it has a domain */
	u32 broad;	 /* when it last got no gang, its domain had too few CPUs for its vCPUs (span.bpf.h, is_broad) */
	u32 wide;	 /* more of its vCPUs never block than its domain has CPUs */
	u32 restricted;	 /* some of its vCPUs may not use all CPUs of the host, ... */
	u32 alike;	 /* ... but all may use the same */
	u32 split;	 /* some may not use its domain */
	u32 assigned;	 /* a gang whose vCPUs may not: each has a CPU of its own (set.bpf.h) */
	u32 masks_at;	 /* how often one may use other CPUs than was known, when the VM last had its place, ... */
	u32 masks;	 /* ... and until now */
	u64 allowed;	 /* lanes of its domain that any of its vCPUs may use */
	u64 window_at;	 /* begin of the window of evidence */
	/* Written at each charge, block or slot. */
	u64 ran_ns LINE; /* in the window */
	u64 total_blocks;
	u64 blocks_before; /* of these, before the window */
	u64 together_ns; /* time in which more than one of its vCPUs ran */
	u64 apart_ns;	 /* time in which one ran while another waited for a CPU */
	u64 rest_ns;	 /* time in the window of evidence in which none of its vCPUs wanted a CPU */
	u64 spare;	 /* virtual time that it was not charged for in holes, of about the last second */
	u64 uneven;	 /* in several pools: virtual time that is to be divided among its parts (span.bpf.h) */
	u32 turns;	 /* in several pools: windows that ended while a vCPU waited (queue.bpf.h, pool_part) */
	u32 refusals;	 /* slots since its last one, in which it wanted one */
	u32 strays;	 /* vCPUs that lost their seat while they waited there */
	u32 trial;	 /* windows of its trial as a gang that are left (gang.bpf.h) */
	u32 pause;	 /* windows until the next trial */
	u32 untried;	 /* windows since the last one */
	u64 moved_at;	 /* when its set moved last */
	u32 torn;	 /* how often a CPU was taken from it in its slot, ... */
	u32 slots_had;	 /* ... over these slots */
	u32 missed;	 /* slots that it wanted and did not get, meanwhile */
	u32 changes;	 /* a CPU gives its vCPUs seats, or the VM another domain */
	u32 crowded;	 /* windows for which it forms no gang, as it missed many */
	u64 granted_at;	 /* when it last had a slot, or wanted none */
	u64 total_slots; /* that it had since it is known */
	u64 total_tears; /* times that a CPU was taken from it in its slot */
	struct numbering numbering;
	struct gang_part parts[INSTEP_MAX_PARTS] LINE;
	u64 may_use[INSTEP_MAX_DOMAINS]; /* lanes of each domain, if restricted: of vCPUs that are not alike those of each one's home */
};

/* A vCPU; on a cache line of its own, as siblings on other CPUs write theirs. */
struct slot_info {
	u64 ran_ns LINE; /* in this window of evidence */
	u32 blocks;	/* in it */
	u32 bound;	/* it leaves the gang with less CPU time than this between two blocks */
	u16 gang;	/* it hardly ever blocks */
	u16 seat;	/* its number in its part of the gang, or NO_SEAT */
	u32 sits;	/* as entry of the VM's seat with this number: which of its vCPUs has it */
	u16 lane;	/* where its seat is, of a gang whose vCPUs may use different CPUs */
	u8 waits;	/* it waits in its own queue ... */
	u8 stray;	/* ... and lost its seat meanwhile */
	u8 asleep;	/* it sleeps: one more than the windows that ended since it last ran; 0 if it does not */
	u16 part;	/* in which part of the gang it sits */
	u64 mask;	/* tells the CPUs that it may use from others */
	u32 cpus;	/* how many these are, 0 if they are all of the host */
	u32 noted;	/* one more than the VM's domain when that was noted */
	u32 home;	/* a domain where it may use CPUs: the VM's, or where it may use most, ... */
	u64 allowed;	/* ... and these CPUs' lanes */
	u64 queued_at;	/* of one that waits in its own queue, struct task_state's */
	u32 longest_wait_us; /* waits.bpf.h */
	u32 wait_counts[INSTEP_WAITS] LINE;
};

/* A CPU limit of a cgroup (limit.bpf.h). */
struct limit {
	u64 quota;	/* CPU time for each period, nanoseconds */
	u64 period;
	u64 burst;	/* CPU time that it may save */
	u64 parent;	/* the cgroup of the next limit above, 0 if there is none */
	s64 left;	/* CPU time that its threads may still use */
	u64 refill_at;	/* when the next period begins */
	u64 granted_at;	/* while the timer lets threads go on: the time, ... */
	u64 granted;	/* ... and what it let them have */
	u64 held_ns;	/* time for which threads waited whose nearest limit it is, summed over them */
};

/* A cgroup with threads (group.bpf.h). */
struct group {
	u64 parent;	/* the one above it, 0 if there is none */
	u64 want_ns;	/* time for which threads of the host in it were runnable, summed over them */
	u64 seen_at;	/* when a thread below it last looked */
	u64 shares;	/* its weight as the kernel has it: GROUP_SHARES for a cpu.weight of 100 */
	u64 most;	/* CPUs that its own limit allows, thousandths; 0 if it has none */
	u32 of_user;	/* a user other than root has it */
};

#define GROUP_SHARES (1024ull << 10)

/* What is known of a queue without asking the kernel (queue.bpf.h, somebody_in). */
struct queue_seen {
	u64 put_at;	/* when a thread was last put into it */
	u64 empty_at;	/* when a CPU last found it empty */
};

struct cpu_state {
	/* Written when the scheduler is loaded. */
	s32 node LINE;	/* NUMA node, -1 while the CPU was offline when it was loaded */
	u32 domain;
	u32 lane;
	u32 pad;
	u64 core;	/* the lanes of its core */
	u64 cache;	/* the lanes of its last-level cache */
	/* Written by the domain's planner, read by this CPU. */
	u32 owner LINE; /* VM of the gang whose slot it is, POOL, or 0 for nobody */
	u32 pad2;
	u64 lends;	/* until then it takes threads of the host before its owner's */
	u64 pad3[6];
	/* Written by this CPU (bound.put_at also by those that put threads there), read by others. */
	u64 since LINE; /* from when on the running thread is still to be charged */
	u64 taken_at;	/* since when a higher class has it, 0 if none does */
	u32 tid;	/* of the running thread when it began to run, 0 if none of this class runs */
	u32 vm;
	u32 slot;
	u32 weight;
	u32 hole;	/* what runs fills a hole: it is not charged */
	u32 overdue;	/* what runs waited for too long: it keeps the CPU for a slice */
	u32 claimed;	/* what runs gives way to a thread that woke up and was sent here */
	u64 own;	/* own time of the running thread (struct task_state) */
	struct queue_seen bound; /* its bound queue, ... */
	u64 swept_at;	/* ... and when that was last looked through for threads that are overdue */
	u64 used_at;	/* when its use was last computed (frequency.bpf.h) */
	u32 use;	/* the part of the time in which it was busy of late, 1024ths, ... */
	u32 asked;	/* ... and what the governor was last told */
	u64 counters[INSTEP_NR_COUNTERS] LINE;
};

/* So many gangs with several parts may be promised the same slot of a domain, if they have no CPU in common. */
#define INSTEP_PROMISES 4

struct domain_state {
	/* Written when the scheduler is loaded. */
	u64 lanes LINE;	/* the domain's CPUs */
	u64 first;	/* the first lane of each core */
	u64 alone;	/* lanes whose core has no other */
	u64 caches;	/* the first lane of each last-level cache */
	u32 capacity;	/* of its CPUs together, 1024ths of the fastest kind (scx_bpf_cpuperf_cap) */
	u32 nr_next;
	u8 next[INSTEP_MAX_DOMAINS]; /* the other domains in the order in which they are looked through */
	s32 node;
	u32 nr_lanes;
	u32 isolated;	/* only threads run here that are bound to such CPUs */
	u16 cpu[INSTEP_LANES];
	/* Written by many. */
	u64 idle LINE;	/* CPUs that have nothing to run */
	u64 idle_at;	/* when that last changed */
	u64 holes LINE;	/* CPUs on which a gang's vCPU fills a hole */
	u64 tears;	/* CPUs of the gang that is preempted first, if any must be */
	u64 pending;	/* CPUs of gangs for which threads of the host wait */
	u64 taken;	/* CPUs that a higher class has */
	u32 armed;	/* its timer is set */
	u32 nr_gangs;	/* VMs of the domain that form gangs */
	u32 nr_wide;	/* of these, on more than half of its CPUs: no two of them run at the same time */
	u32 nr_spread;	/* of these, with parts in several domains */
	u32 stale;	/* a VM came or went: `members` is to be made anew */
	u32 stray;	/* a VM with strays */
	u32 pooled;	/* vCPUs that have a seat may wait in the pool */
	u32 seat_waits;	/* vCPUs may wait on seats */
	struct queue_seen in_pool LINE; /* the queue of the pool, ... */
	u64 swept_at;	/* ... and when that was last looked through for threads that are overdue */
	u32 pulls;	/* one more than the domain from which it takes a thread of the host, 0 for none */
	u64 promises[2][INSTEP_PROMISES]; /* of the slots with even numbers, and with odd ones (promise.bpf.h) */
	/* Written by the planner. */
	u64 clock LINE; /* virtual time that a VM must not be far behind */
	u64 victims;	/* the set of the gang in this slot that is interrupted first */
	u64 pool;	/* CPUs of this slot for threads that form no gang, ... */
	u64 free;	/* ... and of these those that nobody wants */
	u32 victim;	/* its VM, 0 if there is none */
	u32 slot;	/* number of the slot */
	u32 slotted;	/* slots are planned */
	u32 relieved;	/* the slot in which overdue threads of the pool last had CPUs before gangs */
	u32 owes;	/* some wait, but not in this slot, or a gang was refused that is overdue: the next one is not promised */
	u32 nr_members;
	u64 used;	/* lanes that any VM of the host may use */
	u32 listed;	/* while members are listed (struct numbering says why in memory) */
	s32 lending;	/* while a window is opened: threads of the host that have no CPU yet */
	u64 offered;	/* CPU time that windows had for them since it was judged whether they are enough, ... */
	u32 judged;	/* ... in this slot */
	u32 nr_refused;
	u32 refused[MAX_REFUSED]; /* gangs that wait for a slot, in the order in which they fill holes */
	struct account host; /* threads of no VM on the domain's CPUs */
	u32 heads[INSTEP_LANES]; /* planner: accounts by virtual time, in lists, ... */
	u64 lists;	/* ... and which of these have any */
	u32 load[INSTEP_LANES]; /* of each CPU by gangs, 1024ths */
	u32 pool_load[INSTEP_LANES]; /* by others */
	u32 host_next;
	u32 looked;	/* members that were looked at for a better set */
	u32 loaded;	/* all of it, 1024ths of a CPU */
	u64 lost;	/* CPUs that a higher class has had for a whole window */
	u64 least;	/* in this period: least virtual time of accounts that had to wait, 0 if none had */
	u32 members[INSTEP_MAX_VMS];
};

/* The timer of a domain's slots. */
struct slot_timer {
	struct bpf_timer timer;
	u32 domain;
};

struct host_state {
	struct instep_settings set LINE;
	u32 online;	/* CPUs that were online when it was loaded */
	u32 common;	/* of these, those that are not isolated, ... */
	u32 ordinary;	/* ... and one of them */
	u64 slot_ns;	/* length of a slot, which hardly ever changes (period.bpf.h, set_slot_length) */
	u32 nr_vms;	/* one more than the last VM of the table that was ever in use */
	u64 level;	/* what a unit of weight is entitled to (policy.h, pol_level) */
	u32 drained;	/* seat queues below are looked through since the table changed */
	u32 generation;	/* of the table when that began */
	u64 rolled_at LINE; /* when shares were last computed */
	u64 spread_at;	/* when load was last compared between domains (moves.bpf.h) */
	u64 held_timer;	/* when threads that are held are looked at next, 0 if none are (held.bpf.h) */
	u64 held_last;	/* when a thread was last held */
	u64 lost_limit;	/* the cgroup whose limit found no room last */
	u64 awaited_limit; /* one for which there is no memory at the moment, ... */
	u64 awaited_ns;	/* ... for how long it was not kept */
	u64 awaited_at;	/* ... and when it was looked at last */
	u32 user_groups; /* cgroups in the table that users other than root have; user space counts anew */
	struct instep_vm_settings vm_set[INSTEP_MAX_VMS] LINE;
	struct vm_state vms[INSTEP_MAX_VMS];
	struct domain_state domains[INSTEP_MAX_DOMAINS];
	struct cpu_state cpus[INSTEP_MAX_CPUS];
	struct slot_info slots[INSTEP_MAX_SLOTS];
#ifdef INSTEP_STATE
	struct slot_timer slot_timers[INSTEP_NR_TIMERS]; /* in BPF timers may be in maps only */
	struct limit limits[SHIM_MAX_GROUPS];
	u32 no_memory; /* for entries of limits */
	struct group groups[SHIM_MAX_GROUPS];
	u32 group_weights[SHIM_MAX_GROUPS];
	struct shim_group cgroups[SHIM_MAX_GROUPS];
#endif
};

enum standing { STANDS_NOWHERE, STANDS_QUEUED, STANDS_RUNNING };

/* A thread. */
struct task_state {
	u64 own;	/* CPU time at average weight, against others of its account (policy.h, pol_key) */
	u32 own_in;	/* whose account's own time this is (settle_own), OWN_NOWHERE before it has one */
	u32 generation;
	u32 vm;		/* INSTEP_HOST for none */
	u32 slot;	/* INSTEP_NO_SLOT for threads that are no vCPU */
	u32 narrow;	/* it may not use all CPUs of the host */
	u32 weight;	/* among others of its account, POL_WEIGHT on average */
	u32 stands_for;	/* the same when it was last counted, of a thread of the host */
	u32 standing;	/* enum standing: what it is counted as, ... */
	u32 stands_in;	/* ... by the account of this VM, ... */
	u32 stands_on;	/* ... of this domain, ... */
	u32 stands_as;	/* ... whose entry had this generation */
	u32 seat;	/* it waits in the queue of its slot, as this seat; else NO_SEAT */
	u64 woke;	/* its own time when it woke up */
	u64 queued_at;	/* since when it waits; a run of less than half a slice does not count */
	u64 ran_at;	/* when it last began to run */
	u64 waits_since; /* since when it waits, without the time for which a limit held it */
	u64 turn;	/* its place while it ran for a moment (queue.bpf.h), else 0 */
	u32 overdue;	/* it was found to wait for too long */
	u32 is_long;	/* it used up a slice since then */
	u32 stands_long; /* it is counted in the account's nr_long */
	u32 held;	/* a CPU limit holds it; the code that takes this back takes it from nr_held (held.bpf.h) */
	u32 asked;	/* how often it was asked to leave the kernel (leave.bpf.h); */
	u32 leaves;	/* that is still to come, ... */
	u32 at_border;	/* ... or has come, and it is on its way back to user space */
	u64 held_at;	/* since when it is held, ... */
	u64 held_by;	/* ... the cgroup of its nearest limit then, ... */
	u64 held_since;	/* ... and since when it has not run for this reason, ... */
	u64 turn_since;	/* ... or for no more than a moment */
	u64 group;	/* its cgroup when it last looked, ... */
	u64 nearest;	/* ... the nearest one above it that is read (limit.bpf.h), ... */
	u64 looked_at;	/* ... when it did, ... */
	u64 limit;	/* ... and the cgroup of the nearest CPU limit, 0 if there is none */
	u64 node;	/* the inode number of its cgroup, 0 if it has none */
	u64 wants_since; /* since when its standing is still to be noted in its cgroup */
	u64 used;	/* of its CPU time, what was charged to that */
	u64 used_asleep; /* its CPU time when it last went to sleep, ... */
	u64 burst;	/* ... and what it had used since the time before, a slice at most; 0 before it slept */
};

#ifndef INSTEP_STATE
static __always_inline void count(enum instep_counter what);

struct host_state instep;
#define INSTEP_STATE (&instep)

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} task_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, INSTEP_MAX_THREADS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, struct instep_thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, INSTEP_NR_TIMERS);
	__type(key, u32);
	__type(value, struct slot_timer);
} slot_timers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} events SEC(".maps");

/* Not read by the programs: tells user space the layout of the maps' entries. */
struct instep_thread layout_thread;
struct instep_event layout_event;

static __always_inline struct task_state *task_of(struct task_struct *p)
{
	return bpf_task_storage_get(&task_states, p, 0, 0);
}

static __always_inline struct task_state *new_task_of(struct task_struct *p)
{
	return bpf_task_storage_get(&task_states, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

static __always_inline struct instep_thread *thread_of(u32 tid)
{
	return bpf_map_lookup_elem(&threads, &tid);
}

static __always_inline struct slot_timer *timer_of(u32 domain)
{
	return bpf_map_lookup_elem(&slot_timers, &domain);
}

static __always_inline void emit(u64 now, u32 kind, u32 vm, u64 a, u64 b)
{
	struct instep_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		count(INSTEP_C_EVENT_LOST);
		return;
	}
	*event = (struct instep_event){ .at_ns = now, .kind = kind, .vm = vm, .a = a, .b = b };
	bpf_ringbuf_submit(event, 0);
}
#else
#define slot_timers (INSTEP_STATE->slot_timers)

static __always_inline struct slot_timer *timer_of(u32 domain)
{
	return domain < INSTEP_NR_TIMERS ? &slot_timers[domain] : NULL;
}
#endif

#define SET (INSTEP_STATE->set)

static __always_inline bool on(u32 mechanism)
{
	return SET.mechanisms & mechanism;
}

/* The home node of a VM while homes count, else INSTEP_NO_NODE. */
static __always_inline s32 home_of(struct instep_vm_settings *s)
{
	return on(INSTEP_M_HOME) ? s->home_node : INSTEP_NO_NODE;
}

/*
 * An index that the verifier sees is within a table of `size` entries, a power of two: without the
 * barrier the compiler drops the mask after a check that the verifier cannot follow.
 */
static __always_inline u32 within(u32 index, u32 size)
{
	barrier_var(index);
	return index & (size - 1);
}

static __always_inline struct cpu_state *cpu_of(s32 cpu)
{
	if ((u32)cpu >= INSTEP_MAX_CPUS)
		return NULL;
	return &INSTEP_STATE->cpus[within(cpu, INSTEP_MAX_CPUS)];
}

static __always_inline struct domain_state *domain_of(u32 domain)
{
	if (domain >= INSTEP_MAX_DOMAINS)
		return NULL;
	return &INSTEP_STATE->domains[within(domain, INSTEP_MAX_DOMAINS)];
}

static __always_inline s32 cpu_at(struct domain_state *d, u32 lane)
{
	return d->cpu[within(lane, INSTEP_LANES)];
}

static __always_inline struct vm_state *vm_of(u32 vm)
{
	if (vm >= INSTEP_MAX_VMS)
		return NULL;
	return &INSTEP_STATE->vms[within(vm, INSTEP_MAX_VMS)];
}

static __always_inline struct instep_vm_settings *vm_set_of(u32 vm)
{
	if (vm >= INSTEP_MAX_VMS)
		return NULL;
	return &INSTEP_STATE->vm_set[within(vm, INSTEP_MAX_VMS)];
}

static __always_inline struct slot_info *slot_of(u32 slot)
{
	if (slot >= INSTEP_MAX_SLOTS)
		return NULL;
	return &INSTEP_STATE->slots[within(slot, INSTEP_MAX_SLOTS)];
}

/* The account of a VM, or of the host's threads in this domain. */
static __always_inline struct account *account_of(u32 vm, u32 domain)
{
	struct domain_state *d;
	struct vm_state *v;

	if (vm == INSTEP_HOST) {
		d = domain_of(domain);
		return d ? &d->host : NULL;
	}
	v = vm_of(vm);
	return v ? &v->account : NULL;
}

/* How many entries of a table are in use, for loops whose end the verifier has to see. */
static __always_inline u32 members_of(struct domain_state *d)
{
	return d->nr_members < INSTEP_MAX_VMS ? d->nr_members : INSTEP_MAX_VMS;
}

static __always_inline u32 refused_of(struct domain_state *d)
{
	return d->nr_refused < MAX_REFUSED ? d->nr_refused : MAX_REFUSED;
}

static __always_inline u32 vcpus_of(struct instep_vm_settings *s)
{
	return s->nr_vcpus < INSTEP_MAX_VCPUS ? s->nr_vcpus : INSTEP_MAX_VCPUS;
}

static __always_inline void count(enum instep_counter what)
{
	struct cpu_state *c = cpu_of(bpf_get_smp_processor_id());

	if (c && what < INSTEP_NR_COUNTERS)
		c->counters[what]++;
}

/* Whether what runs on a CPU fills a hole: threads that wake up look there first, and its time is not charged. */
static __always_inline void set_hole(struct domain_state *d, struct cpu_state *c, bool hole)
{
	u64 lane = pol_lane(c->lane);

	c->hole = hole;
	if (hole)
		__sync_fetch_and_or(&d->holes, lane);
	else if (d->holes & lane)
		__sync_fetch_and_and(&d->holes, ~lane);
}

#endif
