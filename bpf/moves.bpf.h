/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where a gang's set and a VM go when the load changes.
 *
 * Flag: moves. Counters: sets_moved, domains_moved, threads_moved.
 *
 * Problem: which CPUs are crowded changes as VMs come, go, block and compute. And where five gangs have room for two side
 * by side, one set always has three of them.
 * Method: a gang set moves as a whole, for one of four reasons. The first two are examined in the order given, one gang in
 * each slot:
 *
 *     load       cost there + max(load / 2, 1/16) <= cost here
 *     fairness   cost there <= cost here + 1/4, and v + 4 s < there, and here + 2 s < there
 *     holes      cost there <= cost here + 1, and v + 32 s < there, and here + 16 s < there
 *
 *     cost         of a set, in CPUs (set.bpf.h)
 *     load         what the gang loads each of its CPUs with, in CPUs
 *     v            virtual time of the gang
 *     here, there  least virtual time of the gangs that it meets only at this set, or only at the other one
 *     s            length of a slot
 *
 * Fairness is examined in every eighth slot, for the first gang that the slot refused. It gives gangs of equal weight equal
 * shares in the long run. What a gang has in holes costs it nothing, and virtual time does not show it: one that is alone
 * beside small VMs had twice as much for ever as each of three that shared a set. So in every 64th slot virtual time is taken
 * with what was had in holes during about the last second, and only gangs count that are at least half as wide. The fourth
 * reason: a gang that was refused twice although as many CPUs are free moves there at once
 * (slot.bpf.h, relocate).
 *     A VM goes from the most loaded domain to the least loaded one where that lowers the higher of the two loads by a sixteenth of
 * a CPU for each CPU; one VM in 48 ms: the one that leaves them nearest to each other. A load is that of the domain's accounts
 * divided by the capacity of its CPUs. Wide gangs have more than half a domain's
 * CPUs, and no two of them run at the same time. So one goes from the domain with the most of them to the one with the fewest,
 * if these differ by two. A VM goes to its home node when user space names another one.
 *     Where no VM moves and the most loaded domain has more than its CPUs can do, one thread of the host that computes moves,
 * from pool to pool, if the domain that it leaves is then still loaded at least as much as the one that it comes to.
 * Limits: a set rests for 96 ms after a move. Load is an estimate over some periods of 24 ms.
 * VMs change domains for load only: of three equal gangs on two domains of their width one has a domain, and twice as much as each other.
 */
#ifndef INSTEP_MOVES_BPF_H
#define INSTEP_MOVES_BPF_H

#include "gang.bpf.h"

/* Whether a gang that moved for fairness would meet gangs only that are so far ahead of it. */
static __always_inline bool is_far_behind(struct vm_state *v, u64 lead, struct set_score *here, struct set_score *there)
{
	u64 vtime = v->account.vtime + (here->holes ? v->spare : 0);

	if (!here->least_vtime || !there->least_vtime)
		return here->least_vtime > 0;
	return pol_before(vtime + lead, there->least_vtime) && pol_before(here->least_vtime + lead / 2, there->least_vtime);
}

static __always_inline void move_to(struct vm_state *v, u64 set, u64 now)
{
	v->parts[0].set = set;
	v->moved_at = now;
	count(INSTEP_C_MOVE_SET);
}

/* Whether a VM is a gang of this domain whose set may move. */
static __always_inline bool may_move(struct vm_state *v, u32 domain, u64 now)
{
	return is_gang(v) && !is_spread(v) && !v->assigned && v->account.domain == domain && pol_since(v->moved_at, now) >= REST_NS;
}

/* For which of the reasons above a set is looked at. */
enum move_reason { FOR_LOAD, FOR_FAIRNESS, FOR_HOLES };

