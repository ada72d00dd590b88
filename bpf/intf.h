/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The one ABI between the kernel scheduler and user space: VM table, thread table, settings,
 * counters, events. User space reads the layout from the BPF object's BTF, so nothing mirrors it.
 *
 * Clocks: every `_ns` that is a time is CLOCK_MONOTONIC as the scheduler's programs see it.
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

/* Sizes of tables, powers of two. */
#define INSTEP_MAX_CPUS 1024
/* A scheduling domain has at most so many CPUs: a set of them is one word. */
#define INSTEP_LANES 64
#define INSTEP_MAX_DOMAINS 64
#define INSTEP_MAX_VMS 4096
/* vCPUs of all VMs together; each has a slot, those of one VM lie side by side. */
#define INSTEP_MAX_SLOTS 32768
#define INSTEP_MAX_VCPUS 512
#define INSTEP_MAX_THREADS 65536
/* Cgroups that are known, and CPU limits of cgroups (group.bpf.h, limit.bpf.h). */
#define INSTEP_MAX_LIMITS 65536
/* Waits of a vCPU are counted by the number of bits of their microseconds. */
#define INSTEP_WAITS 32
/* Domains in which one gang can lie. */
#define INSTEP_MAX_PARTS 16

/* Index 0 of the VM table stands for everything that belongs to no VM. */
#define INSTEP_HOST 0
#define INSTEP_NO_SLOT 0xffffffffu
#define INSTEP_NO_NODE (-1)

/* Mechanisms, each with its flag. */
#define INSTEP_M_GANG (1u << 0)	 /* VMs whose vCPUs hardly ever block run in gang slots */
#define INSTEP_M_SHARES (1u << 1) /* time is charged by what a VM is entitled to, not by weight alone */
#define INSTEP_M_CORES (1u << 2) /* a wholly idle core before an idle sibling thread */
#define INSTEP_M_HOME (1u << 3)	 /* the home node first, others when it is full */
#define INSTEP_M_WAKE (1u << 4)	 /* a wake-up may preempt an account that is further along */
#define INSTEP_M_HOLES (1u << 5) /* gangs fill holes of a slot, and are not charged for it */
#define INSTEP_M_MOVES (1u << 6) /* gang sets move to where there is less load */
#define INSTEP_M_SPAN (1u << 7)	 /* a VM wider than a domain forms a gang in several */
#define INSTEP_M_TRIAL (1u << 8) /* a VM that blocks is tried as a gang, seldom */
#define INSTEP_M_HOST (1u << 9)	 /* threads of the host have windows in gang slots */
#define INSTEP_M_ALL ((1u << 10) - 1)

/* Co-scheduling of one VM. */
enum instep_cosched {
	INSTEP_COSCHED_AUTO = 0,    /* a gang as far as its vCPUs hardly ever block */
	INSTEP_COSCHED_NEVER = 1,
	INSTEP_COSCHED_RELAXED = 2, /* a gang of all its vCPUs, whatever they do */
};

/* Settings of the whole scheduler; may change while it runs. */
struct instep_settings {
	u64 slice_ns;	   /* how long a thread runs when others wait */
	u64 slot_ns;	   /* length of a gang slot */
	u64 wake_slack_ns; /* virtual time by which a waker must be behind what it preempts */
	u64 lag_ns;	   /* most virtual time that an account may save or owe */
	u32 host_weight;   /* in each domain, of the threads that belong to no VM together, while `thread_weight` is 0 */
	u32 thread_weight; /* what such a thread weighs on average, thousandths of a CPU (group.bpf.h) */
	u32 mechanisms;	   /* INSTEP_M_* */
	u32 nr_cpus;	   /* one more than the last CPU that is online */
	u32 nr_domains;
	u32 nr_slots;	   /* of vCPUs for which there are queues; fixed when it is loaded */
	u32 generation;	   /* of the thread table: threads look themselves up again when it grows */
};

