#!/bin/busybox sh
# The first process of a Linux guest: a load on CPU 0, and each second a line about the time of the CPUs, from CPU 1.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
load() {
    while :; do
        dd if=/dev/zero of=/dev/null bs=512 count=20000 2>/dev/null
        i=0
        while [ $i -lt 2000 ]; do i=$((i + 1)); done
    done
}
load &
taskset -p 1 $! >/dev/null
taskset -p 2 $$ >/dev/null
echo "LINUX READY after $(cut -d' ' -f1 /proc/uptime) s, $(grep -c ^processor /proc/cpuinfo) CPUs"
second=0
while :; do
    sleep 1
    second=$((second + 1))
    while read -r name times; do
        case $name in
        cpu1) echo "SECOND $second $name $times" ;;
        esac
    done </proc/stat
done
