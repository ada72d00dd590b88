#!/bin/busybox sh
# The first program of an emulated host: mounts what Instep and libbpf look at, loads KVM or, as dom0 of a
# Xen host, begins what Xen needs (xen.sh), then runs the commands that come over a virtio port (descriptor 3), one after the other: channel.sh
# follows here.
/bin/busybox mkdir -p /proc /sys /dev /run /tmp /sbin /usr/sbin
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin:/lab HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /dev/hugepages
mount -t devpts pts /dev/pts
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debug /sys/kernel/debug
mount -t tracefs trace /sys/kernel/tracing 2>/dev/null
mount -t bpf bpf /sys/fs/bpf 2>/dev/null
mount -t hugetlbfs huge /dev/hugepages 2>/dev/null
mkdir -p /run/lab
echo "+cpu +cpuset +memory" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null
[ -e /boot/config ] && ln -s config "/boot/config-$(uname -r)"
ip link set lo up 2>/dev/null
hostname lab
for word in $(cat /proc/cmdline); do
    case $word in
    numa_balancing=disable) echo 0 >/proc/sys/kernel/numa_balancing ;;
    esac
done
# Debian's kernel watches memory by DAMON: nothing on hardware, a tenth of an emulated CPU here.
for monitor in /sys/module/damon_*/parameters/enabled; do
    [ -e "$monitor" ] && echo N >"$monitor"
done
vendor=kvm-intel
grep -qw svm /proc/cpuinfo && vendor=kvm-amd
for module in irqbypass kvm $vendor; do
    [ -e /lab/$module.ko ] && insmod /lab/$module.ko
done
[ -e /lab/xen.sh ] && . /lab/xen.sh
# While nothing else runs: anchor.rs tells why. There is no KVM in dom0.
if [ -e /usr/bin/instep-lab ] && [ ! -e /lab/xen.sh ]; then
    instep-lab lab anchor >/run/lab/anchor 2>&1 </dev/null &
    until grep -q '^held$' /run/lab/anchor || ! kill -0 $! 2>/dev/null; do sleep 0.1; done
    [ "$(cat /run/lab/anchor)" = held ] || echo "instep-lab: no anchor: $(cat /run/lab/anchor)"
fi

# What shall not depend on when anything comes from outside.
[ -e /lab/begin ] && sh /lab/begin >/run/lab/begin.out 2>&1 </dev/null

port=
for name in /sys/class/virtio-ports/*/name; do
    [ -e "$name" ] && [ "$(cat "$name")" = instep.lab ] && port=/dev/$(basename "${name%/name}")
done
if [ -z "$port" ]; then
    echo "instep-lab: no virtio port named instep.lab"
    poweroff -f
fi
exec 3<>"$port"
kvm=no
[ -c /dev/kvm ] && kvm=yes
read -r up idle </proc/uptime
echo "ready $up $kvm $(uname -r)" >&3
echo "instep-lab: ready, up $up s, KVM: $kvm"