/* What user space says of a VM. */
struct instep_vm_settings {
	u64 period_ns;	/* allocation period */
	u32 weight;	/* cpu.weight or, while `thread_weight` is set, thousandths of a CPU; at least 1; 0: no such VM */
	s32 home_node;	/* or INSTEP_NO_NODE */
	u32 cosched;	/* enum instep_cosched */
	u32 first_slot; /* of its vCPUs */
	u32 nr_vcpus;
	u32 latency;	/* microseconds of virtual time by which its wake-ups are preferred, 0..10000 */
};

/* One thread of a VM, by thread id. */
struct instep_thread {
	u64 start_ticks; /* start time in clock ticks (1/100 s) since boot, as /proc/PID/stat has it */
	u32 vm;
	u32 slot; /* INSTEP_NO_SLOT for helpers (main loop, I/O, vhost): charged to the VM */
};

enum instep_counter {
	INSTEP_C_SWITCH,	/* threads put on a CPU */
	INSTEP_C_IDLE_CORE,	/* wake-ups that found a wholly idle core */
	INSTEP_C_IDLE_CPU,	/* others that found an idle CPU */
	INSTEP_C_IDLE_REMOTE,	/* those that found one in another domain */
	INSTEP_C_QUEUED,	/* threads that had to wait */
	INSTEP_C_STOLEN,	/* threads taken from another domain's queue by a CPU that had nothing to do */
	INSTEP_C_WAKE_SIBLING,	/* wake-ups of a vCPU by a sibling */
	INSTEP_C_WAKE_TIMER,	/* in an interrupt */
	INSTEP_C_WAKE_IO,	/* by another thread */
	INSTEP_C_WAKE_SYNC,	/* that went to the CPU of the thread that woke them up, which was about to sleep */
	INSTEP_C_WAKE_PREEMPT,	/* wake-ups that preempted a thread that forms no gang */
	INSTEP_C_WAKE_HOLE,	/* that preempted a gang's vCPU in a hole */
	INSTEP_C_WAKE_TEAR,	/* that preempted a vCPU of a gang in its slot */
	INSTEP_C_SLOT,		/* gang slots planned */
	INSTEP_C_GRANT,		/* gangs that had a slot */
	INSTEP_C_REFUSED,	/* gangs that had to wait for another slot */
	INSTEP_C_SPAN,		/* slots promised to gangs of several domains */
	INSTEP_C_SLOT_KICK,	/* CPUs told at the start of a slot to choose again */
	INSTEP_C_HOLE,		/* vCPUs of gangs that filled a hole */
	INSTEP_C_MOVE_SET,	/* gang sets that moved within their domain */
	INSTEP_C_MOVE_DOMAIN,	/* VMs that moved to another domain */
	INSTEP_C_MOVE_THREAD,	/* threads of the host that moved to another domain */
	INSTEP_C_OVERDUE,	/* accounts and threads that went first for having waited too long */
	INSTEP_C_EXPIRED,	/* accounts whose saved time expired */
	INSTEP_C_CLAMPED,	/* accounts whose debt was shortened */
	INSTEP_C_KTHREAD,	/* per-CPU kernel threads put first */
	INSTEP_C_GANG_ON,	/* VMs that became a gang */
	INSTEP_C_GANG_OFF,
	INSTEP_C_CORE_LEFT,	/* vCPUs that left a shared core for an idle one */
	INSTEP_C_EVENT_LOST,	/* events that user space was too slow to take */
	INSTEP_C_HELD,		/* times that a thread had to wait for the refill of a CPU limit */
	INSTEP_C_LIMIT_LOST,	/* CPU limits that were found and for which there was no room */
	INSTEP_C_GROUP_LOST,	/* cgroups that were found and for which there was no room */
	INSTEP_C_REWEIGHED,	/* cgroups that were found with another weight than before */
	INSTEP_C_TRIAL,		/* trials of VMs as gangs */
	INSTEP_C_HOST_WINDOW,	/* CPUs that served the host's threads in a gang slot */
	INSTEP_NR_COUNTERS,
};

enum instep_event_kind {
	INSTEP_E_GANG_ON = 1, /* a: vCPUs of the gang, b: CPU time of the window */
	INSTEP_E_GANG_OFF = 2,
};

struct instep_event {
	u64 at_ns;
	u64 a;
	u64 b;
	u32 kind;
	u32 vm;
};

#endif
