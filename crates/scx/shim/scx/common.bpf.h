/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The interface of sched_ext and of BPF as far as schedulers here use it, for C that runs in this
 * process: types, flags, kfuncs, iterators. What needs the kernel's state is answered in Rust
 * (src/kfunc.rs); what is arithmetic on masks is done here.
 *
 * State: nothing is global. `shim_here` is this thread's pointer to what a CPU of the instance that
 * runs now knows; state that BPF keeps in globals and maps belongs to the instance (INSTEP_STATE).
 */
#ifndef SHIM_SCX_COMMON_H
#define SHIM_SCX_COMMON_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "intf.h"

/* --- the compiler's side of BPF -------------------------------------------------------------- */

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#define __noinline __attribute__((noinline))
#define __weak __attribute__((weak))
#define __hidden
#define __arg_trusted
#define __arg_nonnull
#define __ksym
#define __kptr
#define SEC(name) __attribute__((unused))
#define barrier_var(var) ((void)(var))
#define barrier() __asm__ volatile("" ::: "memory")
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile __typeof__(x) *)&(x) = (v))
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define bpf_core_field_exists(x) 1
#define bpf_ksym_exists(x) 1

#define bpf_for(i, first, end)                                                    \
	for (s64 ___n = (first), ___end = (end); ___n < ___end && ((i) = ___n, 1); ___n++)
#define bpf_repeat(n) for (u64 ___n = (n); ___n; ___n--)

#define BPF_PROG(name, args...) name(args)
#define BPF_STRUCT_OPS(name, args...) name(args)
#define BPF_STRUCT_OPS_SLEEPABLE(name, args...) name(args)
#define SCX_OPS_DEFINE(ops, ...) const struct sched_ext_ops ops = { __VA_ARGS__ }
#define UEI_DEFINE(name) extern int name##_is_the_shims
#define UEI_RECORD(name, info) ((void)(info))

/* --- constants (include/linux/sched/ext.h, kernel/sched/ext_internal.h, Linux 7.2) -------------- */

enum {
	PF_EXITING = 0x4,
	PF_KTHREAD = 0x00200000,
	SCX_TASK_QUEUED = 1u << 0,
};

#define SCX_DSQ_INVALID (1ull << 63)
#define SCX_DSQ_GLOBAL (1ull << 63 | 1)
#define SCX_DSQ_LOCAL (1ull << 63 | 2)
#define SCX_DSQ_LOCAL_ON (1ull << 63 | 1ull << 62)
#define SCX_DSQ_LOCAL_CPU_MASK 0xffffffffull

#define SCX_SLICE_DFL (20ull * 1000 * 1000)
#define SCX_SLICE_INF (~0ull)

#define SCX_ENQ_WAKEUP 0x1ull
#define SCX_ENQ_HEAD 0x10ull
#define SCX_ENQ_CPU_SELECTED 0x400ull
#define SCX_ENQ_PREEMPT (1ull << 32)
#define SCX_ENQ_REENQ (1ull << 40)
#define SCX_ENQ_LAST (1ull << 41)

#define SCX_DEQ_SLEEP 0x1ull
#define SCX_DEQ_CORE_SCHED_EXEC (1ull << 32)
#define SCX_DEQ_SCHED_CHANGE (1ull << 33)

#define SCX_WAKE_FORK 0x4ull
#define SCX_WAKE_TTWU 0x8ull
#define SCX_WAKE_SYNC 0x10ull

#define SCX_KICK_IDLE 1ull
#define SCX_KICK_PREEMPT 2ull
#define SCX_KICK_WAIT 4ull

#define SCX_PICK_IDLE_CORE 1ull
#define SCX_PICK_IDLE_IN_NODE 2ull

#define SCX_OPS_KEEP_BUILTIN_IDLE (1ull << 0)
#define SCX_OPS_ENQ_LAST (1ull << 1)
#define SCX_OPS_ENQ_EXITING (1ull << 2)
#define SCX_OPS_SWITCH_PARTIAL (1ull << 3)
#define SCX_OPS_ENQ_MIGRATION_DISABLED (1ull << 4)
#define SCX_OPS_ALLOW_QUEUED_WAKEUP (1ull << 5)

#define SCX_DSQ_ITER_REV (1ull << 16)

#define __COMPAT_is_enq_cpu_selected(flags) (!!((flags) & SCX_ENQ_CPU_SELECTED))

/* --- types; src/abi.rs has the same, and a test compares them --------------------------------------- */

#define SHIM_MAX_CPUS 1024

struct cpumask {
	u64 bits[SHIM_MAX_CPUS / 64];
};

