/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The one ABI between the kernel scheduler and user space: VM table, thread table, settings,
 * counters, events. User space reads the layout from the BPF object's BTF, so nothing mirrors it.
 *
 * Clocks: every `_ns` that is a time is CLOCK_MONOTONIC as the scheduler's programs see it; virtual
 * times are nanoseconds of CPU time at weight 100.
 */
#ifndef INSTEP_INTF_H
#define INSTEP_INTF_H

#ifndef __VMLINUX_H__
#include <stdbool.h>
#include <stdint.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;
#endif

#define INSTEP_MAX_CPUS 512
#define INSTEP_MAX_VMS 256
/* vCPUs of all VMs together; each has a slot, those of one VM lie side by side. */
#define INSTEP_MAX_SLOTS 4096
#define INSTEP_MAX_VCPUS 512
#define INSTEP_MAX_THREADS 16384

/* Index 0 of the VM table stands for everything that belongs to no VM. */
#define INSTEP_HOST 0
#define INSTEP_NO_SLOT 0xffffffffu
#define INSTEP_NO_NODE (-1)

/* Mechanisms, each with its flag. */
#define INSTEP_M_SHARES (1u << 0)  /* VMs are charged as a whole; unused time expires */
#define INSTEP_M_BALANCE (1u << 1) /* siblings in separate queues */
#define INSTEP_M_CORES (1u << 2)   /* a wholly idle core before an idle sibling thread */
#define INSTEP_M_HOME (1u << 3)    /* the home node first, others when it is full */
#define INSTEP_M_BOOST (1u << 4)   /* a VM held up by a bottleneck gets it first */
#define INSTEP_M_GANG (1u << 5)    /* relaxed co-scheduling */
#define INSTEP_M_YIELD (1u << 6)   /* directed yield is followed */
#define INSTEP_M_WAKE (1u << 7)    /* a wake-up may preempt a VM that is further along */
#define INSTEP_M_PULL (1u << 8)    /* a CPU takes over a waiter that is far behind */
#define INSTEP_M_PROBE (1u << 9)   /* VMs that block are tried together now and then */
#define INSTEP_M_GATHER (1u << 10) /* VMs that hand over at a fine grain run on one CPU */
#define INSTEP_M_HOST (1u << 11)   /* host threads that mostly sleep, and per-CPU ones, go first */
#define INSTEP_M_RESCUE (1u << 12) /* what waits for a CPU that a higher class has is fetched */
#define INSTEP_M_TURNS (1u << 13)  /* siblings that share a CPU take turns shorter than a tick */
#define INSTEP_M_SKEW (1u << 14)   /* who is too far ahead of a sibling gives way */
#define INSTEP_M_STAY (1u << 15)   /* whom a kernel thread bound to its CPU interrupts waits there */
#define INSTEP_M_ALL ((1u << 16) - 1)

/* Co-scheduling of one VM. */
enum instep_cosched {
	INSTEP_COSCHED_AUTO = 0,
	INSTEP_COSCHED_NEVER = 1,
	INSTEP_COSCHED_RELAXED = 2,
	INSTEP_COSCHED_STRICT = 3,
};

/* Settings of the whole scheduler; may change while it runs. */
struct instep_settings {
	u64 slice_ns;	    /* how long a thread runs when others wait */
	u64 episode_ns;	    /* how long siblings run together */
	u64 skew_ns;	    /* how far a vCPU may run ahead of a waiting sibling */
	u64 wake_slack_ns;  /* virtual time by which a waker may be ahead of what it preempts */
	u64 boost_ns;	    /* virtual time by which a bottleneck is preferred */
	u64 pull_ns;	    /* virtual time behind which a waiter is taken over */
	u64 debt_ns;	    /* most that anything may be ahead of or behind its CPU */
	u32 host_weight;    /* of everything that belongs to no VM, together */
	u32 mechanisms;	    /* INSTEP_M_* */
	u32 nr_cpus;	    /* one more than the last CPU that is online */
	u32 generation;	    /* of the thread table: threads look themselves up again when it grows */
};

/* What user space says of a VM. */
struct instep_vm_settings {
	u64 period_ns;	/* allocation period */
	u32 weight;	/* 1..10000 as cpu.weight; 0: no such VM */
	s32 home_node;	/* or INSTEP_NO_NODE */
	u32 cosched;	/* enum instep_cosched */
	u32 first_slot; /* of its vCPUs */
	u32 nr_vcpus;
	u32 latency;	/* virtual microseconds by which its wake-ups are preferred, 0..10000 */
};

/* One thread of a VM, by thread id. */
struct instep_thread {
	u64 start_ticks; /* start time in clock ticks (1/100 s) since boot, as /proc/PID/stat has it */
	u32 vm;
	u32 slot; /* INSTEP_NO_SLOT for helpers (main loop, I/O, vhost): charged to the VM, woken promptly */
};

