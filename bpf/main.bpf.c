/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Instep's scheduler for the whole host: fetches facts, asks policy.h, carries the verdicts out.
 *
 *	wake-up -> select_cpu --idle--> local queue
 *	              |none idle
 *	              v
 *	           enqueue -> queue of one CPU --preempt?--> kick
 *	                            |
 *	         dispatch <---------+   best of own queue | go on | steal
 *	            |
 *	         running -> tick ... -> stopping -> (enqueue | quiescent)
 *
 * Each mechanism has a header that says what it is for and where its limits are. Facts about
 * sched_ext are those of kernel/sched/ext.c, Linux 6.12 to 7.2.
 */
#include <scx/common.bpf.h>
#include <bpf_experimental.h>

#include "yield.bpf.h"
#include "wake.bpf.h"
#include "taken.bpf.h"
#include "turn.bpf.h"

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

/* --- helpers of the operations ------------------------------------------------------------------ */

/* Whether the table of threads has changed since a thread was looked up there. */
static __always_inline bool is_stale(struct task_state *t)
{
	return t && t->generation != SET.generation;
}

static __noinline void look_up_again(struct task_struct *p, struct task_state *t)
{
	if (!t)
		return;
	no_longer_queued(t);
	leave(t);
	look_up(p, t);
}

/* The thread's record, brought up to date. */
static __always_inline struct task_state *known(struct task_struct *p)
{
	struct task_state *t = task_of(p);

	if (is_stale(t))
		look_up_again(p, t);
	return t;
}

/* --- operations --------------------------------------------------------------------------------- */

s32 BPF_STRUCT_OPS(instep_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_state *t = known(p);
	u64 now = scx_bpf_now();
	s32 cpu;

	if (!t)
		return prev_cpu;
	cpu = pick_idle(p, t, prev_cpu, now);
	if (cpu >= 0) {
		t->target = cpu;
		note_idle(t);
		arrive(t, cpu);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SET.slice_ns, 0);
		return cpu;
	}
	cpu = queue_for(p, t, prev_cpu);
	t->target = cpu;
	if (hands_over(t, cpu, now)) {
		count(INSTEP_C_HANDED_OVER);
		arrive(t, cpu);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SET.slice_ns, 0);
	}
	return cpu;
}

/* On the local queue of a CPU that has been claimed, or that is about to choose. */
static __always_inline void put_on(struct task_struct *p, struct task_state *t, s32 cpu, u64 enq_flags)
{
	arrive(t, cpu);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu, SET.slice_ns, enq_flags);
}

/* Brings the accounts of a thread that is about to wait near those of this CPU. */
static __always_inline void bring_near(struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	if (t->vm == INSTEP_HOST) {
		bound_own(t, c, scx_bpf_dsq_nr_queued(host_queue(cpu)));
		return;
	}
	roll(t->vm, now);
	bound_vm(t->vm, c);
	/* Without VM-level shares it has an own account that nothing else keeps near. */
	if (!on(INSTEP_M_SHARES))
		t->vtime = pol_clamp(t->vtime, c->vtime, SET.debt_ns);
}

/* Whether there was an idle CPU for it; not looked for after select_cpu, which bound threads skip. */
static __always_inline bool to_idle(struct task_struct *p, struct task_state *t, s32 here, s32 cpu, u64 now,
				    u64 enq_flags)
{
	s32 idle;

	if (is_migration_disabled(p) ||
	    (__COMPAT_is_enq_cpu_selected(enq_flags) && !(enq_flags & SCX_ENQ_REENQ)))
		return false;
	idle = pick_idle(p, t, cpu, now);
	if (idle < 0)
		return false;
	if (!(enq_flags & SCX_ENQ_WAKEUP) && comes_home(t, here, idle))
		count(INSTEP_C_CAME_HOME);
	put_on(p, t, idle, enq_flags);
	scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
	return true;
}

