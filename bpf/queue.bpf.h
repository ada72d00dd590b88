/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where threads wait, and in which order.
 *
 * Flag: none (a thread that cannot run waits). Counters: queued, overdue, stolen, kthreads_first.
 *
 * Problem: a CPU must find the next thread without a look at other CPUs, and no thread may wait on a CPU that is
 * busy while another of its domain is free.
 * Method: three kinds of queues, beside that of threads which a limit holds (held.bpf.h).
 *     pool     one in a domain: threads that form no gang, ordered by place (policy.h, pol_key):
 *              virtual time of the account + what the thread had against others of its account
 *     bound    one for each CPU: threads that may run on this CPU only, ordered likewise
 *     seat     one for each vCPU slot: a gang's vCPU while its domain has slots (slot.bpf.h). So a CPU takes the
 *              vCPU that the plan names without looking through a queue.
 *     Places follow virtual time, which bounds no wait by the clock. So pool and bound queues are looked through every 8 ms
 * (sweep): a thread that waited for 45 ms or more goes first, in the order of waiting (policy.h, pol_patience). Before these one that
 * waited for 8 s runs for a moment (MOMENT_NS).
 * Limits: a place is that of the moment of queueing. An account that runs meanwhile moves on; its waiting threads
 * are then a little before their place.
 */
#ifndef INSTEP_QUEUE_BPF_H
#define INSTEP_QUEUE_BPF_H

#include "period.bpf.h"

/* Threads that a CPU limit holds (held.bpf.h). */
#define HELD_QUEUE 1000u
#define FIRST_BOUND 1024u
#define FIRST_SEAT 4096u

static __always_inline u64 pool_queue(u32 domain)
{
	return domain;
}

static __always_inline u64 bound_queue(s32 cpu)
{
	return FIRST_BOUND + cpu;
}

static __always_inline u64 seat_queue(u32 slot)
{
	return FIRST_SEAT + slot;
}

static __always_inline bool is_bound(struct task_struct *p)
{
	return p->nr_cpus_allowed == 1 || is_migration_disabled(p);
}

static __always_inline bool is_per_cpu_kthread(struct task_struct *p)
{
	return (p->flags & PF_KTHREAD) && p->nr_cpus_allowed == 1;
}

