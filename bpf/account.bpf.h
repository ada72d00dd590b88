/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fair shares: what CPU time is charged to, what an account is entitled to, and what it may save or owe.
 *
 * Flag: shares. Counters: expired, clamped.
 *
 * Problem: the share of a VM is that of the whole VM, whichever of its vCPUs used it. A VM of one vCPU beside
 * one of 16 on 16 CPUs can never use half of the host. If both were charged by weight alone, the small one
 * would always be behind, and the large one would never have all CPUs at once.
 * Method: weighted max-min fairness. An account is entitled to
 *
 *     share = max(1/64, min(most threads that it wants to run at once, CPUs that it may use, weight * level))
 *
 * CPUs, where `level` is such that the shares of all accounts fill the host. Its virtual time advances by
 * (CPU time / share): by one second a second for an account that has exactly its share. Accounts are chosen in
 * the order of virtual time, so that all have the same fraction of what they are entitled to.
 *     The level follows the demand of all accounts once in an allocation period (24 ms), `end_period`: by steps of
 * water filling up to the fixed point (period.bpf.h).
 *     Each domain has one clock: the least virtual time of its active accounts. Accounts that want less than 7/8 of their share
 * do not count, nor, in a domain with slots, those of which some threads sleep and none waits: what these do not want would
 * hold the clock back, all others would be ahead of it as far as they may, and their order would be lost. The virtual time of
 * accounts that want less than 7/8 of their share, and of an account of which no thread had to wait during a period, is raised to
 * at most two of the VM's allocation periods (of the host's, `lag_ns`) behind the clock: neither could use more. Of an
 * account that is further ahead than it may be half of the excess is forgiven in each period. An account that goes to
 * another domain keeps its lag.
 *     An account's weight is what the tree of cgroups entitles it to (group.bpf.h), or its own.
 * Limits: the host's threads have an account in each domain. An estimate of demand lags by some periods; the most that a VM
 * wanted at once does not, so that a VM that begins to compute is not charged by what it wanted while it slept.
 */
#ifndef INSTEP_ACCOUNT_BPF_H
#define INSTEP_ACCOUNT_BPF_H

#include "limit.bpf.h"
#include "parts.bpf.h"

/*
 * So many times what it may save an account is behind its domain's clock at most, where its threads had to wait: the
 * clock may have advanced by much while few wanted to run.
 */
#define MOST_BEHIND 4

/* Threads that wait for a CPU, and are not held. */
static __always_inline u32 waiting(struct account *a)
{
	s32 n = a->nr_queued, held = a->nr_held;

	return held <= 0 ? n : n > held ? n - held : 0;
}

/*
 * Threads that want a CPU. Of the host's only those that wait count which run for long: others wait for the middle of a
 * slot by design (slot.bpf.h, serve_host), unless they use up what they have there.
 */
static __always_inline u32 wanting(struct account *a)
{
	u32 n = waiting(a);

	return a->nr_running + (a->is_host && !a->pressed && n > a->nr_long ? a->nr_long : n);
}

/* Before the number of running or waiting threads changes: for how long they were as they are. */
static __always_inline void measure(struct account *a, u64 now)
{
	u64 since = a->changed_at;

	a->changed_at = now;
	if (!since || !pol_before(since, now))
		return;
	a->want_ns += (now - since) * wanting(a);
	if (a->is_host && a->weights > 0) {
		a->weight_ns += (now - since) * (u32)a->weights;
		a->active_ns += now - since;
	}
}

/* Times of a VM: in which siblings run together and apart, the measure of co-scheduling, and in which it wants no CPU. */
static __always_inline void measure_vm(struct vm_state *v, u64 now)
{
	struct account *a = &v->account;
	u64 since = a->changed_at;

	if (!since || !pol_before(since, now))
		return;
	if (a->nr_running > 1)
		v->together_ns += now - since;
	else if (a->nr_running && waiting(a))
		v->apart_ns += now - since;
	else if (!a->nr_running && !a->nr_queued)
		v->rest_ns += now - since;
}

