#!/bin/busybox sh
# The first process of the Linux guest: runs the lines that the host sends to the serial port, one after the other.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /sbin /usr/bin /usr/sbin /var/log/nginx /var/lib/nginx
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin:/usr/sbin:/sbin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
ip link set lo up
# Each one after those that it needs; those that are part of the kernel have no file.
status=0
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover virtio_net \
    virtio_blk fuse virtiofs vsock vmw_vsock_virtio_transport_common vmw_vsock_virtio_transport; do
    [ ! -e /modules/$module.ko ] || insmod /modules/$module.ko || status=1
done
stty -echo
echo "guest: ended $status"
while read -r line; do
    eval "$line"
    echo "guest: ended $?"
done
