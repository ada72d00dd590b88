/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the scheduler remembers: one struct for the host, one entry per CPU, VM and vCPU slot, and
 * a small record per thread. Everything is reached through the accessors here, so that another
 * environment (the simulator) can keep one copy per run: it defines INSTEP_STATE and the functions
 * that look in maps.
 *
 * Flag: none. Counters: events_lost.
 *
 * Concurrency: an entry of a CPU is written by that CPU (and read racily by others); fields of VMs
 * are changed atomically or tolerate a lost update.
 */
#ifndef INSTEP_STATE_BPF_H
#define INSTEP_STATE_BPF_H

#include "intf.h"
#include "policy.h"

#define NO_CPU (-1)

enum slot_state { SLOT_BLOCKED, SLOT_QUEUED, SLOT_RUNNING };

struct cpu_state {
	u64 vtime;	/* of what was last chosen here: the CPU's own virtual time */
	u64 since;	/* from when on the running thread is still to be charged */
	u64 own_vtime;	/* of the running thread, if of no VM */
	u64 host_vtime;	/* own virtual time of the last thread of no VM chosen here */
	u64 host_ran_at; /* when one was last chosen, of those that had the slice that was owed to them */
	u64 host_owed;	/* what that was before one that was overdue was chosen, which runs; else 0 */
	u64 host_had;	/* of the slice that is owed */
	u64 turn_until;	/* what runs was overdue, and is not to give way before */
	u64 group_lead;	/* by how much the host's group_vtime is taken to be further along here */
	u64 first_at;	/* when a VM's thread was last chosen for being overdue */
	u64 taken_at;	/* since when a higher class has it, 0 if none does */
	u64 left_at;	/* when the last thread of this class stopped here */
	u32 tid;	/* of the running thread, 0 if none of this class */
	u32 vm;
	u32 slot;
	u32 weight;
	s32 node;	/* NUMA node, -1 while the CPU was offline when it was loaded */
	u32 gathered;	/* VMs that are gathered here */
	u32 held_vm;	/* by whose strict episode */
	s32 next_thread; /* the next CPU of its core, in a ring: itself if it is alone */
	u64 held_until;	/* it is held */
	u64 stint_at;	/* when a choice among all that wait was last made here */
	u64 brief_until; /* whom a thread bound to it interrupts stays until then; 0 once that is over */
	u64 deep_at;	/* when all that wait here were last looked at for who is overdue */
	u32 waiting;	/* in its queues, or taken from them and not running yet */
	u32 boosted;	/* what runs was chosen as the bottleneck of its VM */
	u64 counters[INSTEP_NR_COUNTERS];
};

struct vm_state {
	struct pol_account account;
	u64 episode_until;
	u64 window_at;	/* begin of the window of evidence */
	u64 ran_ns;	/* in this window */
	u64 wait_since; /* oldest entry of the wait table, 0 if none */
	u64 waits_removed_at; /* when all entries were removed last */
	u64 probe_at;	/* when to try it together next */
	u64 probe_gap;
	u64 total_ns;	/* CPU time since it is known */
	u64 total_blocks;
	u64 together_ns; /* time in which more than one of its vCPUs ran */
	u64 apart_ns;	/* time in which one ran while another waited for a CPU */
	u64 changed_at;	/* when nr_running or nr_queued last changed */
	u32 blocks;	/* in this window */
	u32 gang;	/* its siblings run together */
	u32 probing;	/* windows left of a trial */
	u32 nr_queued;	/* vCPUs that wait for a CPU */
	u32 nr_running;
	u32 generation; /* of the table when this entry was begun */
	u32 sibling_wakes; /* in this window: wake-ups of a vCPU by a sibling */
	u32 idle_wakes; /* in this window: wake-ups that found an idle CPU */
	u32 gathered;	/* enum gather_state */
	s32 gather_cpu;	/* or NO_CPU while none is chosen */
	u32 gather_windows; /* in this state */
	u32 spins;	/* known to spin: a trial kept it together, or it yields */
	u64 gather_at;	/* when it may be tried gathered, or is tried apart again */
	u64 gather_gap;
	u64 apart_ran;	/* CPU time and blocks in the window before a trial together */
	u32 apart_blocks;
	u32 pad;
	struct pol_handover apart; /* sums of windows apart, and of the trial gathered */
	struct pol_handover with;
	u32 on_cpu[INSTEP_MAX_CPUS]; /* vCPUs that run or wait on each CPU */
};

struct slot_info {
	u64 waits_since; /* its entry of the wait table, 0 if none (boost.bpf.h) */
	u64 queued_at;
	u64 ran_ns;	/* in the running episode */
	u64 episode;	/* which one that is */
	u32 cpu;
	u32 state;	/* enum slot_state */
	u32 sibling_wakes; /* share of its wake-ups by siblings, 0..256, exponential mean */
	u32 pad;
};