struct sched_ext_entity {
	u64 slice;
	u64 dsq_vtime;
	u32 flags;
	u32 weight;
};

struct task_struct {
	s32 pid;
	s32 tgid;
	u32 flags;
	s32 nr_cpus_allowed;
	s32 prio; /* 120 of all: there is no other class */
	u64 start_time;
	u64 start_boottime;
	const struct cpumask *cpus_ptr;
	struct sched_ext_entity scx;
	struct {
		u64 sum_exec_runtime;
	} se;
	u16 migration_disabled;
	u8 on_cpu; /* 0: nobody asks but where a thread leaves for another class */
	u8 stored; /* its storage was made */
	u8 in_kernel; /* and does not leave it soon: 0 but where a test says so */
	u32 index;
	u32 group; /* its cgroup's number among those that the instance knows (struct shim_group), 0 for none */
	s32 rcu_read_lock_nesting;
	void *storage;
	char comm[16];
	struct task_struct *group_leader; /* of a thread that leads its group: nobody asks */
};

/* A power of two. */
#define SHIM_MAX_GROUPS 4096

/* A cgroup: its weight and CPU limit, as in the kernel's struct task_group, and the number of the one above it. */
struct shim_group {
	u64 shares;
	u64 quota;
	u64 period;
	u64 burst;
	u64 above;
	u32 owner; /* the number of the user that owns the cgroup */
};

/* What the CPU on which the program runs knows. */
struct shim_here {
	void *kernel;
	void *state;
	void *threads;
	struct task_struct *current;
	const struct cpumask *idle;
	const struct cpumask *idle_cores;
	const struct cpumask *online;
	u64 now;
	s32 cpu;
	u32 nr_cpus;
	u32 nr_threads;
	u32 in_interrupt;
};

struct scx_init_task_args {
	bool fork;
};

struct scx_exit_task_args {
	bool cancelled;
};

struct scx_exit_info {
	s32 kind;
	s64 exit_code;
	const char *reason;
	const char *msg;
};

struct scx_cpu_release_args {
	s32 reason;
	struct task_struct *task;
};

struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dequeue)(struct task_struct *p, u64 deq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*tick)(struct task_struct *p);
	void (*runnable)(struct task_struct *p, u64 enq_flags);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	bool (*yield)(struct task_struct *from, struct task_struct *to);
	void (*set_weight)(struct task_struct *p, u32 weight);
	void (*set_cpumask)(struct task_struct *p, const struct cpumask *cpumask);
	void (*update_idle)(s32 cpu, bool idle);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	void (*exit_task)(struct task_struct *p, struct scx_exit_task_args *args);
	void (*enable)(struct task_struct *p);
	void (*disable)(struct task_struct *p);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	void (*cpu_release)(s32 cpu, struct scx_cpu_release_args *args); /* never called */
	u64 flags;
	u32 dispatch_max_batch;
	u32 timeout_ms;
	char name[128];
};

extern __thread const struct shim_here *shim_here;

/* --- answered in Rust ------------------------------------------------------------------------------ */

struct bpf_iter_scx_dsq {
	u64 dsq_id;
	u64 flags;
	u64 after_vtime;
	s64 after_place;
	u64 before_seq;
	u64 slice;
	u64 vtime;
	u32 begun;
	u32 set;
};

s32 shim_create_dsq(void *kernel, u64 dsq_id);
void shim_destroy_dsq(void *kernel, u64 dsq_id);
s32 shim_nr_queued(void *kernel, u64 dsq_id);
void shim_insert(void *kernel, struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime, u64 enq_flags,
		 bool ordered);
bool shim_move_to_local(void *kernel, u64 dsq_id, u64 enq_flags);
void shim_iter_begin(void *kernel, struct bpf_iter_scx_dsq *it);
struct task_struct *shim_iter_next(void *kernel, struct bpf_iter_scx_dsq *it);
bool shim_move(void *kernel, struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
	       u64 enq_flags, bool ordered);
void shim_kick(void *kernel, s32 cpu, u64 flags);
void shim_ask_performance(void *kernel, s32 cpu, u32 performance);
s32 shim_task_cpu(void *kernel, const struct task_struct *p);
bool shim_task_running(void *kernel, const struct task_struct *p);
struct task_struct *shim_task_of_pid(void *kernel, s32 pid);
struct task_struct *shim_cpu_curr(void *kernel, s32 cpu);
s32 shim_pick_idle(void *kernel, const struct cpumask *allowed, u64 flags);
bool shim_claim_idle(void *kernel, s32 cpu);
s32 shim_cpu_node(void *kernel, s32 cpu);
u32 shim_random(void *kernel);
u32 shim_any(void *kernel, const struct cpumask *a, const struct cpumask *b);
void shim_error(void *kernel, const char *what);
void shim_emit(void *kernel, u64 now, u32 kind, u32 vm, u64 a, u64 b);
void shim_timer(void *kernel, void *timer, void *callback, void *map, void *key, u64 at);