enum instep_counter {
	INSTEP_C_SWITCH,	/* threads put on a CPU */
	INSTEP_C_IDLE_CORE,	/* wake-ups that found a wholly idle core */
	INSTEP_C_IDLE_CPU,	/* others that found an idle CPU */
	INSTEP_C_IDLE_REMOTE,	/* those that found one away from the home node */
	INSTEP_C_QUEUED,	/* threads that had to wait */
	INSTEP_C_MOVED_APART,	/* vCPUs put elsewhere because a sibling was there */
	INSTEP_C_STACKED,	/* vCPUs put where a sibling is, as every CPU had one */
	INSTEP_C_STOLEN,	/* threads taken by a CPU that had nothing to do */
	INSTEP_C_PULLED,	/* threads taken because they were far behind */
	INSTEP_C_WAKE_SIBLING,	/* wake-ups of a vCPU by a sibling */
	INSTEP_C_WAKE_TIMER,	/* in an interrupt */
	INSTEP_C_WAKE_IO,	/* by another thread */
	INSTEP_C_WAKE_PREEMPT,	/* wake-ups that preempted */
	INSTEP_C_TICK_PREEMPT,	/* slices cut short for a waiter */
	INSTEP_C_EPISODE,	/* episodes begun */
	INSTEP_C_EPISODE_KICK,	/* CPUs told to run a sibling */
	INSTEP_C_SKEW_STOP,	/* vCPUs that gave way only for being ahead of a sibling */
	INSTEP_C_HOLES_LEFT,	/* times that a CPU stayed empty beside a strict episode */
	INSTEP_C_BOOST,		/* vCPUs put on a CPU while their VM was held up by a bottleneck */
	INSTEP_C_YIELD,		/* directed yields followed */
	INSTEP_C_YIELD_MISSED,	/* directed yields that could not be */
	INSTEP_C_EXPIRED,	/* allocation periods whose unused time expired */
	INSTEP_C_CLAMPED,	/* virtual times brought within the bound */
	INSTEP_C_KTHREAD,	/* per-CPU kernel threads put first */
	INSTEP_C_GANG_ON,	/* VMs found to need co-scheduling */
	INSTEP_C_GANG_OFF,
	INSTEP_C_PROBE,		/* VMs that block tried together */
	INSTEP_C_MISSED,	/* a chosen thread was gone when it was to be taken */
	INSTEP_C_GATHER_TRIAL,	/* VMs gathered to see whether it pays */
	INSTEP_C_GATHER_ON,	/* of these, it paid */
	INSTEP_C_GATHER_OFF,	/* VMs no longer gathered */
	INSTEP_C_HANDED_OVER,	/* wake-ups of a sibling on the waker's own CPU */
	INSTEP_C_KICK_SAVED,	/* CPUs not told to run a sibling, as it would not be chosen */
	INSTEP_C_HOLES_ENDED,	/* strict episodes ended as no sibling ran any more */
	INSTEP_C_IDLE_HOME,	/* wake-ups of a VM with a home that found an idle CPU there */
	INSTEP_C_PROMPT,	/* wake-ups that preempted only by their VM's latency class */
	INSTEP_C_RESCUED,	/* threads fetched from a CPU that a higher class has */
	INSTEP_C_CORE_LEFT,	/* vCPUs that left a shared core for an idle one */
	INSTEP_C_CAME_HOME,	/* vCPUs that ran on another node and went home without having slept */
	INSTEP_C_OVERDUE,	/* threads that went first for having waited too long */
	INSTEP_C_PROBE_KEPT,	/* trials together that were kept */
	INSTEP_C_TURN,		/* turns of siblings on one CPU that the timer ended */
	INSTEP_C_STAYED,	/* vCPUs that waited for a kernel thread of their CPU to be gone again */
	INSTEP_C_LIGHT,		/* host threads that went first as they mostly sleep */
	INSTEP_C_EVENT_LOST,	/* events that user space was too slow to take */
	INSTEP_NR_COUNTERS,
};

enum instep_event_kind {
	INSTEP_E_GANG_ON = 1, /* a: blocks in the window, b: CPU time in it */
	INSTEP_E_GANG_OFF = 2,
	INSTEP_E_PROBE = 3,
	INSTEP_E_PROBE_KEPT = 4,
	INSTEP_E_GATHER = 5, /* a: wake-ups by siblings in the trial, b: CPU time in it */
	INSTEP_E_GATHER_KEPT = 6,
	INSTEP_E_GATHER_OFF = 7,
};

struct instep_event {
	u64 at_ns;
	u64 a;
	u64 b;
	u32 kind;
	u32 vm;
};

#endif
