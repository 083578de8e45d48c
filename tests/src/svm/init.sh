#!/bin/busybox sh
# The first process of a machine with an ordinary KVM. Its files are the host's own, read-only by 9p, under a layer in memory; only the
# folder that it shares with the host is written there. It runs the scripts of that folder, or, with `lab.prompt`, a shell on the console.
/bin/busybox --install -s /bin
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=linux
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
prompt=
for word in $(cat /proc/cmdline); do
    case $word in
    lab.shared=*) folder=${word#lab.shared=} ;;
    lab.prompt) prompt=yes ;;
    esac
done
# Three times, because some need others that come after them.
for module in $(cat /modules/list /modules/list /modules/list); do
    [ "$module" = kvm-amd.ko ] || insmod "/modules/$module" 2>/dev/null
done
options=trans=virtio,version=9p2000.L,msize=512000
mkdir /host /over /new
mount -t 9p -o "$options,ro,cache=loose" root /host || echo "no files of the host"
mount -t tmpfs over /over
mkdir /over/upper /over/work
mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work over /new || echo "no overlay"
mount -t proc proc /new/proc
mount -t sysfs sys /new/sys
mount -t debugfs debug /new/sys/kernel/debug
mount -t tracefs trace /new/sys/kernel/tracing
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts pts /new/dev/pts
mount -t tmpfs shm /new/dev/shm
mount -t tmpfs run /new/run
# It has the same path here and there.
shared=/new$folder
mkdir -p "$shared"
mount -t 9p -o "$options" host "$shared" || echo "no folder"
hostname lab
ifconfig lo 127.0.0.1 up
insmod /modules/kvm-amd.ko nested=0 || echo "no KVM"
run_script() {
    chroot /new /bin/bash "${1#/new}"
}
# With the first vCPU and after the last one KVM patches code, of which QEMU 7.2 once executed the old translation for ever. So one is
# held open. (KVM_CREATE_VM, KVM_CREATE_VCPU; perl is in every Debian.)
chroot /new /usr/bin/perl -e '
    open(my $kvm, "+<", "/dev/kvm") or die "no /dev/kvm: $!\n";
    my $vm = syscall(16, fileno($kvm), 0xae01, 0);
    my $vcpu = syscall(16, $vm, 0xae41, 0);
    die "no vCPU: $!\n" if $vm < 0 || $vcpu < 0;
    open(my $held, ">", "/run/vcpu-is-held");
    close($held);
    sleep;' &
looks=0
until [ -f /new/run/vcpu-is-held ] || [ $looks = 200 ]; do
    looks=$((looks + 1))
    usleep 100000
done
# A sign of life, for the host.
number=0
while :; do
    number=$((number + 1))
    echo "$number" >"$shared/alive"
    sleep 2
done &
[ -f /new/run/vcpu-is-held ] && echo "KVM READY after $(cut -d' ' -f1 /proc/uptime) s"
if [ "$prompt" ]; then
    setsid cttyhack chroot /new /bin/bash --rcfile "$folder/lab.sh" -i
    poweroff -f
fi
