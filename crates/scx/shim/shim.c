/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Instep's scheduler as it is, and what fills and reads its state: so no layout of bpf/intf.h or
 * bpf/state.bpf.h is known outside C.
 */
#include "main.bpf.c"

__thread const struct shim_here *shim_here;

void shim_enter(const struct shim_here *here)
{
	shim_here = here;
}

const struct shim_here *shim_where(void)
{
	return shim_here;
}

size_t shim_state_size(void)
{
	return sizeof(struct host_state);
}

size_t shim_storage_size(void)
{
	return sizeof(struct task_state);
}

size_t shim_thread_size(void)
{
	return sizeof(struct instep_thread);
}

/* Sizes and offsets for the test that compares src/abi.rs; 0 after the last. */
size_t shim_layout(u32 at)
{
	const size_t layout[] = {
		sizeof(struct cpumask),
		sizeof(struct task_struct),
		offsetof(struct task_struct, cpus_ptr),
		offsetof(struct task_struct, scx.slice),
		offsetof(struct task_struct, scx.flags),
		offsetof(struct task_struct, se),
		offsetof(struct task_struct, stored),
		offsetof(struct task_struct, group),
		offsetof(struct task_struct, storage),
		sizeof(struct shim_here),
		offsetof(struct shim_here, online),
		offsetof(struct shim_here, in_interrupt),
		sizeof(struct sched_ext_ops),
		offsetof(struct sched_ext_ops, yield),
		offsetof(struct sched_ext_ops, init),
		offsetof(struct sched_ext_ops, timeout_ms),
		sizeof(struct bpf_iter_scx_dsq),
		offsetof(struct bpf_iter_scx_dsq, set),
	};

	return at < ARRAY_SIZE(layout) ? layout[at] : 0;
}

u32 shim_mechanisms(void)
{
	return INSTEP_M_ALL;
}

u32 shim_max_cpus(void)
{
	return INSTEP_MAX_CPUS;
}

u32 shim_max_vms(void)
{
	return INSTEP_MAX_VMS;
}

u32 shim_max_slots(void)
{
	return INSTEP_MAX_SLOTS;
}

u32 shim_max_vcpus(void)
{
	return INSTEP_MAX_VCPUS;
}

u32 shim_max_groups(void)
{
	return SHIM_MAX_GROUPS;
}

void shim_set_times(struct host_state *s, u64 slice, u64 slot, u64 wake_slack, u64 lag)
{
	s->set.slice_ns = slice;
	s->set.slot_ns = slot;
	s->set.wake_slack_ns = wake_slack;
	s->set.lag_ns = lag;
}

void shim_set_host(struct host_state *s, u32 host_weight, u32 without, u32 nr_cpus, u32 nr_domains, u32 nr_slots)
{
	s->set.host_weight = host_weight;
	s->set.mechanisms = INSTEP_M_ALL & ~without;
	s->set.nr_cpus = nr_cpus;
	s->set.nr_domains = nr_domains;
	s->set.nr_slots = nr_slots;
	s->set.generation = 1;
}

/* A CPU's place, told in the order of lanes. `first`: of its core, of its cache. */
void shim_set_cpu(struct host_state *s, u32 cpu, s32 node, u32 domain, u32 lane, u64 core, bool first_of_cache)
{
	struct domain_state *d = &s->domains[within(domain, INSTEP_MAX_DOMAINS)];

	if (cpu >= INSTEP_MAX_CPUS)
		return;
	s->cpus[cpu].node = node;
	s->cpus[cpu].domain = domain;
	s->cpus[cpu].lane = lane;
	s->cpus[cpu].core = core;
	d->node = node;
	d->cpu[within(lane, INSTEP_LANES)] = cpu;
	d->lanes |= pol_lane(lane);
	d->nr_lanes++;
	if (!(core & (pol_lane(lane) - 1)))
		d->first |= pol_lane(lane);
	if (core == pol_lane(lane))
		d->alone |= pol_lane(lane);
	if (first_of_cache)
		d->caches |= pol_lane(lane);
}

void shim_set_vm(struct host_state *s, u32 vm, u32 weight, u64 period, u32 cosched, u32 latency,
		 u32 first_slot, u32 nr_vcpus)
{
	if (vm >= INSTEP_MAX_VMS)
		return;
	s->vm_set[vm] = (struct instep_vm_settings){
		.period_ns = period,
		.weight = weight,
		.home_node = INSTEP_NO_NODE,
		.cosched = cosched,
		.latency = latency,
		.first_slot = first_slot,
		.nr_vcpus = nr_vcpus,
	};
	s->vms[vm].generation = s->set.generation;
	if (vm >= s->nr_vms)
		s->nr_vms = vm + 1;
}

