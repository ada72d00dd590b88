/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Instep's scheduler for the whole host: fetches facts, asks policy.h, carries the verdicts out.
 *
 * Flag: none. Counters: switches.
 *
 * The problem. A virtual machine with several vCPUs synchronises: its vCPUs wait for each other at barriers and locks. A
 * vCPU that waits by blocking gives its CPU away, and any fair scheduler serves it well. A vCPU that waits by spinning
 * uses its CPU for nothing until the sibling that it waits for has run. If siblings run at different times, a VM that
 * synchronises every 100 us gets a hundredth of the work done that its share would allow. A scheduler sees a vCPU that
 * never blocks, and cannot tell whether it spins or computes; but to run it together with its siblings costs it nothing
 * in either case. On two CPUs that is easy. On many CPUs it is the packing problem of gang scheduling (Ousterhout 1982):
 * VMs of different sizes must take turns so that, at each moment, each has all CPUs that it needs or none.
 *
 * The method, in parts, each with its own headers:
 *   account.bpf.h, period.bpf.h
 *                  CPU time is charged to a VM as a whole, by what it is entitled to: its weighted max-min fair share of
 *                  the host. So virtual time runs at the same speed for a wide VM and a narrow one that has all it wants.
 *   gang.bpf.h, set.bpf.h, moves.bpf.h
 *                  vCPUs that hardly ever block form the gang of their VM. The gang has a set of CPUs in one scheduling
 *                  domain (at most 64 CPUs of a node). Sets coincide, nest or are disjoint, and move as a whole, seldom.
 *   allowed.bpf.h, parts.bpf.h  Which CPUs vCPUs may use: each one of a gang that are pinned has its seat on a CPU of its own.
 *   slot.bpf.h     While threads wait, a timer cuts time into slots of 6 ms. One CPU plans each slot: in the order of
 *                  virtual time each gang gets its whole set or waits, and other accounts get as many CPUs as they want.
 *   span.bpf.h, promise.bpf.h
 *                  A gang that is wider than a domain has a part in each of several, and the same slots in all.
 *   queue.bpf.h    Threads that form no gang wait in the pool of their domain, in the order of virtual time; a gang's vCPU
 *                  waits on its seat. choose.bpf.h says how a CPU chooses among these.
 *   thread.bpf.h, group.bpf.h  Which VM a thread belongs to. cpu.weight counts at each level of the tree of cgroups: user space
 *                  computes once a second what each VM and each cgroup is entitled to.
 *   limit.bpf.h, leave.bpf.h, held.bpf.h  CPU limits of cgroups (cpu.max) hold: threads under one of which nothing is left wait.
 *   idle.bpf.h, wake.bpf.h, higher.bpf.h   Which CPU a thread gets that wakes up; a real-time thread may take it away.
 *   waits.bpf.h, frequency.bpf.h   How long vCPUs wait, for reports, and how busy CPUs are, for the kernel's governor.
 *
 * One thread, from wake-up to CPU:
 *
 *	select_cpu: an idle CPU of its cache, its domain, its node ------------------> local queue of that CPU
 *	   | none
 *	runnable:   its VM gets a domain; what it did not use for long is gone
 *	   |
 *	enqueue:    a CPU that gives way (a hole, the pool, a gang that is interrupted) --> local queue, preempts
 *	   | none
 *	   +--- no gang: pool of the domain --+
 *	   +--- gang: its seat ---------------+
 *	                                      v
 *	dispatch (a CPU chooses): strays | bound threads | the host's in its window | one that may interrupt this gang | the
 *	                          owner's vCPU that sits here | the pool | a refused gang's vCPU in the hole | other domains'
 *	   |
 *	running -> tick (charge, evidence) -> stopping -> enqueue again, or quiescent when it sleeps
 *
 * Threads of the host (of no VM) have an account in each domain and come before VMs as long as they use little. In a gang's slot
 * they wait for its middle or its end, at most 3 ms, so that it is interrupted on all its CPUs at once.
 *
 * Limits. Evidence takes 48 ms. Each header names its own. Facts about sched_ext are those of Linux 6.12 to 7.2.
 */