/* Load comes first, but where holes count. */
SEPARATE int move_set(struct domain_state *d, u32 domain, u32 vm, u32 reason, u64 now)
{
	bool holes = reason == FOR_HOLES;
	struct set_score here = { .holes = holes }, best = { .holes = holes };
	struct vm_state *v = vm_of(vm);
	u64 set = 0;
	u32 less;

	if (!d || !v || !may_move(v, domain, now))
		return 0;
	sum_load(d, domain, vm);
	score_set(d, v->parts[0].set, vm, &here);
	if (!holes) {
		less = load_by(v) / 2 > POL_CPU / 16 ? load_by(v) / 2 : POL_CPU / 16;
		set = find_set(d, vm, v->seats, 0, &best);
		if (best.cost + less > here.cost)
			set = 0;
	}
	if (!set && reason != FOR_LOAD) {
		set = find_set(d, vm, v->seats, here.cost + (holes ? POL_CPU : POL_CPU / 4), &best);
		if (!is_far_behind(v, (holes ? 32 : 4) * INSTEP_STATE->slot_ns, &here, &best))
			return 0;
	}
	if (set && set != v->parts[0].set)
		move_to(v, set, now);
	return 0;
}

/* A gang that the slot refused, if it may move its set; NULL else. */
static __always_inline struct vm_state *narrow_refused(struct domain_state *d, u32 k, u32 *vm)
{
	struct vm_state *v;

	*vm = d->refused[k & (MAX_REFUSED - 1)];
	v = vm_of(*vm);
	return v && !is_spread(v) && !v->assigned ? v : NULL;
}

/* Of these the one that is furthest behind, or that had least with `holes` included; 0 if there is none. */
SEPARATE u32 least_refused(struct domain_state *d, bool holes)
{
	u64 vtime, least = 0;
	u32 n, vm, found = 0;
	s32 k;

	if (!d)
		return 0;
	n = refused_of(d);
	bpf_for(k, 0, n) {
		struct vm_state *v = narrow_refused(d, k, &vm);

		if (!v)
			continue;
		vtime = v->account.vtime + (holes ? v->spare : 0);
		if (found && !pol_before(vtime, least))
			continue;
		found = vm;
		least = vtime;
	}
	return found;
}

/*
 * Gangs that were refused fill holes in the order of virtual time and of what they had in holes, which costs them nothing: else the one
 * that is furthest behind would have all, and stay it.
 */
SEPARATE int order_refused(struct domain_state *d)
{
	u32 n;
	s32 k, j;

	if (!d)
		return 0;
	n = refused_of(d);
	bpf_for(k, 0, n) {
		bpf_for(j, k + 1, n) {
			u32 *one = &d->refused[k & (MAX_REFUSED - 1)], *other = &d->refused[j & (MAX_REFUSED - 1)], vm = *one;
			struct vm_state *v = vm_of(vm), *o = vm_of(*other);

			if (!v || !o || !pol_before(vtime_in(o, d->host.domain) + o->spare, vtime_in(v, d->host.domain) + v->spare))
				continue;
			*one = *other;
			*other = vm;
		}
	}
	return 0;
}

/*
 * Whether of the gangs that were refused the one that had least had less than this VM, whose vCPU fills a hole: by a slot or more. Only if
 * nobody owns any CPU of its set here: alone a vCPU would spin for its siblings.
 */
SEPARATE int is_anothers_hole(struct domain_state *d, u32 vm)
{
	u32 first = d && d->nr_refused ? d->refused[0] : 0;
	struct vm_state *v = vm_of(vm), *o = vm_of(first);

	if (!d || !v || !o || !first || first == vm || (part_in(o, d->host.domain)->set & ~d->free))
		return false;
	return pol_before(vtime_in(o, d->host.domain) + o->spare + INSTEP_STATE->slot_ns, vtime_in(v, d->host.domain) + v->spare);
}

/* In each slot one gang is looked at; in every eighth the first of those refused, in every 64th the one that had least. */
static __always_inline void move_sets(struct domain_state *d, u32 domain, u64 now)
{
	u32 vm, reason = FOR_LOAD;

	if (!on(INSTEP_M_MOVES) || !d->nr_members)
		return;
	if (!(d->slot & 7) && d->nr_refused)
		reason = d->slot & 63 ? FOR_FAIRNESS : FOR_HOLES;
	vm = reason == FOR_LOAD ? d->members[within(d->looked++ % d->nr_members, INSTEP_MAX_VMS)] :
				  least_refused(d, reason == FOR_HOLES);
	move_set(d, domain, vm, reason, now);
}

