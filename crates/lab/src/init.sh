#!/bin/busybox sh
# The first and only program of a guest: reads from the kernel command line what to do
# (load=idle, load=spin:N, load=duty:PERCENT, touch=MIB), does it, and says every second
# on the console how much work was done.
B=/bin/busybox
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev 2>/dev/null
$B mount -t tmpfs -o size=90% tmp /tmp

load=idle touch=0
for word in $($B cat /proc/cmdline); do
    case $word in
    load=*) load=${word#load=} ;;
    touch=*) touch=${word#touch=} ;;
    esac
done
cpus=$($B nproc)

now() { # hundredths of a second since boot
    read -r up idle </proc/uptime
    whole=${up%.*} part=${up#*.}
    now=$((whole * 100 + ${part#0}))
}
chunk() { # one unit of work
    k=0
    while [ $k -lt 200 ]; do k=$((k + 1)); done
    done_=$((done_ + 1))
    echo $done_ >/tmp/work.$1
}
spin() {
    done_=0
    while :; do chunk "$1"; done
}
duty() { # worker, percent: busy and asleep in turn, five times a second
    done_=0 busy=$(($2 / 5))
    now
    next=$now
    while :; do
        end=$((next + busy))
        while now && [ $now -lt $end ]; do chunk "$1"; done
        next=$((next + 20))
        if [ $now -lt $next ]; then
            $B usleep $(((next - now) * 10000))
        else
            next=$now # late: what was missed is not made up for
        fi
    done
}
pinned() { # CPU, function, arguments: in a shell of its own bound to that CPU
    cpu=$1
    shift
    (
        read -r self rest </proc/self/stat
        $B taskset -p "$($B printf %x $((1 << cpu)))" "$self" >/dev/null
        "$@"
    ) &
}

if [ "$touch" -gt 0 ]; then
    $B dd if=/dev/zero of=/tmp/touched bs=1M count="$touch" 2>/dev/null
fi
case $load in
spin:*)
    n=0
    while [ $n -lt "${load#spin:}" ]; do
        pinned $((n % cpus)) spin $n
        n=$((n + 1))
    done
    ;;
duty:*)
    n=0
    while [ $n -lt "$cpus" ]; do
        pinned $n duty $n "${load#duty:}"
        n=$((n + 1))
    done
    ;;
esac

read -r up rest </proc/uptime
echo "instep-guest: ready cpus=$cpus load=$load touch=$touch up=$up"
before=0
while :; do
    $B sleep 1
    total=0
    for file in /tmp/work.*; do
        v=
        [ -e "$file" ] && read -r v <"$file"
        total=$((total + ${v:-0}))
    done
    [ $total -lt $before ] && continue # read while a worker was writing
    read -r up rest </proc/uptime
    echo "instep-guest: beat up=$up work=$total rate=$((total - before))"
    before=$total
done
