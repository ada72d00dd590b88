#!/bin/bash
# Builds Instep, with the kernel scheduler where it can be (scripts/kernel-feature.sh), and runs the demo.
#
#   scripts/demo.sh [OPTION OF instep demo ...]
#
# What it leaves is target/release/instep with instep-lab beside it, and instep-load where that finds it: the last act and
# `instep bench` run it in guests. Without it the act is left out. Exit status: that of the demo, or of cargo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

echo "==> building (the first time takes some minutes)"
source scripts/kernel-feature.sh
cargo build --release --package instep-cli "${kernel[@]}"
cargo xtask load || echo "instep-load cannot be built: the demo's last act and instep bench go without" >&2
echo "==> instep demo"
exec cargo run --quiet --release --package instep-cli --bin instep-lab "${kernel[@]}" -- demo "$@"