static __always_inline bool may_use(struct task_struct *p, s32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

/* Siblings in several pools change their pools after so many windows of evidence. */
#define TURN_WINDOWS 8

/* Nothing serves a CPU that is offline, or that a higher class has. */
static __always_inline bool is_usable(s32 cpu)
{
	struct cpu_state *c = cpu_of(cpu);

	return c && c->node >= 0 && !c->taken_at;
}

/* In which part of a VM without a gang that has several a vCPU waits: in the next one after TURN_WINDOWS in which some waited. */
static __always_inline struct gang_part *pool_part(struct vm_state *v, struct task_state *t)
{
	struct instep_vm_settings *s = vm_set_of(t->vm);
	u32 k = s ? (t->slot - s->first_slot) * v->nr_parts / (s->nr_vcpus ?: 1) : 0;
	struct slot_info *i = slot_of(t->slot);

	if (v->split && i)
		return part_in(v, i->home);
	return &v->parts[within((k + v->turns / TURN_WINDOWS) % (v->nr_parts ?: 1), INSTEP_MAX_PARTS)];
}

/* Which domain a thread that was last on `cpu` waits in. */
static __always_inline u32 domain_for(struct task_state *t, s32 cpu)
{
	struct slot_info *i = slot_of(t->slot);
	struct vm_state *v = vm_of(t->vm);
	struct cpu_state *c = cpu_of(cpu);
	struct domain_state *d;
	u32 domain;

	if (t->vm != INSTEP_HOST && v && v->joined) {
		domain = v->account.domain;
		if (i && i->seat != NO_SEAT && is_gang(v) && (!is_spread(v) || may_use_part(v, part_of(v, i))))
			domain = part_of(v, i)->domain;
		/* Not before it is known which CPUs it may use. */
		else if (i && i->noted && is_spread_pool(v) && may_use_part(v, pool_part(v, t)))
			domain = pool_part(v, t)->domain;
		d = domain_of(domain);
		/* Of threads that are no vCPU that is never known. */
		if (!t->narrow ? v->allowed : i && i->noted && d && (v->alike ? lanes_for(v, d) : i->home == domain ? i->allowed : 0))
			return domain;
	}
	return c && c->domain < INSTEP_MAX_DOMAINS ? c->domain : 0;
}

/* By how much one thread of an account may be before another. */
static __always_inline u64 own_bound(void)
{
	return SET.slice_ns;
}

/* The places of threads that are overdue are the times since when they wait, less this: further behind than any other. */
#define OVERDUE_LEAD (1ull << 60)
/*
 * A thread that was on no CPU for so long, less than half of the watchdog's time, runs for a moment before all others: where
 * thousands compute each would wait for longer than the watchdog lets it. It keeps its turn.
 */
#define MOMENT_NS (8000 * POL_MS)
/* A queue is looked through for such threads after this. */
#define SWEEP_NS (8 * POL_MS)

/* Whether a thread runs for a moment only, when it does. */
static __always_inline bool has_a_moment(struct task_state *t, u64 now)
{
	return t->standing == STANDS_QUEUED && pol_since(t->waits_since, now) >= MOMENT_NS;
}

static __always_inline bool is_overdue_place(u64 place, struct domain_state *d)
{
	return pol_before(place + OVERDUE_LEAD / 2, d->clock);
}

/* The longest that a thread of little weight is patient. */
#define MOST_PATIENT (1000 * POL_MS)

/*
 * When a thread is overdue: one that weighs less than others of its account is to wait for longer. Threads of the host have
 * windows in gang slots (slot.bpf.h, serve_host).
 */
static __always_inline u64 patience_of(struct task_state *t, struct account *a)
{
	u64 patience = pol_patience(wanting(a), a->share) * (a->is_host ? 2 : 1);

	if (t->weight >= POL_WEIGHT || patience > MOST_PATIENT)
		return patience;
	return pol_min(patience * POL_WEIGHT / (t->weight ?: 1), MOST_PATIENT);
}

/*
 * Threads of a queue that have waited for too long, whatever their place, get places before all others, in the order of
 * waiting. Only from ops.dispatch.
 */
static __noinline void sweep(struct domain_state *d, u64 queue, u64 now)
{
	struct task_struct *p;

	if (!d)
		return;
	bpf_for_each(scx_dsq, p, queue, 0) {
		struct task_state *t = task_of(p);
		struct account *a = t ? counted_in(t) : NULL;
		u64 lead;

		if (!t || !a)
			continue;
		lead = has_a_moment(t, now) ? 2 * OVERDUE_LEAD : OVERDUE_LEAD;
		if (is_overdue_place(p->scx.dsq_vtime + lead - OVERDUE_LEAD, d) ||
		    (lead == OVERDUE_LEAD && pol_since(t->queued_at, now) < patience_of(t, a)))
			continue;
		if (lead != OVERDUE_LEAD)
			t->turn = p->scx.dsq_vtime;
		scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, t->queued_at - lead);
		t->overdue = 1;
		if (scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, p, queue, 0))
			count(INSTEP_C_OVERDUE);
	}
}

/*
 * What an operation inserts is in the queue only after it has returned: after so long, or it is found when the queue is looked at in any
 * case.
 */
#define INSERT_NS (1 * POL_MS)
#define SEEN_NS (24 * POL_MS)

/* Whether it is known that nobody waits in a queue. */
static __always_inline bool is_seen_empty(struct queue_seen *q, u64 now)
{
	return pol_before(q->put_at + INSERT_NS, q->empty_at) && pol_since(q->empty_at, now) < SEEN_NS;
}

/* Whether somebody waits in a queue. The kernel looks for a queue by its number, so it is not asked while nobody was put there. */
static __always_inline bool somebody_in(struct queue_seen *q, u64 queue, u64 now)
{
	if (is_seen_empty(q, now))
		return false;
	if (scx_bpf_dsq_nr_queued(queue) > 0)
		return true;
	q->empty_at = now;
	return false;
}

