#!/bin/busybox sh
# The first process of a Linux guest, in memory: loads the modules of its disks, and goes to the root on the disk with the serial number `root`.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/list); do
    insmod "/modules/$module" || echo "the module $module cannot be loaded"
done
# The name of the disk with a serial number.
disk() {
    for folder in /sys/block/vd*; do
        [ "$(cat "$folder/serial" 2>/dev/null)" = "$1" ] && echo "/dev/${folder##*/}"
    done
}
tries=0
until [ "$(disk root)" ] || [ $tries = 100 ]; do
    tries=$((tries + 1))
    usleep 100000
done
mount -t ext4 "$(disk root)" /root || echo "no root"
for name in truth frozen; do
    ln -s "$(disk $name)" "/dev/$name"
done
[ "$(disk tools)" ] && mount -t ext4 -o ro "$(disk tools)" /root/tools
for folder in dev proc sys; do
    mount --move /$folder /root/$folder
done
exec switch_root /root /bin/sh /app/console.sh