#include <scx/common.bpf.h>
#include <bpf_experimental.h>

#include "thread.bpf.h"
#include "wake.bpf.h"
#include "higher.bpf.h"
#include "choose.bpf.h"
#include "begin.bpf.h"
#include "waits.bpf.h"
#include "dump.bpf.h"

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

/* --- helpers of the operations ------------------------------------------------------------------ */

static __noinline void refresh_record(struct task_struct *p, struct task_state *t)
{
	if (!t)
		return;
	count_thread(t, STANDS_NOWHERE, 0, scx_bpf_now());
	look_up_thread(p, t);
}

/* The thread's record, brought up to date when the table of threads has changed. */
static __always_inline struct task_state *record_of(struct task_struct *p)
{
	struct task_state *t = task_of(p);

	if (t && t->generation != SET.generation)
		refresh_record(p, t);
	return t;
}

/* A VM that is new gets a domain; a vCPU that never sleeps shows it when it runs. */
static __always_inline void join_once(struct task_struct *p, struct task_state *t)
{
	struct cpu_state *c = cpu_of(scx_bpf_task_cpu(p));
	struct vm_state *v = vm_of(t->vm);

	if (!v || t->vm == INSTEP_HOST || v->joined)
		return;
	join(t->vm, t->narrow, c ? c->domain : 0, scx_bpf_now());
	note_allowed(p, t);
}

/* --- a thread becomes runnable ------------------------------------------------------------------- */

s32 BPF_STRUCT_OPS(instep_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_state *t = record_of(p);
	s32 cpu;

	if (!t)
		return prev_cpu;
	/* Before the first choice of all: it is to be one at home. */
	join_once(p, t);
	if (is_limited(p, t))
		return prev_cpu;
	cpu = pick_idle(p, t, prev_cpu, domain_for(t, prev_cpu));
	if (cpu < 0)
		cpu = follow_waker(p, t, wake_flags);
	if (cpu < 0)
		return prev_cpu;
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu, SET.slice_ns, 0);
	return cpu;
}

/* On the local queue of a CPU that was claimed, or that gives way. */
static __always_inline void put_on(struct task_struct *p, s32 cpu, u64 flags)
{
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu, SET.slice_ns, flags);
}

/* A vCPU of a gang waits in the queue of its slot while slots are planned; whether it does. */
static __always_inline bool wait_on_seat(struct task_struct *p, struct task_state *t, struct domain_state *d,
					 u64 enq_flags)
{
	struct slot_info *i = slot_of(t->slot);
	struct vm_state *v = vm_of(t->vm);
	s32 cpu = d->slotted ? seat_cpu(t) : NO_CPU;

	if (cpu < 0 || !i || !v || t->slot >= SET.nr_slots || !may_use(p, cpu))
		return false;
	come_to_seat(t, i, v, d);
	scx_bpf_dsq_insert_vtime(p, seat_queue(t->slot), SET.slice_ns, v->account.vtime, enq_flags);
	return true;
}