/* Looks through a queue where somebody waits, once in a while; `at` is when it was done last. */
static __always_inline void sweep_seldom(struct domain_state *d, u64 queue, u64 *at, u64 now)
{
	u64 before = *at;

	if (pol_since(before, now) >= SWEEP_NS && __sync_val_compare_and_swap(at, before, now) == before)
		sweep(d, queue, now);
}

/*
 * By how much a thread of less than a quarter of the average weight, as SCHED_IDLE gives, is behind its siblings in a VM: by no more
 * than what the VM may save, as else the VM would lose its share whenever no other of its threads wants it.
 */
static __always_inline u64 less_weight(struct account *a, struct task_state *t)
{
	if (a->is_host || t->weight > POL_WEIGHT / 4 || wanting(a) < 2)
		return 0;
	return pol_min((POL_WEIGHT / (t->weight ?: 1) - 1) * own_bound(), SET.lag_ns);
}

/* The place of a thread of an account whose virtual time is this: one of the host's that goes on and on shares by weight. */
static __always_inline u64 key_of(struct account *a, struct task_state *t, u64 vtime)
{
	if (a->is_host && t->is_long)
		return pol_host_key(vtime, t->own, a->mean, own_bound(), wanting(a), a->share);
	return pol_key(vtime, t->own, a->front, own_bound()) + less_weight(a, t);
}

/*
 * The place of a thread. One of the host's that had little of late (a shell, a kernel worker) is not held up by what
 * the others of its account used, as long as they owe no more than may be saved.
 */
SEPARATE u64 place_of(struct task_state *t, u32 domain)
{
	struct account *a;
	struct instep_vm_settings *s;
	u64 place, clock;

	if (!t)
		return POL_ORIGIN;
	a = account_of(t->vm, domain);
	s = vm_set_of(t->vm);
	if (!a || !s)
		return POL_ORIGIN;
	settle_own(t, a, domain);
	if (t->turn)
		return t->turn;
	place = vtime_at(a, t->vm, domain);
	clock = clock_of(domain);
	/* However far ahead its account is: others of it may run where nobody else wants to. */
	place = key_of(a, t, pol_min(place, clock + MOST_BEHIND * SET.lag_ns));
	if (t->vm != INSTEP_HOST)
		return place - (u64)s->latency * 1000;
	if (!t->is_long && pol_before(t->own + own_bound() / 2, a->front) && pol_before(a->vtime, clock + SET.lag_ns))
		place = pol_min(place, clock - own_bound());
	return place;
}

/*
 * A thread that slept has no claim to what it did not use beyond a slice. Each time a vCPU wakes up half of what it was ahead
 * or behind is forgotten: small differences of vCPUs that block at barriers would add up, until those that had least
 * preempt vCPUs of other VMs at each wake-up. Threads of the host keep what they are behind: one that wakes up often and uses
 * little would wait behind all that compute.
 */
static __always_inline void bound_own(struct task_state *t, u32 domain)
{
	struct account *a = account_of(t->vm, domain);
	s64 lead;

	if (!a)
		return;
	settle_own(t, a, domain);
	if (t->vm == INSTEP_HOST) {
		lead = (s64)(t->own - a->mean);
		t->own = pol_max(a->mean + (lead > 0 ? lead >> 1 : lead), a->mean - own_bound());
		return;
	}
	lead = (s64)(t->own - a->front) >> 1;
	t->own = pol_clamp(a->front + lead, a->front - own_bound(), a->front + 8 * own_bound());
}

static __always_inline bool nobody_waits(u32 domain)
{
	return !scx_bpf_dsq_nr_queued(pool_queue(domain));
}

enum first_seen {
	SOMEBODY = 1, /* somebody waits in the queue, ... */
	MAY_RUN = 2,  /* ... of the first eight one that may use the CPU, ... */
	RAN_HERE = 4, /* ... and the first one of all ran on it last */
};