static __always_inline void put_in_queue(struct task_struct *p, struct task_state *t, s32 cpu, u64 now,
					 u64 enq_flags)
{
	arrive(t, cpu);
	now_queued(t, cpu, now);
	scx_bpf_dsq_insert_vtime(p, t->vm == INSTEP_HOST ? host_queue(cpu) : vm_queue(cpu),
				 SET.slice_ns, key_of(t, cpu), enq_flags);
}

void BPF_STRUCT_OPS(instep_enqueue, struct task_struct *p, u64 enq_flags)
{
	u64 now = scx_bpf_now();
	struct task_state *t = known(p);
	s32 cpu, here = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_of(here);
	bool alone, stays;

	if (!t || !c) {
		scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, SET.slice_ns, enq_flags);
		return;
	}
	/* One that is put in order again, or pushed to another CPU, never slept: it still counts there. */
	leave(t);
	no_longer_queued(t);
	/* It was alone here, and is to have better. */
	alone = (enq_flags & SCX_ENQ_LAST) && !held(c, now);
	stays = interrupted(t, here, now, enq_flags);
	cpu = alone || stays ? here : queue_for(p, t, here);
	c = cpu_of(cpu);
	if (!c)
		return;
	begins_to_wait(t, enq_flags, now);
	bring_near(t, c, cpu, now);
	if (goes_first(p, t, c)) {
		/* It does not wait, so that others of the host go on to (running). */
		t->queued_at = 0;
		count(INSTEP_C_KTHREAD);
		interrupts(p, c, cpu, now);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu, SET.slice_ns,
				   enq_flags | SCX_ENQ_PREEMPT);
		return;
	}
	if (alone) {
		cpu = better_or_same(p, t, here, now);
		put_on(p, t, cpu, enq_flags);
		/* This one, too: it goes idle after SCX_ENQ_LAST, and nobody else would call it. */
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		return;
	}
	if (!stays && to_idle(p, t, here, cpu, now, enq_flags))
		return;
	/* Straight to the CPU: neither ops.dispatch nor a second look at ranks is needed. */
	if ((enq_flags & SCX_ENQ_WAKEUP) && gives_way(t, c, cpu, now)) {
		count(INSTEP_C_WAKE_PREEMPT);
		interrupts(p, c, cpu, now);
		put_on(p, t, cpu, enq_flags | SCX_ENQ_PREEMPT);
		return;
	}
	if (comes_home(t, here, cpu))
		count(INSTEP_C_CAME_HOME);
	t->stays = stays;
	if (stays)
		count(INSTEP_C_STAYED);
	put_in_queue(p, t, cpu, now, enq_flags);
}

void BPF_STRUCT_OPS(instep_dequeue, struct task_struct *p, u64 deq_flags)
{
	struct task_state *t = task_of(p);

	if (t)
		no_longer_queued(t);
}

/*
 * Whether the previous thread may go on, and is better than what waits. One that is too far ahead of a
 * sibling gives way to a waiter of another kind even so (gang.bpf.h, skew).
 */
static __always_inline bool goes_on(struct task_struct *prev, s32 cpu, u64 now, struct choice *best)
{
	struct task_state *t;
	struct cpu_state *c = cpu_of(cpu);
	struct pol_rank rank = {};

	if (!prev || !c || !(prev->scx.flags & SCX_TASK_QUEUED))
		return false;
	t = task_of(prev);
	if (!t)
		return false;
	if (t->vm == INSTEP_HOST)
		t->vtime = c->own_vtime;
	if (held_from(c, t->vm, now))
		return false;
	rank_of(t, c, now, &rank);
	if (best->tid && !pol_goes_on(rank, best->rank))
		return false;
	if (best->tid && pol_skew_stops(rank, best->rank) && ahead(t->vm, t->slot)) {
		count(INSTEP_C_SKEW_STOP);
		return false;
	}
	if (pull(cpu, now, &rank))
		return true;
	cpu_reached(c, rank.vtime);
	if (rank.gang) {
		begin_episode(t->vm, cpu, now);
		rank.episode = true;
		begin_turn(t->vm, prev->pid, cpu);
	}
	scx_bpf_task_set_slice(prev, slice_of(t, cpu, &rank, now));
	return true;
}

