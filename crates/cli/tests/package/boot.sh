#!/bin/bash
# The first process of a machine that shares this one's files and nothing else: systemd, with the service installed.
#
#   unshare --fork --pid --mount --uts --ipc --net --cgroup boot.sh DIR [ROOT]
#
# DIR holds `tree`, which is put over this machine's files. Whatever is written goes to memory and is gone at the end.
# With ROOT the machine has the files below that and no others, and what is written stays there for its next boot.
set -e
dir=$1
mount --make-rprivate /
mount -t tmpfs tmpfs "$dir/over"
mkdir "$dir"/over/{up,work,root}
if [ -n "$2" ]; then
    mount --bind "$2" "$dir/over/root"
    target=multi-user.target
else
    cp -R "$dir/tree/." "$dir/over/up"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/over/up,workdir=$dir/over/work" "$dir/over/root"
    # Units of this machine are of no interest.
    rm -rf "$dir"/over/root/etc/systemd/system/*.wants
    target=basic.target
fi
cd "$dir/over/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount --rbind /dev dev
mount -t cgroup2 cgroup2 sys/fs/cgroup
mkdir -p mnt && pivot_root . mnt && umount -l /mnt
export container=instep-test
exec /lib/systemd/systemd --system --unit=$target --show-status=no </dev/null >/dev/null 2>&1