/*
 * The place of the first thread of a queue that may run on `cpu`, among the first eight, and what is known of it (enum first_seen).
 * Where more wait, `place` is that of the ninth: no other is before it.
 */
SEPARATE int first_place(u64 queue, s32 cpu, u64 *place)
{
	struct task_struct *p;
	bool found = false;
	u32 seen = 0;

	if (!place)
		return 0;
	p = __COMPAT_scx_bpf_dsq_peek(queue);
	if (!p)
		return 0;
	if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
		*place = p->scx.dsq_vtime;
		return SOMEBODY | MAY_RUN | (scx_bpf_task_cpu(p) == cpu ? RAN_HERE : 0);
	}
	bpf_for_each(scx_dsq, p, queue, 0) {
		found = bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
		if (!found && seen++ < 8)
			continue;
		*place = p->scx.dsq_vtime;
		break;
	}
	return SOMEBODY | (found ? MAY_RUN : 0);
}

/* The same of a domain's pool, of which it may be known that nobody waits there. */
static __always_inline u32 first_of_pool(struct domain_state *d, s32 cpu, u64 now, u64 *place)
{
	u32 seen;

	if (is_seen_empty(&d->in_pool, now))
		return 0;
	seen = first_place(pool_queue(d->host.domain), cpu, place);
	if (!seen)
		d->in_pool.empty_at = now;
	return seen;
}

static __always_inline void put_in_pool(struct task_struct *p, struct task_state *t, struct domain_state *d, u64 now, u64 enq_flags)
{
	u32 domain = d->host.domain;

	d->in_pool.put_at = now;
	scx_bpf_dsq_insert_vtime(p, pool_queue(domain), SET.slice_ns, place_of(t, domain), enq_flags);
}

/*
 * Whether threads of a domain may use idle CPUs of other nodes: some wait, and for this long none of its CPUs became idle or busy.
 * Where CPUs idle now and then, the next one is soon found, and threads of VMs that block run for about as long at a time: each would lose
 * more by memory that is far than by that wait, and all siblings that meet it at a barrier with it.
 */
#define SPILL_NS 1000000

static __always_inline bool may_spill(struct domain_state *d, u32 domain, u64 now)
{
	return !nobody_waits(domain) && (s64)(now - d->idle_at) >= SPILL_NS;
}

/* Whether a thread would rather wait for a moment on this node: it is at home there, and has not run for a slice since it slept. */
static __always_inline bool waits_at_home(struct task_struct *p, struct task_state *t, s32 node)
{
	struct instep_vm_settings *s = vm_set_of(t->vm);

	return t->vm != INSTEP_HOST && s && home_of(s) == node && p->se.sum_exec_runtime - t->used_asleep < SET.slice_ns;
}

/* Whether the first thread of this domain's pool stays on its node. */
SEPARATE int first_stays(struct domain_state *d)
{
	u32 domain;
	struct task_struct *p;
	struct task_state *t;
	bool stays = false;

	if (!d)
		return false;
	domain = d->host.domain;
	if (may_spill(d, domain, scx_bpf_now()))
		return false;
	bpf_for_each(scx_dsq, p, pool_queue(domain), 0) {
		t = task_of(p);
		stays = t && waits_at_home(p, t, d->node);
		break;
	}
	return stays;
}

/* A CPU with nothing to do in its domain takes what waits in the pool of another, those of its node first. */
SEPARATE int steal(struct domain_state *d, u64 now)
{
	s32 k;

	if (!d)
		return false;
	bpf_for(k, 0, d->nr_next) {
		u32 other = d->next[within(k, INSTEP_MAX_DOMAINS)];
		struct domain_state *o = domain_of(other);

		if (!o || !somebody_in(&o->in_pool, pool_queue(other), now))
			continue;
		if (o->node != d->node && first_stays(o))
			continue;
		if (scx_bpf_dsq_move_to_local(pool_queue(other), 0)) {
			count(INSTEP_C_STOLEN);
			return true;
		}
	}
	return false;
}

#endif
