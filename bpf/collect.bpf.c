/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Collector of scheduling events for `instep record`: switches, wake-ups, migrations, births, ends
 * and names of threads, which thread runs which vCPU, and ends of vCPUs' halts, into one ring.
 *
 * Problem: what a recording costs is what it changes. perf and ftrace carry two names and two
 * priorities with every switch.
 * Method: 24 bytes an event and a name only when it is new; nobody is woken: user space looks at
 * the ring a few times a second. An event for which there is no room is counted on its CPU, and
 * user space writes the count where it happened. kvm_entry, the most frequent event of a host, is
 * one look-up and puts something into the ring only the first time. Whether a wake-up comes out of an
 * interrupt the kernel's interrupt count tells; where that cannot be named (CONFIG_KALLSYMS_ALL off,
 * other architectures than x86) entries and exits of interrupts are followed. User space loads
 * the one or the other set of programs.
 * Limits: events of different CPUs may lie in the ring in another order than their times, by less
 * than user space's round. One ring for all CPUs: its lock is short, but on hosts with hundreds of
 * CPUs and millions of events a second per-CPU rings would be better.
 *
 * Kernels: tp_btf programs and sched_switch's fourth argument, Linux 5.18 and later. The states
 * are those of include/linux/sched.h, Linux 6.18.
 */
#include <vmlinux.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#include "collect.h"

char _license[] SEC("license") = "GPL";

#define STATE_INTERRUPTIBLE 0x01
#define STATE_UNINTERRUPTIBLE 0x02
#define STATE_DEAD 0xb0 /* TASK_DEAD, EXIT_DEAD, EXIT_ZOMBIE */
#define STATE_RTLOCK_WAIT 0x1000
#define PREEMPT_SOFTIRQ 0x00000100 /* serving, not merely disabled */
#define PREEMPT_HARDIRQ 0x00ff0000 /* hard interrupt (4 bits) and NMI (4 bits) */

/* Whether wake-ups and moves of wanted thread groups alone are recorded. */
const volatile bool only_wanted = false;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} lost SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, COLLECT_MAX_WANTED);
	__type(key, u32);
	__type(value, u8);
} wanted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, COLLECT_MAX_VCPUS);
	__type(key, u32);
	__type(value, u32);
} entered SEC(".maps");

/* What interrupts each CPU is in, where they are followed. */
struct interrupts {
	u8 hard;
	u8 soft;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct interrupts);
} interrupted SEC(".maps");

/* The interrupt count: a per-CPU variable of its own up to 6.1 and from 6.15 on, in pcpu_hot between. */
extern const int __preempt_count __ksym __weak;

struct pcpu_hot___instep {
	int preempt_count;
} __attribute__((preserve_access_index));

extern const struct pcpu_hot___instep pcpu_hot __ksym __weak;

struct kvm_vcpu___instep {
	int vcpu_id;
} __attribute__((preserve_access_index));

static __always_inline struct interrupts *interrupts_here(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&interrupted, &zero);
}

static __always_inline u8 context_followed(void)
{
	struct interrupts *here = interrupts_here();

	if (!here)
		return COLLECT_THREAD;
	if (here->hard)
		return COLLECT_HARDIRQ;
	return here->soft ? COLLECT_SOFTIRQ : COLLECT_THREAD;
}

static __always_inline u8 context_counted(void)
{
	int count = 0;

	if (bpf_ksym_exists(&__preempt_count))
		count = *(int *)bpf_this_cpu_ptr(&__preempt_count);
	else if (bpf_ksym_exists(&pcpu_hot) && bpf_core_field_exists(pcpu_hot.preempt_count))
		count = ((struct pcpu_hot___instep *)bpf_this_cpu_ptr(&pcpu_hot))->preempt_count;
	if (count & PREEMPT_HARDIRQ)
		return COLLECT_HARDIRQ;
	return count & PREEMPT_SOFTIRQ ? COLLECT_SOFTIRQ : COLLECT_THREAD;
}

static __always_inline void count_lost(void)
{
	u32 zero = 0;
	u64 *count = bpf_map_lookup_elem(&lost, &zero);

	if (count)
		*count += 1;
}

static __always_inline void put(u8 kind, u8 arg, u32 a, u32 b, u32 c)
{
	u64 now = bpf_ktime_get_ns();
	struct collect_event *e = bpf_ringbuf_reserve(&ring, sizeof(*e), 0);

	if (!e) {
		count_lost();
		return;
	}
	e->time_ns = now;
	e->a = a;
	e->b = b;
	e->c = c;
	e->cpu = bpf_get_smp_processor_id();
	e->kind = kind;
	e->arg = arg;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
}

static __always_inline void put_named(u8 kind, u32 a, u32 b, u32 c, const char *name)
{
	u64 now = bpf_ktime_get_ns();
	struct collect_named *n = bpf_ringbuf_reserve(&ring, sizeof(*n), 0);

	if (!n) {
		count_lost();
		return;
	}
	n->event.time_ns = now;
	n->event.a = a;
	n->event.b = b;
	n->event.c = c;
	n->event.cpu = bpf_get_smp_processor_id();
	n->event.kind = kind;
	n->event.arg = 0;
	if (bpf_probe_read_kernel_str(n->name, sizeof(n->name), name) < 0)
		n->name[0] = 0;
	bpf_ringbuf_submit(n, BPF_RB_NO_WAKEUP);
}

