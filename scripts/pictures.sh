#!/bin/bash
# Makes the pictures in docs/img again: the page of `instep analyze`, and `instep top` on a terminal of
# 80x24. Look at them before they are kept, and write down in docs/top.md and docs/analyze.md what was seen.
#
#   scripts/pictures.sh TRACE [FACTS]
#
# TRACE is a recording that `instep analyze` reads, FACTS its copies of /proc/PID. The host that `top` shows
# is recorded in the lab (scenarios/lab/pictured.toml), or HOST=FILE is what that fetched before.
# INSTEP: the program, target/release/instep by default. Needs chromium, tmux, pngquant and python3
# (apt-get install chromium tmux pngquant python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
trace=${1:?usage: scripts/pictures.sh TRACE [FACTS]}
facts=${2:-}
instep=$(realpath "${INSTEP:-target/release/instep}")
images=docs/img
work=$(mktemp -d)
terminal=(tmux -L "pictures-$$" -f /dev/null)
finish() {
    "${terminal[@]}" kill-server 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

browser() { # ARGUMENT...
    timeout 60 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=3000 \
        --user-data-dir="$work/profile" "$@" 2>"$work/browser.err" || { cat "$work/browser.err" >&2; exit 1; }
}

# Shoots a page as high as it is, in as few colours as look the same.
shoot() { # PAGE WIDTH PICTURE
    local height
    { cat "$1"; echo '<script>document.documentElement.dataset.high = Math.ceil(
        document.body.getBoundingClientRect().bottom + scrollY)</script>'; } >"$work/high.html"
    height=$(browser --window-size="$2,400" --dump-dom "file://$work/high.html" | grep -o 'data-high="[0-9]*"' | tr -dc 0-9)
    browser --window-size="$2,$height" --screenshot="$work/shot.png" "file://$(realpath "$1")"
    pngquant --force --strip --speed 1 --output "$3" 128 "$work/shot.png"
    echo "$3: $(stat -c %s "$3") bytes, $2x$height"
}

# What a terminal of 80x24 shows after these keys.
screen() { # KEYS PICTURE
    printf 'set -g status off\nset -g default-terminal tmux-256color\n' >"$work/tmux.conf"
    "${terminal[@]:0:3}" -f "$work/tmux.conf" new-session -d -x 80 -y 24 \
        "'$instep' top --root '$work/after' --before '$work/before'"
    sleep 2
    [ -z "$1" ] || "${terminal[@]}" send-keys "$1"
    sleep 1
    "${terminal[@]}" capture-pane -e -p -N | python3 scripts/terminal-page.py >"$work/screen.html"
    "${terminal[@]}" send-keys q
    sleep 1
    shoot "$work/screen.html" 795 "$2"
}

# Exit status 1 is a finding.
"$instep" analyze "$trace" ${facts:+--facts "$facts"} --html "$work/analysis.html" >/dev/null || [ $? = 1 ]
shoot "$work/analysis.html" 1240 $images/analyze.png

host=${HOST:-}
if [ -z "$host" ]; then
    "$instep" lab run scenarios/lab/pictured.toml --keep "$work/lab" --json >"$work/lab.json"
    host=$work/lab/host.tar.gz
fi
tar -xzf "$host" -C "$work"
screen "" $images/top.png
screen v $images/top-vcpus.png
