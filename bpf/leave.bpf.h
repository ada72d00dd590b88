/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where a thread stops under whose CPU limit nothing is left: on its way back to user space.
 *
 * Flag: none (part of the limits' promise). Counters: none.
 *
 * Problem: a thread that is stopped in the kernel may hold a lock there that the whole host waits for, for a period and longer. The
 * kernel's own limits let it run until it returns to user space (Linux 6.18, throttle_cfs_rq_work in kernel/sched/fair.c).
 * Method: the same. Such a thread is asked to leave: it gets a task work, which it does last in the kernel, or before its guest goes
 * on (bpf_task_work_schedule_resume, kernel/bpf/helpers.c, Linux 6.18). That says that the thread is at the border and wants it
 * preempted; only then it is held (held.bpf.h). Until then it runs and waits as others do, and what it uses is a debt of its
 * limit. In the work the thread may not be preempted: the work disables migration, so the thread would be bound to its CPU while it
 * is held. So the kick arrives while preemption is disabled, and preemption is enabled while interrupts are disabled, which
 * preempts nothing. The kernel looks for the wish to preempt soon after the work, on its way back to user space at the latest.
 * Limits: before Linux 6.18, or where there is no memory for the work, a thread is stopped wherever it is, as the kernel
 * did then. So are those that return to no user space though their limit is charged (PF_USER_WORKER: vhost, io_uring). While a
 * thread is held on a kernel that preempts itself, up to 4 s, no sleepable BPF program is freed (RCU Tasks Trace).
 */
#ifndef INSTEP_LEAVE_BPF_H
#define INSTEP_LEAVE_BPF_H

#include "limit.bpf.h"

/* Whether a thread may be stopped by a limit: it disabled nothing, and holds nothing of the kernel that only its end gives back. */
static __always_inline bool may_be_stopped(struct task_struct *p)
{
	return !is_migration_disabled(p) && !(p->flags & (PF_EXITING | PF_KTHREAD));
}

#ifdef __bpf__
#define PF_USER_WORKER 0x00004000 /* include/linux/sched.h, Linux 6.4 */

/* For so often it is looked whether a kick of the own CPU has arrived: some microseconds. */
#define KICK_LOOKS 1000

struct leaving {
	struct bpf_task_work work;
};

/* Two for each thread, of which one may be asked for while the other is done. Not by its id: execve gives that to another thread. */
struct leaving_key {
	u64 task;
	u64 which;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * INSTEP_MAX_LIMITS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct leaving_key);
	__type(value, struct leaving);
} leavings SEC(".maps");

extern int bpf_task_work_schedule_resume(struct task_struct *task, struct bpf_task_work *work, void *map__map,
					 bpf_task_work_callback_t callback) __weak __ksym;

/* Linux 6.18 and 6.19 have it with one parameter more, and 6.19 by another name. */
extern int bpf_task_work_schedule_resume___v6_18(struct task_struct *task, struct bpf_task_work *work, void *map__map,
						 bpf_task_work_callback_t callback, void *aux__prog) __weak __ksym;
extern int bpf_task_work_schedule_resume_impl(struct task_struct *task, struct bpf_task_work *work, void *map__map,
					      bpf_task_work_callback_t callback, void *aux__prog) __weak __ksym;

extern void bpf_preempt_disable(void) __weak __ksym;
extern void bpf_preempt_enable(void) __weak __ksym;
extern void bpf_local_irq_save(unsigned long *flags__irq_flag) __weak __ksym;
extern void bpf_local_irq_restore(unsigned long *flags__irq_flag) __weak __ksym;

static int at_border(struct bpf_map *map, void *key, void *leaving);

/* Asks a thread to leave the kernel; whether it will. */
SEPARATE int ask_to_leave(struct task_struct *p __arg_trusted, struct task_state *t)
{
	struct leaving_key key = { .task = (u64)p };
	struct leaving none = {}, *l;
	int error = -ENOSYS;

	if (!t || (p->flags & PF_USER_WORKER) || !bpf_ksym_exists(bpf_local_irq_save))
		return false;
	key.which = t->asked++ & 1;
	l = bpf_map_lookup_elem(&leavings, &key);
	if (!l) {
		bpf_map_update_elem(&leavings, &key, &none, BPF_NOEXIST);
		l = bpf_map_lookup_elem(&leavings, &key);
	}
	if (!l)
		return false;
	t->leaves = 1;
	if (bpf_ksym_exists(bpf_task_work_schedule_resume))
		error = bpf_task_work_schedule_resume(p, &l->work, &leavings, at_border);
	else if (bpf_ksym_exists(bpf_task_work_schedule_resume_impl))
		error = bpf_task_work_schedule_resume_impl(p, &l->work, &leavings, at_border, NULL);
	else if (bpf_ksym_exists(bpf_task_work_schedule_resume___v6_18))
		error = bpf_task_work_schedule_resume___v6_18(p, &l->work, &leavings, at_border, NULL);
	if (error)
		t->leaves = 0;
	return !error;
}

/* Wants the thread that runs preempted as soon as the program that calls this is over; whether the kernel has heard of it. */
static __always_inline bool preempt_after_this(struct task_struct *p)
{
	unsigned long flags;
	bool heard = false;

	bpf_preempt_disable();
	scx_bpf_kick_cpu(bpf_get_smp_processor_id(), SCX_KICK_PREEMPT);
	bpf_repeat(KICK_LOOKS) {
		heard = !*(volatile u64 *)&p->scx.slice;
		if (heard)
			break;
	}
	bpf_local_irq_save(&flags);
	bpf_preempt_enable();
	bpf_local_irq_restore(&flags);
	return heard;
}

/* A thread that was asked to leave is about to. */
static int at_border(struct bpf_map *map, void *key, void *leaving)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task_state *t = task_of(p);

	if (!t)
		return 0;
	t->leaves = 0;
	if (!(p->flags & PF_EXITING) && t->limit && limited_until(t->limit, limit_clock()))
		t->at_border = preempt_after_this(p);
	return 0;
}

/* A thread goes, or leaves this scheduler. */
static __always_inline void forget_leaving(struct task_struct *p, struct task_state *t)
{
	struct leaving_key key = { .task = (u64)p };

	if (!t->asked)
		return;
	t->leaves = 0;
	t->at_border = 0;
	bpf_map_delete_elem(&leavings, &key);
	key.which = 1;
	bpf_map_delete_elem(&leavings, &key);
}
#else
/* The simulated kernel says itself which threads it has not left. */
static __always_inline int ask_to_leave(struct task_struct *p, struct task_state *t)
{
	return p->in_kernel;
}

static __always_inline void forget_leaving(struct task_struct *p, struct task_state *t)
{
}
#endif

/* A thread that was held at the border goes on to the next one: those who wait for the end of its work do not wait for longer. */
static __always_inline void leave_border(struct task_struct *p, struct task_state *t)
{
	t->at_border = 0;
	ask_to_leave(p, t);
}

/* Whether a thread under whose limit nothing is left may be held: it is at the border, or does not leave the kernel by being asked. */
static __always_inline bool may_be_held(struct task_struct *p, struct task_state *t)
{
	return may_be_stopped(p) && (t->at_border || (!t->leaves && !ask_to_leave(p, t)));
}

/* Whether nothing is left of a limit above a thread, and it is to stop. */
static __always_inline bool is_limited(struct task_struct *p, struct task_state *t)
{
	if (t->limit && limited_until(t->limit, limit_clock()))
		return may_be_held(p, t);
	t->at_border = 0;
	return false;
}

#endif