static __always_inline bool is_wanted(struct task_struct *p)
{
	u32 tgid = p->tgid;

	return !only_wanted || bpf_map_lookup_elem(&wanted, &tgid);
}

static __always_inline void put_wake(u8 kind, u8 context, struct task_struct *p)
{
	if (is_wanted(p))
		put(kind, context, p->pid, p->thread_info.cpu,
		    (u32)bpf_get_current_pid_tgid());
}

static __always_inline u8 left_as(bool preempt, unsigned int state)
{
	if (preempt || !state)
		return COLLECT_RUNNABLE;
	if (state & STATE_DEAD)
		return COLLECT_DEAD;
	if (state & (STATE_UNINTERRUPTIBLE | STATE_RTLOCK_WAIT))
		return COLLECT_UNINTERRUPTIBLE;
	return state & STATE_INTERRUPTIBLE ? COLLECT_ASLEEP : COLLECT_OTHER;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(collect_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     unsigned int state)
{
	put(COLLECT_SWITCH, left_as(preempt, state), prev->pid, next->pid, 0);
	return 0;
}

/* One program a tracepoint and way to tell interrupts. */
#define WAKE(name, tracepoint, kind, context)                 \
	SEC("tp_btf/" tracepoint)                              \
	int BPF_PROG(collect_##name, struct task_struct *p)    \
	{                                                      \
		put_wake(kind, context(), p);                  \
		return 0;                                      \
	}

WAKE(waking, "sched_waking", COLLECT_WAKING, context_counted)
WAKE(wakeup, "sched_wakeup", COLLECT_WAKEUP, context_counted)
WAKE(wakeup_new, "sched_wakeup_new", COLLECT_WAKEUP_NEW, context_counted)
WAKE(waking_f, "sched_waking", COLLECT_WAKING, context_followed)
WAKE(wakeup_f, "sched_wakeup", COLLECT_WAKEUP, context_followed)
WAKE(wakeup_new_f, "sched_wakeup_new", COLLECT_WAKEUP_NEW, context_followed)

/* Handlers of one kind do not nest, so a flag is enough, and it mends itself. */
#define FOLLOW(name, tracepoint, which, value)                \
	SEC("tp_btf/" tracepoint)                              \
	int BPF_PROG(collect_##name)                           \
	{                                                      \
		struct interrupts *here = interrupts_here();   \
							       \
		if (here)                                      \
			here->which = value;                   \
		return 0;                                      \
	}

FOLLOW(timer_exit, "local_timer_exit", hard, 0)
FOLLOW(timer_entry, "local_timer_entry", hard, 1)
FOLLOW(irq_exit, "irq_handler_exit", hard, 0)
FOLLOW(irq_entry, "irq_handler_entry", hard, 1)
FOLLOW(softirq_exit, "softirq_exit", soft, 0)
FOLLOW(softirq_entry, "softirq_entry", soft, 1)

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(collect_migrate, struct task_struct *p, int to)
{
	if (is_wanted(p))
		put(COLLECT_MIGRATE, 0, p->pid, p->thread_info.cpu, to);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(collect_fork, struct task_struct *parent, struct task_struct *child)
{
	put_named(COLLECT_FORK, parent->pid, child->pid, child->tgid, child->comm);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(collect_exit, struct task_struct *p)
{
	put(COLLECT_EXIT, 0, p->pid, 0, 0);
	return 0;
}

SEC("tp_btf/task_rename")
int BPF_PROG(collect_rename, struct task_struct *p, const char *name)
{
	put_named(COLLECT_RENAME, p->pid, 0, p->tgid, name);
	return 0;
}

SEC("tp_btf/kvm_entry")
int BPF_PROG(collect_kvm_entry, struct kvm_vcpu___instep *vcpu)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	u32 *known, id;

	/* Linux 7.2's verifier takes tracepoints of modules to pass anything, a null pointer too. */
	if (!vcpu)
		return 0;
	known = bpf_map_lookup_elem(&entered, &tid);
	id = BPF_CORE_READ(vcpu, vcpu_id);
	if (known && *known == id)
		return 0;
	bpf_map_update_elem(&entered, &tid, &id, BPF_ANY);
	put(COLLECT_KVM_ENTRY, 0, tid, id, 0);
	return 0;
}

/* Comes in the vCPU's own thread: a halt has ended, after polling alone or after a sleep. */
SEC("tp_btf/kvm_vcpu_wakeup")
int BPF_PROG(collect_kvm_wakeup, u64 ns, bool waited)
{
	u64 who = bpf_get_current_pid_tgid();
	u32 tgid = who >> 32;

	if (!only_wanted || bpf_map_lookup_elem(&wanted, &tgid))
		put(COLLECT_KVM_WAKEUP, waited, (u32)who, (u32)ns, ns >> 32);
	return 0;
}