/* A thread that may use one CPU only. Kernel threads of a CPU that use little take it at once. */
static __always_inline void enqueue_bound(struct task_struct *p, struct task_state *t, u32 domain, u64 now,
					  u64 enq_flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_of(cpu);
	struct account *a = account_of(t->vm, domain);
	struct domain_state *d = domain_of(domain);
	u64 place = place_of(t, domain);

	if (c)
		c->bound.put_at = now;
	/*
	 * In a gang's slot it waits for the others of the gang to be interrupted, too (slot.bpf.h, serve_host); also one of the host's that a
	 * slot interrupts.
	 */
	if (c && d && d->slotted && on(INSTEP_M_HOST) && (t->vm == INSTEP_HOST || (enq_flags & SCX_ENQ_WAKEUP)) &&
	    (runs_in_slot(c) || (!(enq_flags & SCX_ENQ_WAKEUP) && c->owner && c->owner != POOL))) {
		scx_bpf_dsq_insert_vtime(p, bound_queue(cpu), SET.slice_ns, place, enq_flags);
		__sync_fetch_and_or(&d->pending, pol_lane(c->lane));
		return;
	}
	if (a && (enq_flags & SCX_ENQ_WAKEUP) && is_per_cpu_kthread(p) && !pol_before(a->front, t->own)) {
		count(INSTEP_C_KTHREAD);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu, SET.slice_ns, enq_flags | SCX_ENQ_PREEMPT);
		return;
	}
	scx_bpf_dsq_insert_vtime(p, bound_queue(cpu), SET.slice_ns, place, enq_flags);
	if (!c || !(enq_flags & SCX_ENQ_WAKEUP) || !on(INSTEP_M_WAKE))
		return;
	a = account_of(c->vm, c->domain);
	if (!c->tid) {
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		return;
	}
	charge(cpu, now);
	if (a && pol_wake_preempts(place, pol_key(vtime_at(a, c->vm, c->domain), c->own, a->front, own_bound()), SET.wake_slack_ns)) {
		count(INSTEP_C_WAKE_PREEMPT);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
}

/* Where a thread goes that ran here alone and was to have a core of its own, or to go home. */
static __always_inline void enqueue_last(struct task_struct *p, struct task_state *t, s32 here, u64 enq_flags)
{
	struct cpu_state *c = cpu_of(here);
	u32 domain = domain_for(t, here);
	struct domain_state *d = c ? domain_of(domain) : NULL;
	s32 cpu = NO_CPU;

	if (d && c && c->domain != domain && !is_bound(p)) {
		cpu = claim_in(p, domain, here, keeps_core(t, c, d) ? CLAIM_WHOLE : 0);
	} else if (d && !is_bound(p)) {
		cpu = first_allowed(p, domain, idle_cores(d));
		if (cpu >= 0 && claim(d, cpu))
			count(INSTEP_C_CORE_LEFT);
		else
			cpu = NO_CPU;
	}
	if (cpu < 0)
		cpu = here;
	put_on(p, cpu, enq_flags);
	/* Its own CPU, too: it goes idle after SCX_ENQ_LAST, and nothing else would call it. */
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

void BPF_STRUCT_OPS(instep_enqueue, struct task_struct *p, u64 enq_flags)
{
	u64 now = scx_bpf_now();
	struct task_state *t = record_of(p);
	s32 cpu, here = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_of(here);
	struct domain_state *d;
	u32 domain;

	if (!t || !c) {
		scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, SET.slice_ns, enq_flags);
		return;
	}
	domain = is_bound(p) ? c->domain : domain_for(t, here);
	d = domain_of(domain);
	if (!d || !d->nr_lanes) {
		/* A CPU that came online after the scheduler was loaded is in none: the kernel ends it then. */
		if (c->node >= 0)
			scx_bpf_error("CPU %d is in domain %u, which has no CPUs", here, domain);
		scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, SET.slice_ns, enq_flags);
		return;
	}
	leave_seat(t);
	if (t->limit && hold(p, t, domain, now, enq_flags))
		return;
	if (enq_flags & SCX_ENQ_LAST) {
		enqueue_last(p, t, here, enq_flags);
		return;
	}
	count_thread(t, STANDS_QUEUED, domain, now);
	count(INSTEP_C_QUEUED);
	if (is_bound(p) && !(d->slotted && seat_cpu(t) == here)) {
		enqueue_bound(p, t, domain, now, enq_flags);
		if (seat_cpu(t) == here)
			start_slots(d, domain, now);
		return;
	}
	if (!__COMPAT_is_enq_cpu_selected(enq_flags) || (enq_flags & SCX_ENQ_REENQ)) {
		cpu = pick_idle(p, t, here, domain);
		if (cpu >= 0) {
			put_on(p, cpu, enq_flags);
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
			return;
		}
	}
	if ((enq_flags & SCX_ENQ_WAKEUP) || (d->slotted && seat_cpu(t) >= 0)) {
		cpu = pick_victim(p, t, here, domain, now);
		/* What was preempted does not wait behind that, in the local queue: another CPU may become idle. */
		if (cpu >= 0 && ((enq_flags & SCX_ENQ_WAKEUP) || cpu != here)) {
			put_on(p, cpu, enq_flags | SCX_ENQ_PREEMPT);
			return;
		}
	}
	if (!wait_on_seat(p, t, d, enq_flags))
		put_in_pool(p, t, d, now, enq_flags);
	start_slots(d, domain, now);
	call_idle(d);
}