/* The timer that ends a turn on a CPU (turn.bpf.h). */
struct turn {
	struct bpf_timer timer;
	s32 cpu;
	u32 armed;
	u32 tid; /* whose turn it ends */
};

struct host_state {
	struct instep_settings set;
	u64 vtime;	/* the furthest of the CPUs' */
	u64 group_vtime; /* of all threads of no VM, together */
	u64 spinner_at;	/* when a VM that is known to spin was last seen to run */
	u64 gang_at;	/* when one that never blocks was, which might */
	u64 held_until;	/* the end of the latest strict episode that held CPUs */
	u32 all_vcpus;
	u32 online;	/* CPUs that were online when it was loaded */
	struct instep_vm_settings vm_set[INSTEP_MAX_VMS];
	struct vm_state vms[INSTEP_MAX_VMS];
	struct cpu_state cpus[INSTEP_MAX_CPUS];
	struct slot_info slots[INSTEP_MAX_SLOTS];
#ifdef INSTEP_STATE
	struct turn turn_timers[INSTEP_MAX_CPUS]; /* in BPF timers may be in maps only */
#endif
};

/* A thread. */
struct task_state {
	u64 vtime;	/* own, counted for threads of no VM */
	u64 yield_until; /* it was named by a directed yield: first until then */
	u64 queued_at;	/* it waits since, 0 if it does not */
	u64 waited_at;	/* before it ran last it had waited since, 0 if it had not */
	u64 came_at;	/* it runs since, or ran last */
	u64 turn_ran;	/* since it began to wait, in pieces of a turn that others ended */
	u32 generation;
	u32 vm;		/* INSTEP_HOST for none */
	u32 slot;	/* INSTEP_NO_SLOT for threads that are no vCPU */
	u32 weight;
	s32 target;	/* the CPU chosen at its wake-up, or NO_CPU */
	u32 placed;	/* it is counted on `cpu` of its slot */
	u32 placed_in;	/* by the entry of its VM that had this generation */
	u32 stays;	/* it was interrupted by a thread bound to its CPU, and waits for that one */
	u32 waits_on;	/* the CPU that counts it as waiting and one more, 0 if none does */
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
	__type(key, u32);
	__type(value, struct instep_thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, INSTEP_MAX_CPUS);
	__type(key, u32);
	__type(value, struct turn);
} turn_timers SEC(".maps");

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

static __always_inline struct turn *turn_of(u32 cpu)
{
	return bpf_map_lookup_elem(&turn_timers, &cpu);
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
#define turn_timers (INSTEP_STATE->turn_timers)

static __always_inline struct turn *turn_of(u32 cpu)
{
	return cpu < INSTEP_MAX_CPUS ? &turn_timers[cpu] : NULL;
}
#endif

#define SET (INSTEP_STATE->set)

/*
 * A function that the verifier checks once for all callers instead of again on every path that
 * leads to it; it takes scalars and pointers to plain memory.
 */
#define SEPARATE __noinline

static __always_inline bool on(u32 mechanism)
{
	return SET.mechanisms & mechanism;
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

/* Nobody serves the queues of a CPU that is offline, or that a higher class has. */
static __always_inline bool online(s32 cpu)
{
	struct cpu_state *c = cpu_of(cpu);

	return c && c->node >= 0 && !c->taken_at;
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

static __always_inline void count(enum instep_counter what)
{
	struct cpu_state *c = cpu_of(bpf_get_smp_processor_id());

	if (c && what < INSTEP_NR_COUNTERS)
		c->counters[what]++;
}

/* Whether an entry is of this thread: a thread id that was reused is told by its start time. */
static __always_inline bool is_of(struct instep_thread *entry, u64 start_boottime)
{
	return entry && entry->vm < INSTEP_MAX_VMS &&
	       entry->start_ticks == start_boottime / (10 * POL_MS);
}

/*
 * The thread's record, brought up to date with the table of threads (`start_boottime`, task_struct
 * since Linux 5.5). A thread that the table does not have yet is of the VM whose process it
 * belongs to: else a VM that starts many at once would compete with the agent that is to tell of
 * them (seen: 511 threads, and no cycle came to its end).
 */
static __noinline void look_up(struct task_struct *p, struct task_state *t)
{
	struct instep_thread *entry = thread_of(p->pid);

	t->generation = SET.generation;
	t->vm = INSTEP_HOST;
	t->slot = INSTEP_NO_SLOT;
	if (is_of(entry, p->start_boottime)) {
		t->vm = entry->vm;
		t->slot = entry->slot;
		return;
	}
	if (p->pid == p->tgid)
		return;
	entry = thread_of(p->tgid);
	if (is_of(entry, p->group_leader->start_boottime))
		t->vm = entry->vm;
}

#endif