void shim_set_home(struct host_state *s, u32 vm, s32 node)
{
	if (vm < INSTEP_MAX_VMS)
		s->vm_set[vm].home_node = node;
}

/* As user space does when the entry of a VM that is gone becomes another's (crates/kernel, `end` and `begin`), ... */
void shim_end_vm(struct host_state *s, u32 vm)
{
	s->vms[within(vm, INSTEP_MAX_VMS)].generation = 0;
}

void shim_begin_vm(struct host_state *s, u32 vm)
{
	struct vm_state *v = &s->vms[within(vm, INSTEP_MAX_VMS)];
	struct instep_vm_settings *set = &s->vm_set[within(vm, INSTEP_MAX_VMS)];

	*v = (struct vm_state){ .generation = s->set.generation + 1 };
	for (u32 slot = set->first_slot; slot < set->first_slot + set->nr_vcpus; slot++)
		s->slots[within(slot, INSTEP_MAX_SLOTS)] = (struct slot_info){};
}

/* The same when a VM comes or goes: the planner of its domain lists the domain's VMs anew, ... */
void shim_note_change(struct host_state *s, u32 vm)
{
	struct vm_state *v = &s->vms[within(vm, INSTEP_MAX_VMS)];

	if (v->joined)
		s->domains[within(v->account.domain, INSTEP_MAX_DOMAINS)].stale = 1;
}

/* ... and when the threads are told of it. */
void shim_next_generation(struct host_state *s)
{
	s->set.generation++;
}

/* How many of its vCPUs wait for a CPU, and how many run. */
u32 shim_vm_waiting(const struct host_state *s, u32 vm)
{
	return s->vms[within(vm, INSTEP_MAX_VMS)].account.nr_queued;
}

u32 shim_vm_running(const struct host_state *s, u32 vm)
{
	return s->vms[within(vm, INSTEP_MAX_VMS)].account.nr_running;
}

/* For how long CPU limits held them, summed, nanoseconds. */
u64 shim_vm_held(const struct host_state *s, u32 vm)
{
	return s->vms[within(vm, INSTEP_MAX_VMS)].account.held_ns;
}

/* How often they blocked. */
u64 shim_vm_blocks(const struct host_state *s, u32 vm)
{
	return s->vms[within(vm, INSTEP_MAX_VMS)].total_blocks;
}

/* Breaks the counts of a VM's threads, for a test of what follows. */
void shim_forget_threads(struct host_state *s, u32 vm)
{
	struct account *a = &s->vms[within(vm, INSTEP_MAX_VMS)].account;

	a->nr_queued = 0;
	a->nr_running = 0;
}

/* The same for a domain's CPUs. */
void shim_forget_cpus(struct host_state *s, u32 domain)
{
	s->domains[within(domain, INSTEP_MAX_DOMAINS)].nr_lanes = 0;
}

/* Isolated CPUs: only threads run on a domain's that are bound to such. */
void shim_isolate(struct host_state *s, u32 domain)
{
	s->domains[within(domain, INSTEP_MAX_DOMAINS)].isolated = 1;
}

void shim_set_thread(void *threads, u32 tid, u64 start_ticks, u32 vm, u32 slot)
{
	((struct instep_thread *)threads)[tid] = (struct instep_thread){
		.start_ticks = start_ticks,
		.vm = vm,
		.slot = slot,
	};
}

/* A cgroup: its CPU limit, and the cgroup above it. */
void shim_set_group(struct host_state *s, u32 group, u64 quota, u64 period, u64 burst, u32 above)
{
	struct shim_group *g = &s->cgroups[group % SHIM_MAX_GROUPS];

	*g = (struct shim_group){ g->shares ?: GROUP_SHARES, quota, period, burst, above, g->owner };
}

/* A cgroup without a limit: its weight as in cpu.weight. */
void shim_weigh_group(struct host_state *s, u32 group, u32 weight, u32 above)
{
	struct shim_group *g = &s->cgroups[group % SHIM_MAX_GROUPS];

	*g = (struct shim_group){ weight * GROUP_SHARES / 100, ~0ull, 0, 0, above, g->owner };
}

/* The same as the kernel has it: cpu.idle is a weight that no cpu.weight gives. */
void shim_share_group(struct host_state *s, u32 group, u64 shares)
{
	s->cgroups[group % SHIM_MAX_GROUPS].shares = shares;
}