/* The account of a thread as it was when it was last counted; NULL if that is another's meanwhile. */
static __always_inline struct account *counted_in(struct task_state *t)
{
	struct vm_state *v;

	if (t->stands_in == INSTEP_HOST)
		return account_of(INSTEP_HOST, t->stands_on);
	v = vm_of(t->stands_in);
	return v && t->stands_as && v->generation == t->stands_as ? &v->account : NULL;
}

/* A thread that a limit holds is held no longer. */
static __always_inline void unhold(struct task_state *t, u64 now)
{
	struct account *a;

	if (!t->held || !__sync_lock_test_and_set(&t->held, 0))
		return;
	a = counted_in(t);
	if (!a)
		return;
	measure(a, now);
	__sync_fetch_and_sub(&a->nr_held, 1);
	if (t->stands_for)
		__sync_fetch_and_add(&a->weights, t->stands_for);
	charge_held(t, a, limit_clock());
}

/*
 * A thread's own time is that of its account: of its VM, or of the host's threads in this domain. A thread of the host that comes to
 * another domain keeps its lead. A thread that comes to another VM, or to the host, begins with the others.
 */
static __always_inline void settle_own(struct task_state *t, struct account *a, u32 domain)
{
	u32 in = t->vm == INSTEP_HOST ? domain : INSTEP_MAX_DOMAINS + t->vm;
	struct account *before;

	if (t->own_in != in) {
		before = t->vm == INSTEP_HOST && t->own_in < INSTEP_MAX_DOMAINS ? account_of(INSTEP_HOST, t->own_in) : NULL;
		t->own = before ? t->own + (a->mean - before->mean) : t->vm == INSTEP_HOST ? a->mean : a->front;
		t->own_in = in;
	}
	if (t->vm == INSTEP_HOST)
		t->own = pol_min(t->own, a->mean + POL_MOST_LEAD);
}

/* A thread waits, runs, or does neither from now on, on CPUs of this domain. */
static __noinline void count_thread(struct task_state *t, u32 standing, u32 domain, u64 now)
{
	struct account *a;
	struct vm_state *v;
	u32 active;

	if (!t)
		return;
	if (t->vm == INSTEP_HOST)
		note_want(t, now);
	unhold(t, now);
	if (standing == STANDS_RUNNING)
		t->ran_at = now;
	a = counted_in(t);
	if (standing == STANDS_QUEUED && t->standing != STANDS_QUEUED) {
		t->waits_since = now;
		/* A thread whose CPU is taken from it at once, as by the begin of a slot, has waited all the time. */
		if (t->standing == STANDS_NOWHERE || pol_since(t->ran_at, now) >= SET.slice_ns / 2)
			t->queued_at = now;
	} else if (standing == STANDS_QUEUED && a && t->vm != INSTEP_HOST && t->stands_in == t->vm && t->stands_long == t->is_long) {
		return; /* a vCPU that the kernel queues again when its slice is over was counted when it stopped */
	}
	if (t->standing != STANDS_NOWHERE && a) {
		v = vm_of(t->stands_in);
		if (t->stands_in != INSTEP_HOST && v)
			measure_vm(v, now);
		measure(a, now);
		if (!__sync_fetch_and_sub(t->standing == STANDS_QUEUED ? &a->nr_queued : &a->nr_running, 1))
			scx_bpf_error("a thread leaves the account of VM %u, which counts none", t->stands_in);
		if (t->stands_long)
			__sync_fetch_and_sub(&a->nr_long, 1);
		if (t->stands_for)
			__sync_fetch_and_sub(&a->weights, t->stands_for);
	}
	t->stands_long = 0;
	t->stands_for = 0;
	t->standing = standing;
	if (standing == STANDS_NOWHERE)
		return;
	v = vm_of(t->vm);
	t->stands_in = t->vm;
	t->stands_on = domain;
	t->stands_as = v ? v->generation : 0;
	a = counted_in(t);
	if (!a) {
		t->standing = STANDS_NOWHERE;
		return;
	}
	if (t->vm != INSTEP_HOST && v)
		measure_vm(v, now);
	settle_own(t, a, domain);
	measure(a, now);
	__sync_fetch_and_add(standing == STANDS_QUEUED ? &a->nr_queued : &a->nr_running, 1);
	if (t->is_long) {
		t->stands_long = 1;
		__sync_fetch_and_add(&a->nr_long, 1);
	}
	if (t->vm == INSTEP_HOST) {
		t->stands_for = t->weight;
		if (standing == STANDS_QUEUED && SET.thread_weight)
			t->stands_for = wanted_part(t, t->weight) ?: 1;
		__sync_fetch_and_add(&a->weights, t->stands_for);
	}
	if (standing == STANDS_QUEUED)
		a->waited = 1;
	else
		a->served_at = now;
	active = wanting(a);
	if (active > a->peak)
		a->peak = active;
}

