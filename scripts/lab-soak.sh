#!/bin/bash
# Runs a scenario many times in a row and says what is left behind: processes, temporary files,
# loop devices. Exit status: 0 when every run held and nothing is left.
#
#   scripts/lab-soak.sh [RUNS [FILE]]
#
# Defaults: 20 runs of scenarios/lab/hello.toml. INSTEP: the program, target/debug/instep by default.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
runs=${1:-20}
file=${2:-scenarios/lab/hello.toml}
instep=${INSTEP:-target/debug/instep}
temporary=${TMPDIR:-/tmp}

# Everything that a lab of ours could leave: other labs of this user may run meanwhile, so a
# directory or process counts only when it is of a run of this script.
pids=()
pid=
finish() {
    [ -z "$pid" ] || kill -TERM "$pid" 2>/dev/null || true
    rm -f "$temporary/lab-soak.$$"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
left=0
failed=0
began=$(date +%s)
loops_before=$(cat /sys/block/loop*/loop/backing_file 2>/dev/null | sort || true)
for run in $(seq "$runs"); do
    start=${EPOCHREALTIME/./}
    "$instep" lab run "$file" >/dev/null 2>"$temporary/lab-soak.$$" &
    pid=$!
    pids+=("$pid")
    status=0
    wait "$pid" || status=$?
    pid=
    echo "run $run: status $status, $(((${EPOCHREALTIME/./} - start) / 1000)) ms"
    if [ "$status" -ne 0 ]; then
        failed=$((failed + 1))
        tail -n 5 "$temporary/lab-soak.$$"
    fi
    rm -f "$temporary/lab-soak.$$"
done
for pid in "${pids[@]}"; do
    for dir in "$temporary"/instep-lab.*."$pid".*; do
        [ -e "$dir" ] || continue
        echo "left: $dir"
        left=$((left + 1))
    done
    # A host's command line names its directory, which names the run.
    for cmdline in /proc/[0-9]*/cmdline; do
        if tr '\0' ' ' <"$cmdline" 2>/dev/null | grep -q "instep-lab\.[0-9]*\.$pid\."; then
            echo "left: process ${cmdline%/cmdline}"
            left=$((left + 1))
        fi
    done
done
loops_after=$(cat /sys/block/loop*/loop/backing_file 2>/dev/null | sort || true)
[ "$loops_before" = "$loops_after" ] || { echo "left: a loop device"; left=$((left + 1)); }
echo "$runs runs in $(($(date +%s) - began)) s: $failed failed, $left left behind"
[ "$failed" -eq 0 ] && [ "$left" -eq 0 ]