#define HERE shim_here
#define KERNEL (HERE->kernel)

static __always_inline s32 scx_bpf_create_dsq(u64 dsq_id, s32 node)
{
	(void)node;
	return shim_create_dsq(KERNEL, dsq_id);
}

static __always_inline void scx_bpf_destroy_dsq(u64 dsq_id)
{
	shim_destroy_dsq(KERNEL, dsq_id);
}

static __always_inline s32 scx_bpf_dsq_nr_queued(u64 dsq_id)
{
	return shim_nr_queued(KERNEL, dsq_id);
}

static __always_inline bool scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags)
{
	shim_insert(KERNEL, p, dsq_id, slice, 0, enq_flags, false);
	return true;
}

static __always_inline bool scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice,
						     u64 vtime, u64 enq_flags)
{
	shim_insert(KERNEL, p, dsq_id, slice, vtime, enq_flags, true);
	return true;
}

static __always_inline bool scx_bpf_dsq_move_to_local(u64 dsq_id, u64 enq_flags)
{
	return shim_move_to_local(KERNEL, dsq_id, enq_flags);
}

static __always_inline struct bpf_iter_scx_dsq bpf_iter_scx_dsq_begin(u64 dsq_id, u64 flags)
{
	struct bpf_iter_scx_dsq it = { .dsq_id = dsq_id, .flags = flags };

	shim_iter_begin(KERNEL, &it);
	return it;
}

static __always_inline struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it)
{
	return shim_iter_next(KERNEL, it);
}

/* The first thread of a queue, NULL if it is empty. */
static __always_inline struct task_struct *__COMPAT_scx_bpf_dsq_peek(u64 dsq_id)
{
	struct bpf_iter_scx_dsq it = bpf_iter_scx_dsq_begin(dsq_id, 0);

	return bpf_iter_scx_dsq_next(&it);
}

#define bpf_for_each(type, cur, args...)                                \
	for (struct bpf_iter_##type ___it = bpf_iter_##type##_begin(args); \
	     ((cur) = bpf_iter_##type##_next(&___it));)
#define BPF_FOR_EACH_ITER (&___it)

static __always_inline void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it, u64 slice)
{
	it->slice = slice;
	it->set |= 1;
}

static __always_inline void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it, u64 vtime)
{
	it->vtime = vtime;
	it->set |= 2;
}

static __always_inline bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
					     u64 enq_flags)
{
	return shim_move(KERNEL, it, p, dsq_id, enq_flags, false);
}

static __always_inline bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p,
						   u64 dsq_id, u64 enq_flags)
{
	return shim_move(KERNEL, it, p, dsq_id, enq_flags, true);
}

static __always_inline void scx_bpf_kick_cpu(s32 cpu, u64 flags)
{
	shim_kick(KERNEL, cpu, flags);
}

static __always_inline s32 scx_bpf_task_cpu(const struct task_struct *p)
{
	return shim_task_cpu(KERNEL, p);
}

static __always_inline bool scx_bpf_task_running(const struct task_struct *p)
{
	return shim_task_running(KERNEL, p);
}

static __always_inline bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice)
{
	p->scx.slice = slice;
	return true;
}

static __always_inline bool scx_bpf_task_set_dsq_vtime(struct task_struct *p, u64 vtime)
{
	p->scx.dsq_vtime = vtime;
	return true;
}

static __always_inline struct task_struct *scx_bpf_cpu_curr(s32 cpu)
{
	return shim_cpu_curr(KERNEL, cpu);
}

static __always_inline s32 scx_bpf_pick_idle_cpu(const struct cpumask *allowed, u64 flags)
{
	return shim_pick_idle(KERNEL, allowed, flags);
}

static __always_inline bool scx_bpf_test_and_clear_cpu_idle(s32 cpu)
{
	return shim_claim_idle(KERNEL, cpu);
}

static __always_inline const struct cpumask *scx_bpf_get_idle_cpumask(void)
{
	return HERE->idle;
}

static __always_inline const struct cpumask *scx_bpf_get_idle_smtmask(void)
{
	return HERE->idle_cores;
}

static __always_inline const struct cpumask *scx_bpf_get_online_cpumask(void)
{
	return HERE->online;
}

static __always_inline const struct cpumask *scx_bpf_get_possible_cpumask(void)
{
	return HERE->online;
}

