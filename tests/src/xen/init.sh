#!/bin/sh
# The first process of the dom0 of the Xen tests: starts what `xl` needs, then runs the scripts of the folder that it shares
# with the host.
export PATH=/usr/bin:/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts
mount -t devpts pts /dev/pts
# Twice, because some need others that come after them.
for module in $(cat /modules/list /modules/list); do
    insmod "/modules/$module" 2>/dev/null
done
mount -t xenfs xenfs /proc/xen
ip link set lo up
# A card of the machine's own and those of domains are one network, without the 15 s that a bridge learns before it forwards.
if [ -d /sys/class/net/eth0 ]; then
    brctl addbr br0
    echo 0 >/sys/class/net/br0/bridge/forward_delay
    brctl addif br0 eth0
    ip link set eth0 up
    ip link set br0 up
fi
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 host /mnt || echo "no folder"
xenstored --pid-file /run/xen/xenstored.pid
looks=0
until xenstore-read -s / >/dev/null 2>&1 || [ $looks = 200 ]; do
    looks=$((looks + 1))
    usleep 50000
done
xen-init-dom0
xenconsoled --pid-file=/run/xen/xenconsoled.pid --log=all --timestamp=none --log-dir=/var/log/xen
echo "DOM0 READY after $(cut -d' ' -f1 /proc/uptime) s"
shared=/mnt
run_script() {
    sh "$1"
}