/* Sets the timer to the next multiple of half a slot's length. */
static __always_inline void arm(struct slot_timer *timer, u64 now)
{
	u64 length = INSTEP_STATE->slot_ns / 2 ?: POL_MS, rest = length - now % length;

	bpf_timer_start(&timer->timer, rest < length / 8 ? rest + length : rest, 0);
}

/* A thread waits in a domain: slots are planned from the next multiple on, if it has gangs. */
static __always_inline void start_slots(struct domain_state *d, u32 domain, u64 now)
{
	struct slot_timer *timer;

	if (d->armed || !(d->nr_gangs || d->stale) || __sync_val_compare_and_swap(&d->armed, 0, 1))
		return;
	timer = timer_of(domain);
	if (timer)
		arm(timer, now);
}

/* vCPUs of a gang that got other seats may wait on these: only slots serve them, in each of its domains. */
SEPARATE int start_parts(u32 vm, u64 now)
{
	struct vm_state *v = vm_of(vm);
	s32 k;

	if (!v)
		return 0;
	bpf_for(k, 0, parts_of(v)) {
		struct gang_part *part = &v->parts[within(k, INSTEP_MAX_PARTS)];
		struct domain_state *d = domain_of_part(v, k);

		if (d && part->waiting)
			start_slots(d, part->domain, now);
	}
	return 0;
}

/* So much of a domain's load counts in another one until the next period. */
static __always_inline void move_load(struct domain_state *from, struct domain_state *to, u32 load)
{
	from->loaded -= load < from->loaded ? load : from->loaded;
	to->loaded += load;
}

/* vCPUs of this queue that have a seat go to the queues of their seats. */
static __noinline void seat_queued(struct domain_state *d, u32 domain, u64 queue)
{
	struct task_struct *p;

	if (!d || scx_bpf_dsq_nr_queued(queue) <= 0)
		return;
	/* A timer's program holds no such lock by itself. */
	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, queue, 0) {
		struct task_state *t = task_of(p);
		struct slot_info *i = t ? slot_of(t->slot) : NULL;
		struct vm_state *v = t ? vm_of(t->vm) : NULL;
		s32 cpu = t ? seat_cpu(t) : NO_CPU;
		struct domain_state *to;

		if (cpu < 0 || !i || !v || t->generation != SET.generation || t->slot >= SET.nr_slots ||
		    !is_member(v, domain) || !may_use(p, cpu))
			continue;
		/* Of a gang with several parts the seat may be in another domain. */
		to = domain_of(part_of(v, i)->domain);
		if (!to)
			continue;
		come_to_seat(t, i, v, to);
		/* Nothing else may wait there. */
		if (to != d)
			start_slots(to, part_of(v, i)->domain, scx_bpf_now());
		if (!scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, p, seat_queue(t->slot), 0))
			leave_seat(t);
	}
	bpf_rcu_read_unlock();
}

/*
 * vCPUs that have a seat and wait in the pool, or as bound to a CPU, because they came there before slots were planned or before
 * their VM formed a gang, come to their seats: no plan names them where they are.
 */
SEPARATE int seat_all(struct domain_state *d, u32 domain)
{
	s32 lane;

	if (!d)
		return 0;
	d->pooled = 0;
	seat_queued(d, domain, pool_queue(domain));
	bpf_for(lane, 0, INSTEP_LANES)
		if (d->lanes & pol_lane(lane))
			seat_queued(d, domain, bound_queue(cpu_at(d, lane)));
	return 0;
}