/* The first of a CPU's queues, without looking at ranks. */
static __always_inline bool take_first(s32 cpu)
{
	return scx_bpf_dsq_move_to_local(vm_queue(cpu), 0) ||
	       scx_bpf_dsq_move_to_local(host_queue(cpu), 0);
}

void BPF_STRUCT_OPS(instep_dispatch, s32 cpu, struct task_struct *prev)
{
	u64 now = scx_bpf_now();
	struct cpu_state *c = cpu_of(cpu);
	struct choice best = {};
	bool runnable = prev && (prev->scx.flags & SCX_TASK_QUEUED);
	s32 queued = waiting_for(cpu);
	bool still;

	if (!c)
		return;
	charge(cpu, now);
	c->stint_at = now;
	if (c->held_until && !held(c, now))
		release_cpus(c->held_vm);
	still = held(c, now);
	if (on(INSTEP_M_RESCUE) && rescue(cpu, now))
		return;
	/* The usual case: one goes to sleep and one waits. */
	if (!still && !runnable && queued == 1 && take_first(cpu))
		return;
	if (queued) {
		best_for(cpu, cpu, now, &best);
	} else if (runnable && !still &&
		   (is_stale(task_of(prev)) || better_cpu(prev, task_of(prev), cpu, now) >= 0)) {
		return; /* the kernel enqueues it: SCX_OPS_ENQ_LAST */
	}
	if (goes_on(prev, cpu, now, &best))
		return;
	if (best.tid && !still && pull(cpu, now, &best.rank))
		return;
	if (best.tid && (take(best.queue, cpu, best.tid) ||
			 (!still && take_first(cpu))))
		return;
	if (still && queued)
		count(INSTEP_C_HOLES_LEFT);
	if (still)
		return;
	if (runnable)
		scx_bpf_task_set_slice(prev, SET.slice_ns);
	else
		steal(cpu, now);
}

/* The CPU notes what runs on it, and since when that is to be charged. */
static __always_inline void note_running(struct cpu_state *c, struct task_state *t, u32 tid, u64 now)
{
	c->own_vtime = t->vtime;
	c->weight = t->weight;
	c->vm = t->vm;
	c->slot = t->slot;
	c->since = now;
	c->tid = tid;
	count(INSTEP_C_SWITCH);
}

/* A vCPU runs: where, and from now on. */
static __always_inline void note_vcpu(struct task_state *t, struct vm_state *v, struct slot_info *i, s32 cpu,
				      u64 now)
{
	if ((s32)i->cpu != cpu || !t->placed || !is_vcpu_of(t, v)) {
		leave(t);
		arrive(t, cpu);
	}
	i->state = SLOT_RUNNING;
	measure(v, now);
	__sync_fetch_and_add(&v->nr_running, 1);
}

void BPF_STRUCT_OPS(instep_running, struct task_struct *p)
{
	u64 now = scx_bpf_now();
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *t = known(p);
	struct cpu_state *c = cpu_of(cpu);
	struct slot_info *i;
	struct vm_state *v;
	struct pol_rank rank = {};
	u64 group;
	bool first, bound = per_cpu_kthread(p);

	if (!t || !c)
		return;
	c->taken_at = 0;
	if (c->brief_until && !bound)
		let_go(c, cpu, now, 0);
	t->waited_at = t->vm != INSTEP_HOST ? t->queued_at : 0;
	t->came_at = now;
	first = overdue(t, c, now);
	if (first)
		count(INSTEP_C_OVERDUE);
	c->turn_until = first ? now + SET.slice_ns : 0;
	if (first && t->vm != INSTEP_HOST)
		c->first_at = now;
	v = vm_of(t->vm);
	i = slot_of(t->slot);
	/* It waited until now. */
	c->boosted = v && i && t->queued_at && bottlenecked(v, v->nr_queued + 1, now);
	if (c->boosted)
		count(INSTEP_C_BOOST);
	no_longer_queued(t);
	/* A kernel thread that interrupts for microseconds is no turn of the host's. */
	if (t->vm == INSTEP_HOST && (t->queued_at || !bound))
		host_turn_begins(t, c, now, first);
	t->queued_at = 0;
	group = group_at(c);
	rank_of(t, c, now, &rank);
	/* What came before its turn says nothing of how far the CPU is. */
	if (!first)
		cpu_reached(c, rank.vtime);
	if (t->vm == INSTEP_HOST) {
		if (!first && pol_before(rank.vtime, group))
			count(INSTEP_C_LIGHT);
		c->host_vtime = pol_max(c->host_vtime, t->vtime);
	}
	note_running(c, t, p->pid, now);
	if (!v || !i)
		return;
	note_vcpu(t, v, i, cpu, now);
	if (rank.gang) {
		begin_episode(t->vm, cpu, now);
		rank.episode = true;
		scx_bpf_task_set_slice(p, slice_of(t, cpu, &rank, now));
		begin_turn(t->vm, p->pid, cpu);
	}
}

