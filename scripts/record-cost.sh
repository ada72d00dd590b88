#!/bin/bash
# What `instep record` costs beside a load, by the CPU time of its programs in the kernel and of
# itself: that holds on a busy machine, too, where rates do not.
#
#   scripts/record-cost.sh [INSTEP [SECONDS]]      as root
#
# Loads: two hogs a CPU; a blocking ping-pong a CPU (perf bench sched pipe); a ping-pong a CPU that
# is paced to RATE events a second in all (200000); two guests with two busy vCPUs each, emulated
# (crates/testguest/examples/busy.rs, which cargo builds; left away without cargo). Each is recorded three
# times; the medians of events a second, lost events, and cost in percent of the whole host are
# printed. Then what a recording costs in throughput, of either source: round trips a second of
# `perf bench sched pipe` with and without, in turns. LOADS names the loads, if not all are wanted;
# `LOADS=` and the throughput alone. kernel.bpf_stats_enabled is put back as it was.
set -euo pipefail
root=$(realpath "$(dirname "$0")/..")
instep=$(realpath -e "${1:-$root/target/release/instep}")
cd "$root"
seconds=${2:-5}
rate=${RATE:-200000}
loads=${LOADS-nothing hogs pipes paced vms}
cpus=$(nproc)
work=$(mktemp -d)
stats=$(cat /proc/sys/kernel/bpf_stats_enabled)
pids=()
stop() {
    exec 9>&-
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

# Round trips between two processes on pipes, each begun PERIOD nanoseconds after the one before.
cat >"$work/pace.py" <<'PY'
import os, sys, threading, time
period, until = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
(there_r, there_w), (back_r, back_w) = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(there_w)
    while os.read(there_r, 1):
        os.write(back_w, b"x")
    os._exit(0)
os.close(there_r)
now = time.monotonic_ns
due = now()
while time.monotonic() < until:
    os.write(there_w, b"x")
    os.read(back_r, 1)
    due = max(due + period, now() - period)
    while now() < due:
        pass
os.close(there_w)
PY

# A paced ping-pong on each CPU, as often as makes RATE events: found by trying.
paced() {
    period=${period:-$((6 * 1000000000 * cpus / rate))}
    if [ -z "${is_paced:-}" ]; then
        for _ in 1 2 3 4; do
            pace 4
            sleep 1
            "$instep" record -d 2s -o "$work/try.instep" --json >"$work/json" 2>/dev/null || true
            stop
            period=$(python3 -c '
import json, sys
told = json.load(open(sys.argv[1]))
print(int(int(sys.argv[2]) * told["events"] * 1e9 / told["duration_ns"] / int(sys.argv[3])))
' "$work/json" "$period" "$rate")
        done
        is_paced=yes
    fi
    pace $((4 * seconds + 20))
}

pace() {
    for cpu in $(seq 0 $((cpus - 1))); do
        timeout $(($1 + 5)) taskset -c "$cpu" python3 "$work/pace.py" "$period" "$1" &
        pids+=($!)
    done
}

vms() {
    mkfifo "$work/hold" 2>/dev/null || true
    rm -f "$work/guests"
    cargo run --quiet --release -p instep-testguest --example busy <"$work/hold" >"$work/guests" &
    pids+=($!)
    exec 9>"$work/hold"
    for _ in $(seq 240); do
        grep -q ready "$work/guests" && return
        sleep 1
    done
    echo "the guests did not boot" >&2
    exit 1
}

nothing() { :; }

# Events a second, lost, cost in the kernel, own cost: in percent of all CPUs.
one() {
    "$instep" record -d "${seconds}s" -o "$work/cost.instep" --source "$2" --json >"$work/json" 2>"$work/said" || true
    [ -s "$work/json" ] || { cat "$work/said" >&2; exit 1; }
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
for load in $loads; do
    if [ "$load" = vms ] && ! command -v cargo >/dev/null; then continue; fi
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

# Round trips a second, alone and recorded, in turns; without the kernel's statistics, which cost, too.
echo "$stats" >/proc/sys/kernel/bpf_stats_enabled
for _ in 1 2 3; do
    for source in none bpf tracefs; do
        if [ "$source" != none ]; then
            "$instep" record -d 60s -o "$work/cost.instep" --source "$source" --json >/dev/null 2>&1 &
            pids+=($!)
            sleep 1
        fi
        echo "$source $(perf bench --format=simple sched pipe -l 200000)"
        for pid in "${pids[@]}"; do kill -INT "$pid" 2>/dev/null || true; done
        wait 2>/dev/null || true
        pids=()
    done
done >"$work/throughput"
python3 - "$work/throughput" <<'PY'
import statistics, sys
times = {}
for line in open(sys.argv[1]):
    source, seconds = line.split()
    times.setdefault(source, []).append(float(seconds))
alone = statistics.median(times["none"])
print(f"\nperf bench sched pipe: {200000 / alone:.0f} round trips/s alone")
for source in ("bpf", "tracefs"):
    here = statistics.median(times[source])
    print(f"  recorded by {source}: {200000 / here:.0f}, {100 * (1 - alone / here):.1f} % less")
PY