/* How much virtual time a VM may save: two of its allocation periods. */
static __always_inline u64 lag_of(u32 vm)
{
	struct instep_vm_settings *s = vm_set_of(vm);

	return vm != INSTEP_HOST && s && s->period_ns ? 2 * s->period_ns : SET.lag_ns;
}

/* An account has no weight before the end of its first period: until then it is entitled to what it wants. */
static __always_inline u32 weight_of(struct account *a)
{
	return a->weight ?: POL_WEIGHT;
}

/* What an account is entitled to now: what it wants at once may have grown since the last period. */
static __always_inline u32 share_of(struct account *a)
{
	u32 peak = a->peak > a->peak_before ? a->peak : a->peak_before;

	if (!on(INSTEP_M_SHARES))
		return pol_share(~0u, (u64)weight_of(a) * POL_CPU / (SET.thread_weight ? 1000 : 100));
	if (a->room && peak > a->room)
		peak = a->room;
	return pol_share(peak * POL_CPU, pol_claim(weight_of(a), INSTEP_STATE->level));
}

/*
 * A VM with several parts is charged in each domain for what it uses there: its share of that part is smaller. In pools a part is
 * charged as if the VM's threads were divided evenly; what this leaves out all parts share at the end of a window.
 */
SEPARATE int charge_part(struct vm_state *v, u32 domain, u64 cost)
{
	struct gang_part *part;
	u64 own = 0;

	if (!v)
		return 0;
	part = part_in(v, domain);
	if (part->domain == domain)
		own = v->seats ? cost * v->seats / (pol_count(part->set) ?: 1) : cost * pol_min(v->nr_parts, wanting(&v->account));
	if (own)
		__sync_fetch_and_add(&part->vtime, own);
	if (!v->seats && own < cost * v->nr_parts)
		__sync_fetch_and_add(&v->uneven, cost * v->nr_parts - own);
	return 0;
}

/* Charges what the running thread of a CPU has used since it was last charged. */
SEPARATE int charge(s32 cpu, u64 now)
{
	struct cpu_state *c = cpu_of(cpu);
	struct slot_info *i;
	struct account *a;
	struct vm_state *v;
	u64 since, ran, cost;

	if (!c || !c->tid || !pol_before(c->since, now))
		return 0;
	/* Another CPU may do so at the same time: whoever exchanges first charges. */
	since = __sync_lock_test_and_set(&c->since, now);
	if (!pol_before(since, now))
		return 0;
	ran = now - since;
	c->own += ran * POL_WEIGHT / (c->weight ?: 1);
	a = account_of(c->vm, c->domain);
	if (!a)
		return 0;
	if (a->is_host) {
		__sync_fetch_and_add(&a->mean, ran * POL_WEIGHT / (a->weights > (s32)c->weight ? a->weights : c->weight ?: 1));
		if (pol_before(a->front, a->mean))
			a->front = a->mean;
		if (pol_before(since, c->lends))
			__sync_fetch_and_add(&a->in_windows, pol_min(ran, c->lends - since));
	}
	i = slot_of(c->slot);
	v = vm_of(c->vm);
	cost = pol_charge(ran, share_of(a));
	if (!c->hole) {
		__sync_fetch_and_add(&a->vtime, cost);
		if (v && is_spread(v))
			charge_part(v, c->domain, cost);
	} else if (v) {
		__sync_fetch_and_add(&v->spare, cost);
	}
	__sync_fetch_and_add(&a->total_ns, ran);
	if (i && v) {
		i->ran_ns += ran;
		__sync_fetch_and_add(&v->ran_ns, ran);
	}
	return 0;
}