void BPF_STRUCT_OPS(instep_tick, struct task_struct *p)
{
	u64 now = scx_bpf_now();
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *t = task_of(p);
	struct cpu_state *c = cpu_of(cpu);
	struct choice best = {};
	struct pol_rank rank = {};
	u64 looked_at;

	if (!t || !c)
		return;
	charge(cpu, now);
	if (t->vm != INSTEP_HOST) {
		roll(t->vm, now);
		weigh(t->vm, now);
		if (t->slot != INSTEP_NO_SLOT)
			begin_turn(t->vm, p->pid, cpu);
	} else {
		t->vtime = c->own_vtime;
		if (c->brief_until)
			let_go(c, cpu, now, now);
	}
	/* The slice is over: ops.dispatch is about to choose anyway. */
	if (!p->scx.slice || !waiting_for(cpu))
		return;
	rank_of(t, c, now, &rank);
	looked_at = c->deep_at;
	best_for(cpu, cpu, now, &best);
	if (!best.tid)
		return;
	if (!pol_skew_stops(rank, best.rank) || !ahead(t->vm, t->slot)) {
		if (!pol_tick_preempts(best.rank, rank))
			return;
		count(INSTEP_C_TICK_PREEMPT);
	}
	scx_bpf_task_set_slice(p, 0);
	/* ops.dispatch is to find again who was found. */
	c->deep_at = looked_at;
}

void BPF_STRUCT_OPS(instep_stopping, struct task_struct *p, bool runnable)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *t = task_of(p);
	struct cpu_state *c = cpu_of(cpu);
	struct slot_info *i;
	struct vm_state *v;

	if (!t || !c)
		return;
	charge(cpu, scx_bpf_now());
	c->left_at = scx_bpf_now();
	if (c->tid == (u32)p->pid) {
		t->vtime = c->own_vtime;
		c->tid = 0;
	}
	if (c->host_owed)
		host_turn_ends(t, c, scx_bpf_now());
	v = vm_of(t->vm);
	i = slot_of(t->slot);
	if (!v || !i)
		return;
	if (!is_vcpu_of(t, v)) {
		leave(t);
		return;
	}
	i->state = SLOT_BLOCKED;
	measure(v, scx_bpf_now());
	if (v->nr_running)
		__sync_fetch_and_sub(&v->nr_running, 1);
	leave(t);
	if (!runnable)
		none_runs(v, t->vm, scx_bpf_now());
}

/*
 * A thread wakes up: who did it; or its settings were changed. One that ran meanwhile goes on without
 * ops.enqueue, and keeps its turn and its claim.
 */
void BPF_STRUCT_OPS(instep_runnable, struct task_struct *p, u64 enq_flags)
{
	struct task_state *t = known(p);

	if (!t)
		return;
	if (enq_flags & SCX_ENQ_WAKEUP)
		note_wake(t);
	else
		begins_to_wait(t, enq_flags, scx_bpf_now());
}

