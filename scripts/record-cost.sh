#!/bin/bash
# What `instep record` costs beside a load, by the CPU time of its programs in the kernel and of
# itself: that holds on a busy machine, too, where rates do not.
#
#   scripts/record-cost.sh [INSTEP [SECONDS]]      as root
#
# Loads: two hogs a CPU; a blocking ping-pong a CPU (perf bench sched pipe). Each is
# recorded three times; the medians of events a second, lost events, and cost in percent of the
# whole host are printed. kernel.bpf_stats_enabled is put back as it was.
set -euo pipefail
instep=${1:-target/release/instep}
seconds=${2:-5}
cpus=$(nproc)
work=$(mktemp -d)
stats=$(cat /proc/sys/kernel/bpf_stats_enabled)
pids=()
stop() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    pids=()
}
finish() {
    stop
    echo "$stats" >/proc/sys/kernel/bpf_stats_enabled
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP
echo 1 >/proc/sys/kernel/bpf_stats_enabled

hogs() {
    for _ in $(seq $((2 * cpus))); do
        timeout $((4 * seconds + 20)) sh -c 'while :; do :; done' &
        pids+=($!)
    done
}

pipes() {
    for _ in $(seq "$cpus"); do
        timeout $((4 * seconds + 20)) perf bench sched pipe -l 100000000 >/dev/null 2>&1 &
        pids+=($!)
    done
}

nothing() { :; }

# Events a second, lost, cost in the kernel, own cost: in percent of all CPUs.
one() {
    "$instep" record -d "${seconds}s" -o "$work/cost.instep" --source "$2" --json >"$work/json" 2>/dev/null || true
    python3 - "$work/json" "$cpus" <<'PY'
import json, sys
told, cpus = json.load(open(sys.argv[1])), int(sys.argv[2])
whole = told["duration_ns"] * cpus / 100
kernel = told["kernel_cost_ns"]
print(int(told["events"] * 1e9 / told["duration_ns"]), told["lost"],
      "nan" if kernel is None else f"{kernel / whole:.3f}", f"{told['cost_ns'] / whole:.3f}",
      f"{told['bytes'] / max(told['events'], 1):.2f}")
PY
}

printf '%-9s %-8s %10s %8s %12s %9s %12s\n' load source events/s lost 'in kernel %' 'own %' bytes/event
for load in nothing hogs pipes; do
    for source in bpf tracefs; do
        "$load"
        sleep 1
        for _ in 1 2 3; do one "$load" "$source"; done >"$work/runs"
        stop
        python3 - "$work/runs" "$load" "$source" <<'PY'
import statistics, sys
runs = [[float(word) for word in line.split()] for line in open(sys.argv[1])]
middle = [statistics.median(column) for column in zip(*runs)]
kernel = "not counted" if middle[2] != middle[2] else f"{middle[2]:.3f}"
print(f"{sys.argv[2]:9} {sys.argv[3]:8} {middle[0]:10.0f} {middle[1]:8.0f} {kernel:>12} {middle[3]:9.3f} {middle[4]:12.2f}")
PY
    done
done