/* Sets an account's virtual time unless it has been charged meanwhile: no charge is lost. */
static __always_inline bool set_vtime(struct account *a, u64 before, u64 vtime)
{
	return __sync_val_compare_and_swap(&a->vtime, before, vtime) == before;
}

static __always_inline u64 clock_of(u32 domain)
{
	struct domain_state *d = domain_of(domain);

	return d ? d->clock : POL_ORIGIN;
}

/*
 * The virtual time that counts where a thread of an account waits or runs. One outside the domains of its VM's parts, as a sibling
 * that blocks of a gang may be, is as far ahead of that domain's clock as the account is of its own.
 */
static __always_inline u64 vtime_at(struct account *a, u32 vm, u32 domain)
{
	struct vm_state *v = vm_of(vm);

	if (v && is_spread_pool(v) && is_member(v, domain))
		return vtime_in(v, domain);
	return a->vtime + clock_of(domain) - clock_of(a->domain);
}

/* What the parts of a VM in several pools did not use is gone but for what an account may save. */
SEPARATE int expire_parts(u32 vm)
{
	struct vm_state *v = vm_of(vm);
	s32 k;

	if (!v)
		return 0;
	bpf_for(k, 0, parts_of(v)) {
		struct domain_state *d = domain_of_part(v, k);
		struct gang_part *part = &v->parts[within(k, INSTEP_MAX_PARTS)];

		if (d)
			part->vtime = pol_max(part->vtime, d->clock - lag_of(vm));
	}
	return 0;
}

/* An account none of whose threads runs or waits comes back: what it did not use is gone but for what it may save. */
static __always_inline void expire_saved_time(struct account *a, u32 vm)
{
	u64 least = clock_of(a->domain) - lag_of(vm), vtime = a->vtime;
	struct vm_state *v = vm_of(vm);

	if (a->nr_running || waiting(a))
		return;
	if (pol_before(vtime, least) && set_vtime(a, vtime, least))
		count(INSTEP_C_EXPIRED);
	if (v && is_spread_pool(v))
		expire_parts(vm);
}

/* How much an account loads its domain, 1024ths of a CPU. */
static __always_inline u32 load_of(struct account *a)
{
	return a->demand < a->share ? a->demand : a->share;
}

/* An account goes to another domain, with its lag. */
static __always_inline void enter_domain(struct vm_state *v, u32 to)
{
	v->account.vtime += clock_of(to) - clock_of(v->account.domain);
	v->account.domain = to;
	v->allowed = ~0ull;
}

static __always_inline bool is_active(struct account *a)
{
	return a->nr_running + waiting(a) > 0;
}

/*
 * By how much an account has waited for too long, 0 if it has not: one of which no thread runs while one waits, or a gang
 * that had no slot. vCPUs of a gang that fill holes do not count: their siblings wait.
 */
static __always_inline u64 overdue_by(struct account *a, struct vm_state *v, u64 now)
{
	bool gang = v && is_gang(v);
	u64 patience = pol_patience(wanting(a), a->share);
	u64 waited = pol_since(gang ? v->granted_at : a->served_at, now);

	return waiting(a) && (gang || !a->nr_running) && waited > patience ? waited - patience : 0;
}

#endif