void BPF_STRUCT_OPS(instep_dequeue, struct task_struct *p, u64 deq_flags)
{
	struct task_state *t = task_of(p);

	if (t)
		leave_seat(t);
}

/* --- a CPU chooses --------------------------------------------------------------------------------- */

void BPF_STRUCT_OPS(instep_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu_state *c = cpu_of(cpu);
	u64 now = scx_bpf_now();
	struct domain_state *d = c ? domain_of(c->domain) : NULL;
	struct chance p = {};
	struct task_state *t;

	if (!c || !d)
		return;
	charge(cpu, now);
	c->overdue = c->claimed = 0;
	weigh_prev(prev, c, d, &p);
	if (INSTEP_STATE->drained < SET.nr_slots && drain_seats())
		return;
	if (d->stray && take_stray(d))
		return;
	tend_pool(d, cpu, now);
	if (take_bound(cpu, c, d, &p, now))
		return;
	if (pol_before(now, c->lends) && take_in_window(cpu, c, d, now))
		return;
	if (interrupt_slot(cpu, c, d, &p, now))
		return;
	/* The owner of the slot. */
	if (p.owns && prev && (p.sits_here || !take_seat(c->owner, c->domain, c->lane))) {
		go_on(prev, 2 * INSTEP_STATE->slot_ns);
		return;
	}
	if (c->owner && c->owner != POOL && !p.owns && take_seat(c->owner, c->domain, c->lane))
		return;
	if (p.owns)
		return; /* the vCPU that sits here was taken in its place */
	if (give_way_to_own(cpu, c, &p) || give_hole_away(c, d, &p))
		return;
	/* Threads that form no gang, in the order of their places. */
	ask_pool(cpu, d, &p, now);
	if (p.runnable && !p.seated && prev && (!p.first || !pol_before(p.first, p.place))) {
		t = task_of(prev);
		/* The kernel queues it then (SCX_OPS_ENQ_LAST), and this CPU idles: not beside a thread that is bound to it. */
		if (!p.first && t && !somebody_in(&c->bound, bound_queue(cpu), now) &&
		    (wants_core(prev, t, c) || may_go_home(prev, t, cpu, c)))
			return;
		go_on(prev, SET.slice_ns);
		return;
	}
	if (p.seen && ((!(p.seen & RAN_HERE) && take_own_of_pool(cpu, c->domain)) || scx_bpf_dsq_move_to_local(pool_queue(c->domain), 0)))
		return;
	/* A hole, or the pool has only threads that may not use this CPU. */
	if (p.runnable && prev) {
		go_on(prev, SET.slice_ns);
		return;
	}
	if (d->slotted && fill_hole(d, c->lane)) {
		call_idle(d);
		return;
	}
	if (steal(d, now) || fill_elsewhere(d, c->lane))
		return;
	if (scx_bpf_dsq_move_to_local(bound_queue(cpu), 0))
		return;
	/* One that was claimed for a thread that is gone stays idle, of which update_idle does not tell. */
	__sync_fetch_and_or(&d->idle, pol_lane(c->lane));
}

/* --- a thread runs ---------------------------------------------------------------------------------- */