/* A user other than root has a cgroup. */
void shim_give_group(struct host_state *s, u32 group, u32 owner)
{
	s->cgroups[group % SHIM_MAX_GROUPS].owner = owner;
}

/* Whether there is no memory for limits that are new. */
void shim_refuse_limits(struct host_state *s, bool refused)
{
	s->no_memory = refused;
}

/* What user space reads of a cgroup, ... */
u64 shim_group_want(const struct host_state *s, u32 group)
{
	return s->groups[group % SHIM_MAX_GROUPS].want_ns;
}

u64 shim_group_shares(const struct host_state *s, u32 group)
{
	return s->groups[group % SHIM_MAX_GROUPS].shares;
}

u64 shim_group_most(const struct host_state *s, u32 group)
{
	return s->groups[group % SHIM_MAX_GROUPS].most;
}

u64 shim_group_parent(const struct host_state *s, u32 group)
{
	return s->groups[group % SHIM_MAX_GROUPS].parent;
}

/* ... for how long its limit held threads, summed over them, ... */
u64 shim_group_held(const struct host_state *s, u32 group)
{
	return s->limits[group % SHIM_MAX_GROUPS].held_ns;
}

/* ... for how long threads of a VM were runnable, summed over them, ... */
u64 shim_vm_wanted(const struct host_state *s, u32 vm)
{
	return s->vms[within(vm, INSTEP_MAX_VMS)].account.wanted_ns;
}

/* ... and what it writes: what threads of the host weigh for their cgroup, and on average, ... */
void shim_set_thread_weight(struct host_state *s, u32 group, u32 weight)
{
	s->group_weights[group % SHIM_MAX_GROUPS] = weight;
}

void shim_set_mean_weight(struct host_state *s, u32 weight)
{
	s->set.thread_weight = weight;
}

/* ... and what a VM weighs. */
void shim_set_vm_weight(struct host_state *s, u32 vm, u32 weight)
{
	s->vm_set[within(vm, INSTEP_MAX_VMS)].weight = weight;
}

/* How often a vCPU waited for microseconds of so many bits, and for how long at most. */
u32 shim_wait_count(const struct host_state *s, u32 slot, u32 bits)
{
	return s->slots[within(slot, INSTEP_MAX_SLOTS)].wait_counts[within(bits, INSTEP_WAITS)];
}

u32 shim_longest_wait_us(const struct host_state *s, u32 slot)
{
	return s->slots[within(slot, INSTEP_MAX_SLOTS)].longest_wait_us;
}

/* The gang set of a VM: lanes of its domain. */
u64 shim_vm_set(const struct host_state *s, u32 vm)
{
	return s->vms[within(vm, INSTEP_MAX_VMS)].parts[0].set;
}

/*
 * Where words lie that operations only read (`written` 0), and such that CPUs write, as offsets in the state: the
 * begin of the range with this number, or its end; 0 after the last. Entries of CPU 1, domain 1, VM 1 and slot 1 stand for all.
 */
size_t shim_words(u32 written, u32 at, u32 end)
{
#define WORDS(first, last) { offsetof(struct host_state, first), \
			     offsetof(struct host_state, last) + sizeof(((struct host_state *)0)->last) }
	const size_t words[2][12][2] = {
		{
			WORDS(set, set),
			WORDS(online, generation),
			WORDS(vm_set, vm_set),
			WORDS(cpus[1].node, cpus[1].cache),
			WORDS(domains[1].lanes, domains[1].cpu),
			WORDS(vms[1].seats, vms[1].window_at),
		},
		{
			WORDS(rolled_at, user_groups),
			WORDS(vms[1].account, vms[1].account),
			WORDS(vms[1].ran_ns, vms[1].numbering),
			WORDS(slots[1].ran_ns, slots[1].wait_counts),
			WORDS(cpus[1].owner, cpus[1].lends),
			WORDS(cpus[1].since, cpus[1].own),
			WORDS(cpus[1].counters, cpus[1].counters),
			WORDS(domains[1].idle, domains[1].seat_waits),
			WORDS(domains[1].clock, domains[1].members),
			WORDS(slots[2].ran_ns, slots[2].ran_ns),
		},
	};
#undef WORDS

	return written < 2 && at < ARRAY_SIZE(words[0]) ? words[written][at][!!end] : 0;
}

u64 shim_counter(const struct host_state *s, u32 what)
{
	u64 sum = 0;

	for (u32 cpu = 0; cpu < s->set.nr_cpus && cpu < INSTEP_MAX_CPUS; cpu++)
		sum += what < INSTEP_NR_COUNTERS ? s->cpus[cpu].counters[what] : 0;
	return sum;
}