/* A thread goes to sleep. */
void BPF_STRUCT_OPS(instep_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task_state *t = task_of(p);
	struct slot_info *i;
	struct vm_state *v;

	if (!t)
		return;
	no_longer_queued(t);
	leave(t);
	v = vm_of(t->vm);
	i = slot_of(t->slot);
	if (!v || !i || !(deq_flags & SCX_DEQ_SLEEP) || !is_vcpu_of(t, v))
		return;
	__sync_fetch_and_add(&v->blocks, 1);
	__sync_fetch_and_add(&v->total_blocks, 1);
	wait_begins(v, i, scx_bpf_now());
}

bool BPF_STRUCT_OPS(instep_yield, struct task_struct *from, struct task_struct *to)
{
	struct task_state *t = task_of(from);

	scx_bpf_task_set_slice(from, 0);
	/* It gave its turn away: it has no claim to another for having waited. */
	if (t)
		t->waited_at = 0;
	return to && follow_yield(from, to, scx_bpf_now());
}

void BPF_STRUCT_OPS(instep_enable, struct task_struct *p)
{
	struct task_state *t = task_of(p);
	struct cpu_state *c = cpu_of(scx_bpf_task_cpu(p));

	if (!t)
		return;
	t->weight = p->scx.weight;
	t->queued_at = 0;
	t->vtime = c ? c->host_vtime : POL_ORIGIN;
}

void BPF_STRUCT_OPS(instep_set_weight, struct task_struct *p, u32 weight)
{
	struct task_state *t = task_of(p);

	if (t)
		t->weight = weight;
}

void BPF_STRUCT_OPS(instep_disable, struct task_struct *p)
{
	struct task_state *t = task_of(p);

	if (t) {
		no_longer_queued(t);
		leave(t);
	}
}

s32 BPF_STRUCT_OPS(instep_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_state *t = new_task_of(p);

	if (!t)
		return -ENOMEM;
	t->vm = INSTEP_HOST;
	t->slot = INSTEP_NO_SLOT;
	t->target = NO_CPU;
	t->weight = 100;
	t->vtime = POL_ORIGIN;
	look_up(p, t);
	return 0;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(instep_init)
{
	u32 n = SET.nr_cpus;
	s32 cpu, error;

	if (!n || n > INSTEP_MAX_CPUS)
		return -EINVAL;
	INSTEP_STATE->vtime = POL_ORIGIN;
	INSTEP_STATE->group_vtime = POL_ORIGIN;
	bpf_for(cpu, 0, n) {
		struct cpu_state *c = cpu_of(cpu);

		if (!c)
			return -EINVAL;
		c->vtime = POL_ORIGIN;
		c->host_vtime = POL_ORIGIN;
		INSTEP_STATE->online += c->node >= 0;
		error = scx_bpf_create_dsq(vm_queue(cpu), -1);
		if (!error)
			error = scx_bpf_create_dsq(host_queue(cpu), -1);
		if (!error)
			error = make_turn(cpu);
		if (error)
			return error;
	}
	return 0;
}

void BPF_STRUCT_OPS(instep_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

SCX_OPS_DEFINE(instep_ops,
	       .select_cpu = (void *)instep_select_cpu,
	       .enqueue = (void *)instep_enqueue,
	       .dequeue = (void *)instep_dequeue,
	       .dispatch = (void *)instep_dispatch,
	       .running = (void *)instep_running,
	       .tick = (void *)instep_tick,
	       .stopping = (void *)instep_stopping,
	       .runnable = (void *)instep_runnable,
	       .quiescent = (void *)instep_quiescent,
	       .yield = (void *)instep_yield,
	       .enable = (void *)instep_enable,
	       .set_weight = (void *)instep_set_weight,
	       .cpu_release = (void *)instep_cpu_release,
	       .disable = (void *)instep_disable,
	       .init_task = (void *)instep_init_task,
	       .init = (void *)instep_init,
	       .exit = (void *)instep_exit,
	       .flags = SCX_OPS_ENQ_LAST,
	       .timeout_ms = 20000,
	       .name = "instep");