void BPF_STRUCT_OPS(instep_running, struct task_struct *p)
{
	u64 now = scx_bpf_now();
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *t = record_of(p);
	struct cpu_state *c = cpu_of(cpu);
	struct domain_state *d;
	struct slot_info *i;
	struct account *a;
	struct vm_state *v;
	bool seated, moment;

	if (!t || !c)
		return;
	d = domain_of(c->domain);
	if (!d)
		return;
	if (c->taken_at)
		mark_taken(c, 0);
	/* ops.dispatch may have said that it is idle when this thread came. */
	if (d->idle & pol_lane(c->lane))
		__sync_fetch_and_and(&d->idle, ~pol_lane(c->lane));
	join_once(p, t);
	leave_seat(t);
	note_wait(t, now);
	moment = has_a_moment(t, now);
	count_thread(t, STANDS_RUNNING, c->domain, now);
	follow(p, t, c, now);
	v = vm_of(t->vm);
	i = slot_of(t->slot);
	a = account_of(t->vm, c->domain);
	seated = d->slotted && v && seat_cpu(t) >= 0;
	c->vm = t->vm;
	c->slot = t->slot;
	c->weight = t->weight;
	c->own = t->own;
	c->since = now;
	look_at_limits(p, t, now);
	if (t->limit)
		t->used = p->se.sum_exec_runtime;
	end_hold(p, t, cpu, moment);
	c->tid = p->pid;
	c->overdue = t->overdue;
	t->overdue = 0;
	c->claimed = 0;
	set_hole(d, c, on(INSTEP_M_HOLES) && ((seated && c->owner != t->vm && !has_slot(v, d)) || sits_elsewhere(v, i, c)));
	if (a && pol_before(a->front, t->own))
		a->front = t->own;
	count(INSTEP_C_SWITCH);
	if (c->hole) {
		count(INSTEP_C_HOLE);
		return;
	}
	if (!seated || c->owner != t->vm)
		return;
	scx_bpf_task_set_slice(p, 2 * INSTEP_STATE->slot_ns);
	if (d->victims & ~d->tears & pol_lane(c->lane))
		__sync_fetch_and_or(&d->tears, pol_lane(c->lane));
}

void BPF_STRUCT_OPS(instep_tick, struct task_struct *p)
{
	u64 now = scx_bpf_now();
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *t = task_of(p);
	struct cpu_state *c = cpu_of(cpu);

	if (!t || !c)
		return;
	note_use(cpu, now, true);
	charge(cpu, now);
	if (t->limit)
		charge_limits(p, t);
	look_at_limits(p, t, now);
	if (t->vm == INSTEP_HOST)
		note_want(t, now);
	if (is_limited(p, t))
		scx_bpf_task_set_slice(p, 0);
	end_period(now);
	balance_domains(now);
	if (t->slot != INSTEP_NO_SLOT)
		review_vm(t->vm, now);
}

void BPF_STRUCT_OPS(instep_stopping, struct task_struct *p, bool runnable)
{
	u64 now = scx_bpf_now();
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *t = task_of(p);
	struct cpu_state *c = cpu_of(cpu);

	if (!t || !c)
		return;
	charge(cpu, now);
	if (t->limit)
		charge_limits(p, t);
	if (c->tid) {
		t->own = c->own;
		c->tid = 0;
		c->hole = 0;
	}
	if (runnable)
		t->is_long = pol_since(t->woke, t->own) >= SET.slice_ns;
	count_thread(t, runnable ? STANDS_QUEUED : STANDS_NOWHERE, c->domain, now);
}

/* A thread wakes up, or its settings were changed. */
void BPF_STRUCT_OPS(instep_runnable, struct task_struct *p, u64 enq_flags)
{
	struct task_state *t = record_of(p);
	struct slot_info *i;
	struct account *a;
	u32 domain;

	if (!t || !(enq_flags & SCX_ENQ_WAKEUP))
		return;
	i = slot_of(t->slot);
	if (i)
		i->asleep = 0;
	join_once(p, t);
	domain = domain_for(t, scx_bpf_task_cpu(p));
	a = account_of(t->vm, domain);
	if (a)
		expire_saved_time(a, t->vm);
	bound_own(t, domain);
	t->woke = t->own;
	note_wake(t);
}

