//! Seeds that no made host has as a file: configuration, journal, QMP, buffers of traced switches, and forms
//! of /proc and /sys that only other kernels write.

/// A line of the history.
pub(crate) const MOMENT: &[u8] = br#"{"schema":"instep.moment/1","at_ms":1764161234567,"changes":[{"at":"x","vm":"a","uuid":"","kind":"soft_home","threads":0,"to":"1","why":"","outcome":"done"}],"host":{"schema":"instep.host/1","window_ns":1000000000,"others_milli":20,"nodes":[{"id":0,"memory_bytes":1,"llcs":[[[0,1],[2,3]]]}],"vms":[{"name":"a","uuid":null,"pid":7,"used_milli":900,"steal_milli":5,"throttled_milli":0,"quota_milli":null,"co_run_milli":640,"locality_milli":1000,"memory_bytes_by_node":{"0":4096},"selected":true,"home_nodes":[0],"why":"x","vcpus":[{"index":0,"tid":8,"cpu":1,"used_milli":900,"steal_milli":5,"cpus":"0-3","was":null,"planned":null}]}],"left_alone":[{"name":"b","pid":9,"why":"y"}]}}
"#;

/// Targets and their seeds.
pub(crate) const TEXTS: &[(&str, &[&[u8]])] = &[
    (
        "config",
        &[
            b"policy = \"instep\"\ninterval = \"60s\"\nwindow = \"1s\"\nmend_conflicts = true\n\
              include_pinned = false\nvms = [\"a\"]\n[memory]\nhome = true\n\
              per_cycle = \"1GiB\"\nbatch = \"4MiB\"\ntime_per_cycle = \"500ms\"\n",
            b"bnn",
            b"interval = 60\nunknown = 1\n",
        ],
    ),
    (
        "history",
        &[
            br#"{"schema":"instep.history/1","minutes":[7,9],"vms":[{"name":"a","uuid":"","samples":
              [null,[1,2,3,null,1000]]}],"changes":[{"at":"x","vm":"a","uuid":"","kind":"soft_home",
              "threads":0,"to":"1","why":"","outcome":"done"}]}"#,
            br#"{"schema":"instep.history/1","minutes":[],"vms":[],"changes":[]}"#,
        ],
    ),
    ("moments", &[MOMENT]),
    (
        "http_requests",
        &[
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"HEAD /events HTTP/1.1\r\nHost: [::1]:9877\r\nConnection: keep-alive\r\n\r\n",
            b"GET http://127.0.0.1/metrics HTTP/1.0\r\nHost: 127.0.0.1:1\r\n\r\n",
            b"POST /state.json HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ],
    ),
    (
        "damon_regions",
        &[
            b"139620002824192 139620008390656 19\n139620008390656 139620131012608 0\n",
            b"4096 8192 1\n8000 4198400 20\n140737488351232 140737488355328 4294967295\n",
        ],
    ),
    (
        "guest_ranges",
        &[
            b"qemu\0-smp\x002\0-object\0memory-backend-ram,id=a,size=2M,host-nodes=0,policy=bind\0\
              -object\0memory-backend-ram,id=b,size=1M\0-numa\0node,nodeid=3,cpus=0,memdev=a\0\
              -numa\0node,cpus=1,memdev=b\x01\
              7f0000000000 bind:0 N0=9 kernelpagesize_kB=4\n\
              7f0000400000 default N1=5 kernelpagesize_kB=4\n\x01\
              7f0000000000-7f0000200000 rw-p\n7f0000400000-7f0000500000 rw-p\n",
        ],
    ),
    (
        "journal",
        &[
            br#"{"schema":"instep.journal/1","boot_id":"b","holder":"kept","threads":[]}"#,
            br#"{"schema":"instep.journal/1","boot_id":"b","holder":{"instance":{"pid":1,"start":2}},
                "threads":[{"vm":"a","kind":{"vcpu":0},"thread":{"pid":7,"pid_start":1,"tid":9,
                "tid_start":2},"original":"0-7","unpinned":true,"since":3,"set":"2",
                "pending":"2-3"}]}"#,
        ],
    ),
    (
        "memory_ranges",
        &[
            b"7f0000020000 bind:1 anon=3 dirty=3 active=0 N0=1 N1=2 kernelpagesize_kB=4\n\0\
              7f0000020000-7f0008020000 rw-p 00000000 00:00 0\n",
            b"7f0040000000 default file=/r huge dirty=3 N1=3 kernelpagesize_kB=2048\n\0\
              7f0040000000-7f0040800000 rw-s 00000000 00:2e 41 /r\n",
        ],
    ),
    (
        "numa_maps",
        &[
            b"7f0000000000 bind=static|relative:0-1 anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4\n",
            b"7f0000000000 prefer (many):0-1 huge dirty=3 N1=3 kernelpagesize_kB=2048\n",
            b"7f0000000000 weighted interleave:0-1 anon=1 N0=1 kernelpagesize_kB=1048576\n",
        ],
    ),
    (
        "numa_stat",
        &[b"total=7 N0=3 N1=4\nfile=1 N0=1 N1=0\nanon=6 N0=2 N1=4\nunevictable=0 N0=0 N1=0\n"],
    ),
    (
        "switches",
        // Thread 1 is switched to at 256, sampled in the kernel at 512, switched from at 768.
        &[&[
            14, 0, 0, 0, 0, 0, 32, 0, 1, 0, 0, 0, 1, 0, 0, 0, //
            0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
            9, 0, 0, 0, 1, 0, 40, 0, 0, 0, 0, 0, 1, 0, 0, 0, //
            1, 0, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
            14, 0, 0, 0, 0, 32, 32, 0, 1, 0, 0, 0, 1, 0, 0, 0, //
            0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ]],
    ),
    (
        "results",
        &[
            br#"{"schema":"instep.analysis/1","duration_ns":9,"vms":[{"name":"a","vcpus":[{"run_ns":1,
                "steal_ns":2,"migrations":3}],"stacking":0.5,"co_run":1,"max_skew_ns":4,"held_up":
                {"held_ns":5},"wakeups":{"io":{"count":6}}}],"host":{"competing_modules":0.1}}"#,
            br#"[{"schema":"instep.bench/1","cases":[{"name":"c","results":{"instep":{"rate":{"median":1,
                "min":0,"max":2,"runs":3}}}}]}]"#,
            br#"{"schema":"instep.sim/1","vms":[{"name":"a","stacking":0.5}]} {"schema":"instep.sim/1"}"#,
        ],
    ),
    (
        "topology_json",
        &[br#"{"schema":"instep.topology/1","cpus":[
            {"id":0,"core":0,"cluster":0,"llc":0,"package":0,"kind":null},
            {"id":1,"core":0,"cluster":0,"llc":0,"package":0,"kind":null},
            {"id":2,"core":1,"cluster":1,"llc":1,"package":1,"kind":null}],"nodes":[
            {"id":0,"memory_bytes":1024,"cpus":[0,1],"distances":[10,20]},
            {"id":1,"memory_bytes":1024,"cpus":[2],"distances":[20,10]}]}"#],
    ),
    (
        "vm_definitions",
        &[
            include_bytes!("../../crates/host/src/discover/definition/fixtures/libvirt-web.xml"),
            include_bytes!("../../crates/host/src/discover/definition/fixtures/proxmox-104.conf"),
            b"<domstatus pid='7'><domain><uuid>1</uuid><metadata><vm xmlns='urn:instep:vm:1' weight='2'/>\
              <b:vm xmlns:b='urn:instep:vm:2'/></metadata></domain></domstatus>",
            b"4711\n",
        ],
    ),
    (
        "qmp_answers",
        &[
            br#"[{"cpu-index":0,"thread-id":7,"qom-path":"/machine"},{"cpu-index":1,"thread-id":8}]"#,
            b"[]",
        ],
    ),
    (
        "thread_names",
        &[
            b"qemu-system-x86\nCPU 0/KVM\nCPU 1/KVM\nkvm-nx-lpage-re",
            b"CPU 0/TCG\nALL CPUs/TCG\nvcpu1\nfc_vcpu 2\ncrosvm_vcpu3",
            b"anon_inode:kvm-vm\nanon_inode:kvm-vcpu:0\nanon_inode:kvm-vcpu\n/dev/kvm",
        ],
    ),
    (
        "topology_build",
        &[
            // Two CPUs of one core, one node with both.
            &[
                2, 0, 1, 0, 1, 3, 0, 0, 0, 1, 3, 0, 0, 0, 1, 3, 0, 0, 0, 1, 3, 0, 0, 0, 0, //
                1, 1, 0, 1, 3, 0, 0, 0, 1, 3, 0, 0, 0, 1, 3, 0, 0, 0, 1, 3, 0, 0, 0, 0, //
                1, 0, 3, 0, 0, 0, 16, 1, 10,
            ],
            &[23],
        ],
    ),
    (
        "xen_configs",
        &[
            include_bytes!("../../crates/xen/tests/data/two-nodes/six-domains/xen/xl-list-l"),
        ],
    ),
    (
        "xen_cpupools",
        &[
            include_bytes!("../../crates/xen/tests/data/two-nodes/six-domains/xen/xl-cpupool-list-c"),
            include_bytes!("../../crates/xen/tests/data/two-nodes/pools/xen/xl-cpupool-list-c"),
        ],
    ),
    (
        "xen_info",
        &[
            include_bytes!("../../crates/xen/tests/data/two-nodes/six-domains/xen/xl-info-n"),
        ],
    ),
    (
        "xen_journal",
        &[
            br#"{"schema":"instep.xen-journal/1","boot_id":"x","kept":true,"domains":[{"domain":{"id":3,
              "uuid":"u"},"changed":{"name":"a","hard":{"0":{"original":"0-7","set":"4-7"}},"soft":{"0":{"original":"0-3",
              "set":"0-3","pending":"4-7"}},"nodes":{"original":"0","set":"1"}}}]}"#,
        ],
    ),
    (
        "xen_list",
        &[
            include_bytes!("../../crates/xen/tests/data/two-nodes/six-domains/xen/xl-list-v-c-n"),
            include_bytes!("../../crates/xen/tests/data/two-nodes/six-domains/xen/xl-list-n"),
            include_bytes!("../../crates/xen/tests/data/two-nodes/six-domains/xen/xl-list-v"),
        ],
    ),
    (
        "xen_node_memory",
        &[
            include_bytes!("../../crates/xen/tests/data/two-nodes/six-domains/xen/xl-dmesg"),
        ],
    ),
    (
        "xen_sched",
        &[
            include_bytes!("../../crates/xen/tests/data/two-nodes/six-domains/xen/xl-sched-credit2"),
            include_bytes!("../../crates/xen/tests/data/two-nodes/pools/xen/xl-sched-credit2"),
        ],
    ),
    (
        "xen_uptime",
        &[
            include_bytes!("../../crates/xen/tests/data/two-nodes/six-domains/xen/xl-uptime"),
            b"Name ID Uptime\nmy vm 7 12 days,  1:02:03\n",
        ],
    ),
    (
        "xen_vcpu_list",
        &[
            include_bytes!("../../crates/xen/tests/data/two-nodes/six-domains/xen/xl-vcpu-list"),
            include_bytes!("../../crates/xen/tests/data/two-nodes/pools/xen/xl-vcpu-list"),
        ],
    ),
];
