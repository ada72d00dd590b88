#!/bin/bash
# Runs every check and every test, and sums up.
#
#   scripts/test.sh [ARGUMENT OF cargo test ...]
#
# First `cargo xtask ci --no-test` (fmt, clippy, tidy, deny, docs) and `cargo xtask load`, then `cargo test --workspace`. The
# output ends with the closing line of each test program, the reasons of what was skipped, and
#
#   N passed, N failed, N skipped
#
# Skipped: a test that cannot run on this machine notes the reason by
# `instep_madehost::skip::note(reason)` and returns; the note goes to the file named by the
# environment variable INSTEP_SKIP_LOG, which is set here. Cargo counts such a test as passed,
# this script does not. A check of `cargo xtask ci` that cannot be made is noted there as `not checked`, and counts as
# skipped. What a test ran once more is noted there, too, and shown. Tests marked #[ignore] count as skipped, too.
#
# Exit status: that of cargo test; when that is 0, 1 if a check failed or no test ran, else 0.
# INSTEP_LAB_ALL=1: every scenario of the lab, half an hour more on two quiet cores (docs/lab.md).
# INSTEP_TEST_LIMIT: seconds after which the tests are stopped (status 124); by default 2700, with
# INSTEP_LAB_ALL 4500.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usual=2700
[ -z "${INSTEP_LAB_ALL:-}" ] || usual=4500
limit=${INSTEP_TEST_LIMIT:-$usual}
work=$(mktemp -d)
pid=
finish() {
    if [ -n "$pid" ]; then
        kill -TERM "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# `cargo test` by itself boots nothing, and leaves out what takes long.
export INSTEP_TEST_ALL=1
export INSTEP_SKIP_LOG=$work/skipped
: >"$INSTEP_SKIP_LOG"
log=$work/log
: >"$log"

# Everything long runs in the background and is waited for: only `wait` lets a signal through.
checks=0
cargo xtask ci --no-test &
pid=$!
wait "$pid" || checks=$?
pid=

# The guest program that scenarios of the lab run. Without it they are skipped, and say so.
echo "==> cargo xtask load"
cargo xtask load &
pid=$!
wait "$pid" || echo "instep-load cannot be built: the scenarios that need it are skipped"
pid=

# The kernel scheduler is built and tested where clang and libelf are; elsewhere its tests are skipped
# and say so.
source scripts/kernel-feature.sh
set -- "${kernel[@]}" "$@"

echo "==> cargo test --workspace $*"
# In a process group of its own (timeout makes it), so that both the limit and an interruption
# end cargo and the test programs together.
timeout -k 10 "$limit" cargo test --workspace --no-fail-fast "$@" >>"$log" 2>&1 &
pid=$!
tail -n +1 -f --pid="$pid" "$log" &
shown=$!
status=0
wait "$pid" || status=$?
pid=
wait "$shown" || true

echo
echo "==> summary"
grep '^test result:' "$log" || true
sort -u "$INSTEP_SKIP_LOG"
if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
    echo "the tests took longer than ${limit}s and were stopped (INSTEP_TEST_LIMIT=SECONDS)"
fi
if [ "$checks" -ne 0 ]; then
    echo "a check failed: run cargo xtask ci --no-test"
fi
skipped=$(sort -u "$INSTEP_SKIP_LOG" | grep -c '^skipped: ' || true)
# Checks that are no tests, which cargo does not count as passed.
unchecked=$(sort -u "$INSTEP_SKIP_LOG" | grep -c '^not checked: ' || true)
read -r passed failed ignored < <(
    awk '/^test result:/ {
        for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) passed += $(i - 1)
            if ($i ~ /^failed/) failed += $(i - 1)
            if ($i ~ /^ignored/) ignored += $(i - 1)
        }
    } END { print passed + 0, failed + 0, ignored + 0 }' "$log"
)
passed=$((passed > skipped ? passed - skipped : 0))
echo "$passed passed, $failed failed, $((skipped + unchecked + ignored)) skipped"

[ "$status" -eq 0 ] || exit "$status"
[ "$checks" -eq 0 ] || exit 1
[ $((passed + skipped)) -gt 0 ] || exit 1