/* A thread goes to sleep. Or its affinity, nice value or cgroup changes: then it is queued again, and has waited all the time. */
void BPF_STRUCT_OPS(instep_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task_state *t = task_of(p);
	struct slot_info *i;
	struct vm_state *v;

	if (!t)
		return;
	leave_seat(t);
	if (!(deq_flags & SCX_DEQ_SLEEP))
		return;
	count_thread(t, STANDS_NOWHERE, 0, scx_bpf_now());
	end_burst(p, t);
	v = vm_of(t->vm);
	i = slot_of(t->slot);
	if (!v || !i)
		return;
	/* While a sibling of its gang waits for a CPU this is no evidence: if all had run it might not have blocked. */
	if (i->seat == NO_SEAT || !is_gang(v) || !part_of(v, i)->waiting)
		i->blocks++;
	i->asleep = 1;
	__sync_fetch_and_add(&v->total_blocks, 1);
}

bool BPF_STRUCT_OPS(instep_yield, struct task_struct *from, struct task_struct *to)
{
	if (!to)
		scx_bpf_task_set_slice(from, 0);
	return false;
}

void BPF_STRUCT_OPS(instep_enable, struct task_struct *p)
{
	struct task_state *t = task_of(p);

	if (!t)
		return;
	/* A limit holds before the first run, too. */
	look_at_limits(p, t, scx_bpf_now());
	set_thread_weight(t, p->scx.weight);
	/* Its own time begins with that of the others where it first waits or runs. */
	t->own_in = OWN_NOWHERE;
}

void BPF_STRUCT_OPS(instep_set_weight, struct task_struct *p, u32 weight)
{
	set_thread_weight(task_of(p), weight);
}

void BPF_STRUCT_OPS(instep_set_cpumask, struct task_struct *p, const struct cpumask *cpumask)
{
	struct task_state *t = task_of(p);
	struct slot_info *i = t ? slot_of(t->slot) : NULL;

	if (!t)
		return;
	t->narrow = is_narrow(p);
	if (i)
		note_allowed(p, t);
}

void BPF_STRUCT_OPS(instep_disable, struct task_struct *p)
{
	struct task_state *t = task_of(p);

	if (!t)
		return;
	leave_seat(t);
	forget_leaving(p, t);
	count_thread(t, STANDS_NOWHERE, 0, scx_bpf_now());
	leave_class(p);
}

s32 BPF_STRUCT_OPS(instep_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_state *t = new_task_of(p);

	if (!t)
		return -ENOMEM;
	t->vm = INSTEP_HOST;
	t->slot = INSTEP_NO_SLOT;
	t->seat = NO_SEAT;
	t->weight = POL_WEIGHT;
	t->own = POL_ORIGIN;
	look_up_thread(p, t);
	return 0;
}

/* --- the scheduler ends -------------------------------------------------------------------------------- */

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
	       .set_cpumask = (void *)instep_set_cpumask,
	       .update_idle = (void *)instep_update_idle,
	       .cpu_release = (void *)instep_cpu_release,
	       .disable = (void *)instep_disable,
	       .init_task = (void *)instep_init_task,
	       .init = (void *)instep_init,
	       .exit = (void *)instep_exit,
#ifdef __bpf__
	       .dump = (void *)instep_dump,
	       .dump_cpu = (void *)instep_dump_cpu,
	       .dump_task = (void *)instep_dump_task,
#endif
	       .flags = SCX_OPS_ENQ_LAST | SCX_OPS_KEEP_BUILTIN_IDLE,
	       .timeout_ms = 20000,
	       .name = "instep");