static __always_inline void scx_bpf_put_idle_cpumask(const struct cpumask *mask)
{
	(void)mask;
}

static __always_inline void scx_bpf_put_cpumask(const struct cpumask *mask)
{
	(void)mask;
}

static __always_inline u64 scx_bpf_now(void)
{
	return HERE->now;
}

static __always_inline u64 bpf_ktime_get_ns(void)
{
	return HERE->now;
}

static __always_inline u32 scx_bpf_nr_cpu_ids(void)
{
	return HERE->nr_cpus;
}

/* All CPUs are alike. */
static __always_inline u32 scx_bpf_cpuperf_cap(s32 cpu)
{
	return 1024;
}

static __always_inline void scx_bpf_cpuperf_set(s32 cpu, u32 performance)
{
	shim_ask_performance(KERNEL, cpu, performance);
}

static __always_inline s32 scx_bpf_cpu_node(s32 cpu)
{
	return shim_cpu_node(KERNEL, cpu);
}

/* There is no higher class that could take a CPU, so nothing has to be put in order again. */
static __always_inline bool __COMPAT_scx_bpf_reenqueue_local_from_anywhere(void)
{
	return false;
}

static __always_inline bool __COMPAT_has_generic_reenq(void)
{
	return false;
}

static __always_inline void scx_bpf_reenqueue_local_from_anywhere(void)
{
	shim_error(KERNEL, "a local queue is put in order where there is no higher class");
}

static __always_inline u32 scx_bpf_reenqueue_local(void)
{
	shim_error(KERNEL, "a local queue is put in order where there is no higher class");
	return 0;
}

static __always_inline void scx_bpf_dsq_reenq___compat(u64 dsq_id, u64 flags)
{
	(void)dsq_id;
	(void)flags;
	shim_error(KERNEL, "a local queue is put in order where there is no higher class");
}

#define scx_bpf_error(fmt, args...) shim_error(KERNEL, fmt)

/* --- BPF's helpers -------------------------------------------------------------------------------- */

static __always_inline u32 bpf_get_smp_processor_id(void)
{
	return HERE->cpu;
}

static __always_inline u32 bpf_get_prandom_u32(void)
{
	return shim_random(KERNEL);
}

static __always_inline struct task_struct *bpf_get_current_task_btf(void)
{
	return HERE->current;
}

static __always_inline int bpf_in_interrupt(void)
{
	return HERE->in_interrupt;
}

static __always_inline struct task_struct *bpf_task_from_pid(s32 pid)
{
	return shim_task_of_pid(KERNEL, pid);
}

static __always_inline void bpf_task_release(struct task_struct *p)
{
	(void)p;
}

static __always_inline bool is_migration_disabled(const struct task_struct *p)
{
	return p->migration_disabled;
}

static __always_inline void bpf_rcu_read_lock(void)
{
}

static __always_inline void bpf_rcu_read_unlock(void)
{
}

#include "masks.bpf.h"

/* --- timers: the callback comes with the map and key that it was set with --------------------------- */

struct bpf_timer {
	void *map;
	void *callback;
};

#define CLOCK_MONOTONIC 1
#define BPF_F_TIMER_CPU_PIN 2

static __always_inline int bpf_timer_init(struct bpf_timer *timer, void *map, int clock)
{
	timer->map = map;
	return 0;
}

#define bpf_timer_set_callback(timer, function) ((timer)->callback = (void *)(function), 0)

static __always_inline int bpf_timer_start(struct bpf_timer *timer, u64 ns, u64 flags)
{
	shim_timer(KERNEL, timer, timer->callback, timer->map, NULL, HERE->now + ns);
	return 0;
}

static __always_inline int bpf_timer_cancel(struct bpf_timer *timer)
{
	shim_timer(KERNEL, timer, NULL, NULL, NULL, 0);
	return 0;
}

/* --- what bpf/state.bpf.h leaves to its environment ------------------------------------------------- */

#define INSTEP_STATE ((struct host_state *)HERE->state)

struct task_state;

static __always_inline struct task_state *task_of(struct task_struct *p)
{
	return p->stored ? p->storage : NULL;
}

static __always_inline struct task_state *new_task_of(struct task_struct *p)
{
	p->stored = 1;
	return p->storage;
}

static __always_inline struct instep_thread *thread_of(u32 tid)
{
	struct instep_thread *entry = (struct instep_thread *)HERE->threads + tid;

	return tid < HERE->nr_threads && entry->start_ticks ? entry : NULL;
}

static __always_inline void emit(u64 now, u32 kind, u32 vm, u64 a, u64 b)
{
	shim_emit(KERNEL, now, kind, vm, a, b);
}

#endif