/* A VM goes to another domain, with its lag. */
SEPARATE int change_domain(u32 vm, u32 to, u64 now)
{
	struct instep_vm_settings *s = vm_set_of(vm);
	struct vm_state *v = vm_of(vm);
	struct domain_state *d, *e = domain_of(to);

	if (!s || !v || !e)
		return 0;
	d = domain_of(v->account.domain);
	if (!d || !take_vm(v))
		return 0;
	enter_domain(v, to);
	d->stale = 1;
	e->stale = 1;
	/* What has several parts gets others below. */
	if (!is_spread(v))
		move_load(d, e, load_of(&v->account));
	count(INSTEP_C_MOVE_DOMAIN);
	if (v->seats || is_spread(v))
		seat_gang(vm, v, e, s->cosched == INSTEP_COSCHED_RELAXED, now);
	v->changes = 0;
	start_parts(vm, now);
	return 0;
}

/* User space has said that a VM is at home on another node than that of its domain. */
SEPARATE int go_home(u32 vm, u64 now)
{
	struct vm_state *v = vm_of(vm);
	struct instep_vm_settings *s = vm_set_of(vm);
	struct domain_state *d;
	u32 to;

	if (!v || !s || !v->joined || is_spread_gang(v) || home_of(s) == INSTEP_NO_NODE)
		return 0;
	d = domain_of(v->account.domain);
	if (!d || d->node == s->home_node)
		return 0;
	to = least_loaded(s->home_node, false, NULL);
	d = domain_of(to);
	if (d && d->node == s->home_node && lanes_for(v, d))
		change_domain(vm, to, now);
	return 0;
}

/* Whether a VM may be moved to another domain as a whole. */
static __always_inline bool may_leave(u32 vm, struct vm_state *v, struct domain_state *to)
{
	struct instep_vm_settings *s = vm_set_of(vm);

	if (!s || is_spread(v) || v->seats > room_for(v, to) || pol_count(lanes_for(v, to)) < pol_min(s->nr_vcpus, pol_count(v->allowed)))
		return false;
	return home_of(s) == INSTEP_NO_NODE || home_of(s) == to->node;
}

/* The VM of a domain that leaves its load and that of another nearest to each other, if the higher one becomes lower; 0 else. */
SEPARATE u32 best_to_move(struct domain_state *d, struct domain_state *e)
{
	u32 n, found = 0, least = ~0u;
	s32 k;

	if (!d || !e)
		return 0;
	n = members_of(d);
	bpf_for(k, 0, n) {
		u32 vm = d->members[within(k, INSTEP_MAX_VMS)], share, here, there, apart;
		struct vm_state *v = vm_of(vm);

		/* Wide gangs are spread by their number first. */
		if (!v || v->account.domain != d->host.domain || !may_leave(vm, v, e) ||
		    (v->seats * 2 > d->nr_lanes && d->nr_wide <= e->nr_wide))
			continue;
		share = load_of(&v->account);
		here = load_per_cpu(d, -(s32)share);
		there = load_per_cpu(e, share);
		/* Afterwards the other domain is to be less loaded than this one was, by a sixteenth of its CPUs. */
		if (!share || there + POL_CPU / 16 >= load_per_cpu(d, 0))
			continue;
		apart = here > there ? here - there : there - here;
		if (apart >= least)
			continue;
		found = vm;
		least = apart;
	}
	return found;
}

/* One VM of the most loaded domain goes to the least loaded one; else a thread of the host, as soon as a CPU there chooses. */
SEPARATE int move_vm(u64 now)
{
	u32 from = 0, to = least_loaded(INSTEP_NO_NODE, false, &from), vm;
	struct domain_state *d = domain_of(from), *e = domain_of(to);
	struct vm_state *v;

	if (!d || !e || from == to || !d->nr_lanes || !e->nr_lanes)
		return 0;
	vm = best_to_move(d, e);
	v = vm_of(vm);
	if (vm && v)
		change_domain(vm, to, now);
	else if (SET.thread_weight && load_per_cpu(d, 0) > POL_CPU && !d->isolated && !e->isolated)
		e->pulls = from + 1;
	return 0;
}

#define PULL_LOOKS 16

/* What a thread of the host loads its domain with. */
static __always_inline u32 load_of_thread(struct task_state *t)
{
	return pol_share(POL_CPU, pol_claim((u64)t->weight * SET.thread_weight / POL_WEIGHT, INSTEP_STATE->level));
}

