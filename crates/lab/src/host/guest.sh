#!/bin/busybox sh
# The first and only program of a guest in an emulated host: touches memory, says that it is
# ready, and runs its load, whose lines go to the console. From the kernel command line:
# touch=MIB, load=BASE64 of a shell command.
/bin/busybox mkdir -p /proc /sys /tmp
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin HOME=/tmp
mount -t proc proc /proc
read -r began rest </proc/uptime
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mount -t tmpfs -o size=90% tmp /tmp
# Booted with one: scenario/guests.rs tells why. A guest that lacks a vCPU is none that is up: who waits for it
# starts it again.
for cpu in /sys/devices/system/cpu/cpu[1-9]*/online; do
    until [ ! -e "$cpu" ] || echo 1 >"$cpu"; do
        echo "instep-guest: $cpu does not come up"
        sleep 1
    done
done
touch=0 load=
for word in $(cat /proc/cmdline); do
    case $word in
    load=*) load=${word#load=} ;;
    touch=*) touch=${word#touch=} ;;
    esac
done
spin() { # one endless loop for each CPU, bound to it
    n=0
    while [ $n -lt "$(nproc)" ]; do
        taskset "$(printf %x $((1 << n)))" sh -c 'while :; do :; done' &
        n=$((n + 1))
    done
    wait
}
idle() {
    while :; do sleep 3600; done
}
if [ "$touch" -gt 0 ]; then
    dd if=/dev/zero of=/tmp/touched bs=1M count="$touch" 2>/dev/null
fi
echo "$load" | base64 -d >/tmp/load
read -r up rest </proc/uptime
echo "instep-guest: ready cpus=$(nproc) up=$up init=$began"
. /tmp/load
echo "instep-guest: load ended, status $?"
while :; do sleep 3600; done
