# Part of the first program of a Xen host's dom0: Xen's devices, the lab's port, and what `xl` needs. Domains'
# consoles go to /run/lab/guest-NAME.log.
for module in xen-evtchn xen-privcmd xenfs xen-gntdev xen-gntalloc \
    virtio-ring virtio virtio-pci-modern-dev virtio-pci-legacy-dev virtio-pci virtio-console; do
    insmod /lab/$module.ko
done
mount -t xenfs xenfs /proc/xen
mkdir -p /run/xen /run/xenstored /run/lock /var/lib/xen /var/lib/xenstored /var/log/xen
ln -s /run /var/run
ln -s /run/lock /var/lock
xenstored --pid-file=/run/xen/xenstored.pid
xen-init-dom0
xenconsoled --log=guest --log-dir=/run/lab --pid-file=/run/xen/xenconsoled.pid
