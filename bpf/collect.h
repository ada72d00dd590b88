/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the collector puts into its ring: the ABI between collect.bpf.c and crates/kernel's
 * collect.rs, whose test compares offsets and sizes.
 */
#ifndef INSTEP_COLLECT_H
#define INSTEP_COLLECT_H

enum collect_kind {
	COLLECT_SWITCH = 0,	/* a: prev, b: next, arg: enum collect_left */
	COLLECT_WAKING = 1,	/* a: woken, b: its CPU, c: waker, arg: enum collect_context */
	COLLECT_WAKEUP = 2,	/* as above */
	COLLECT_WAKEUP_NEW = 3, /* as above */
	COLLECT_MIGRATE = 4,	/* a: thread, b: from, c: to */
	COLLECT_KVM_ENTRY = 5,	/* a: thread, b: number of the vCPU */
	COLLECT_FORK = 6,	/* a: parent, b: child, c: its thread group, name */
	COLLECT_EXIT = 7,	/* a: thread */
	COLLECT_RENAME = 8,	/* a: thread, c: its thread group, name */
	COLLECT_KVM_WAKEUP = 9, /* a: thread, b, c: ns halted, low and high half, arg: 1 slept */
};

/* How a thread left its CPU. */
enum collect_left {
	COLLECT_RUNNABLE = 0,
	COLLECT_ASLEEP = 1,
	COLLECT_UNINTERRUPTIBLE = 2,
	COLLECT_DEAD = 3,
	COLLECT_OTHER = 4,
};

enum collect_context {
	COLLECT_THREAD = 0,
	COLLECT_SOFTIRQ = 1,
	COLLECT_HARDIRQ = 2,
};

/* One event. Times are CLOCK_MONOTONIC. */
struct collect_event {
	unsigned long long time_ns;
	unsigned int a;
	unsigned int b;
	unsigned int c;
	unsigned short cpu;
	unsigned char kind;
	unsigned char arg;
};

/* One event with a name. */
struct collect_named {
	struct collect_event event;
	char name[16];
};

#define COLLECT_MAX_CPUS 8192
#define COLLECT_MAX_VCPUS 16384
#define COLLECT_MAX_WANTED 4096

#endif
