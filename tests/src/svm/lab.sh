# What every shell in the lab has. $image is the folder of its images, $shared the folder that it shares with the host.
export PATH HOME=/root TERM
cd /tmp

# linux NAME [VCPUS [WORDS [MACHINE]]]: starts a Linux guest with a load on its vCPU 0, and returns at once. It writes to $shared/NAME.log; its pid is
# in /tmp/NAME.pid. WORDS are for its kernel's command line; load=nap and load=user are loads of its last vCPU, see guest.sh. MACHINE is microvm or q35.
# Its monitor is a pair of pipes, see `monitor`. What QEMU reports, and its end, are in $shared/NAME.end.
linux() {
    local name=$1 vcpus=${2:-2} words=${3:-} machine=${4:-microvm}
    rm -f "/tmp/$name.monitor.in" "/tmp/$name.monitor.out" "$shared/$name.log" "$shared/$name.end"
    mkfifo "/tmp/$name.monitor.in" "/tmp/$name.monitor.out"
    local qemu=qemu-system-x86_64
    if [ "$machine" = microvm ]; then
        # Debian's QEMU for this one kind of machine starts six times faster here.
        qemu=$(command -v qemu-system-x86_64-microvm || echo qemu-system-x86_64)
        machine=microvm,acpi=on,pcie=off
    fi
    {
        code=0
        setsid "$qemu" -name "$name,debug-threads=on" -M "$machine,memory-backend=ram" -accel kvm -cpu host -smp "$vcpus" \
            -m 256 -object memory-backend-memfd,id=ram,size=256M,share=on -nodefaults -no-user-config -display none -no-reboot \
            -serial "file:$shared/$name.log" -chardev "pipe,id=monitor,path=/tmp/$name.monitor" -mon chardev=monitor,mode=readline \
            -pidfile "/tmp/$name.pid" -kernel "$image/kernel" -initrd "$image/guest-files" \
            -append "console=ttyS0 earlyprintk=ttyS0 panic=-1 quiet cryptomgr.notests $words" || code=$?
        echo "QEMU ended with the code $code"
    } </dev/null >"$shared/$name.end" 2>&1 &
    [ -s /tmp/kallsyms ] || grep -v ']$' /proc/kallsyms >/tmp/kallsyms
}

# monitor NAME COMMAND: a command for QEMU's monitor.
monitor() {
    echo "$2" >"/tmp/$1.monitor.in"
}

# wait_for SECONDS WHAT COMMAND...: runs a command again and again until it succeeds.
wait_for() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "too late: $what" >&2; return 1; }
        sleep 0.3
    done
}

if [ -n "$PS1" ]; then
    PS1='lab:\w\$ '
    [ -z "$terminal" ] || stty $terminal
    cat <<TEXT

An ordinary KVM, emulated: some ten times slower than this machine, and times mean nothing. The files are this machine's own; what you write
stays in memory, except in $shared. exit powers it off.

    glass run $(ls $queue 2>/dev/null || echo upload-queue) --accel kvm --cores 2 --disk q.img --disk-size 16M --port 8080 >q.log 2>&1 &
    linux guest                  # a Linux guest with two vCPUs and a load on the first; tail -f $shared/guest.log: READY after half a minute
    glass ps
    glass record --pid \$(cat guest.pid) --symbols kallsyms --rate 25 --duration 8
    glass report glass.pftrace --text
    monitor guest stop           # or cont, or another command of QEMU's monitor

TEXT
fi
