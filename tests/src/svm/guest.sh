#!/bin/busybox sh
# The first process of a Linux guest: a load on CPU 0, and each second a line about the time of CPU 1, from CPU 1. `load=nap` is a second load on
# CPU 1, which sleeps for 2 ms again and again. `load=user` is one that never leaves user space, on a CPU 1 that has no timer (`nohz_full=1`);
# then the lines are written from CPU 0.
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
nap() {
    while :; do usleep 2000; done
}
compute() {
    while :; do :; done
}
load &
taskset -p 1 $! >/dev/null
own=2
for word in $(cat /proc/cmdline); do
    case $word in
    load=nap) nap & taskset -p 2 $! >/dev/null ;;
    load=user) own=1; compute & taskset -p 2 $! >/dev/null ;;
    esac
done
taskset -p $own $$ >/dev/null
echo "FLAGS $(grep -m1 ^flags /proc/cpuinfo)"
echo "TEXT $(grep ' _text$' /proc/kallsyms)"
echo "LINUX READY after $(cut -d' ' -f1 /proc/uptime) s, $(grep -c ^processor /proc/cpuinfo) CPUs"
second=0
while :; do
    sleep 1
    second=$((second + 1))
    # In ticks, as the times.
    read -r uptime rest </proc/uptime
    while read -r name times; do
        case $name in
        cpu1) echo "SECOND $second ${uptime%.*}${uptime#*.} $times" ;;
        esac
    done </proc/stat
done