/* Takes a thread of the host from another domain's pool into this one's, of the first 16 there. Only from ops.dispatch. */
SEPARATE int pull_thread(struct domain_state *e, s32 cpu)
{
	u32 from, load, seen = 0;
	struct domain_state *d;
	struct task_struct *p;

	if (!e)
		return 0;
	from = __sync_lock_test_and_set(&e->pulls, 0) - 1;
	d = domain_of(from);
	if (!d)
		return 0;
	bpf_for_each(scx_dsq, p, pool_queue(from), 0) {
		struct task_state *t = task_of(p);

		if (seen++ >= PULL_LOOKS)
			break;
		if (!t || t->vm != INSTEP_HOST || !t->is_long || is_overdue_place(p->scx.dsq_vtime, d) || !may_use(p, cpu))
			continue;
		load = load_of_thread(t);
		if (load_per_cpu(d, -(s32)load) < load_per_cpu(e, load))
			continue;
		move_load(d, e, load);
		scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, p->scx.dsq_vtime + e->clock - d->clock);
		e->in_pool.put_at = scx_bpf_now();
		if (scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, p, pool_queue(e->host.domain), 0))
			count(INSTEP_C_MOVE_THREAD);
		break;
	}
	return 0;
}

/*
 * Before a CPU chooses: what is overdue in its domain's pool, and what comes from another's. Also before bound threads: all of these
 * may be overdue.
 */
static __always_inline void tend_pool(struct domain_state *d, s32 cpu, u64 now)
{
	if (!is_seen_empty(&d->in_pool, now))
		sweep_seldom(d, pool_queue(d->host.domain), &d->swept_at, now);
	if (d->pulls)
		pull_thread(d, cpu);
}

/* A gang of more than half a domain's CPUs goes from the domain with the most such gangs to the one with the fewest. */
SEPARATE int move_wide(u64 now)
{
	u32 from = 0, to = least_loaded(INSTEP_NO_NODE, true, &from), n;
	struct domain_state *d = domain_of(from), *e = domain_of(to);
	s32 k;

	if (!d || !e || d->nr_wide < e->nr_wide + 2)
		return false;
	n = members_of(d);
	bpf_for(k, 0, n) {
		u32 vm = d->members[within(k, INSTEP_MAX_VMS)];
		struct vm_state *v = vm_of(vm);

		if (!v || v->account.domain != from || v->seats * 2 <= d->nr_lanes || !may_leave(vm, v, e))
			continue;
		d->nr_wide--;
		e->nr_wide++;
		change_domain(vm, to, now);
		return true;
	}
	return false;
}

/* Now and then, on whichever CPU comes first. */
static __always_inline void balance_domains(u64 now)
{
	u64 at = INSTEP_STATE->spread_at;

	if (!on(INSTEP_M_MOVES) || SET.nr_domains < 2 || pol_since(at, now) < REST_NS / 2 ||
	    __sync_val_compare_and_swap(&INSTEP_STATE->spread_at, at, now) != at)
		return;
	if (!move_wide(now))
		move_vm(now);
}

/* A vCPU runs: its VM goes to its domain if none of its vCPUs may use the VM's any more. */
static __always_inline void follow(struct task_struct *p, struct task_state *t, struct cpu_state *c, u64 now)
{
	struct slot_info *i = slot_of(t->slot);
	struct vm_state *v = vm_of(t->vm);

	if (!i || !v)
		return;
	if (i->noted != v->account.domain + 1)
		note_allowed(p, t);
	if (v->allowed || c->domain == v->account.domain)
		return;
	change_domain(t->vm, c->domain, now);
	note_allowed(p, t);
}

/* Each window of evidence. */
static __always_inline void review_vm(u32 vm, u64 now)
{
	struct vm_state *v = vm_of(vm);

	if (!v || pol_since(v->window_at, now) < WINDOW_NS)
		return;
	end_window(vm, now);
	go_home(vm, now);
	start_parts(vm, now);
}

#endif
