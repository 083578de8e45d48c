# Starts the programs of a guest, each in the background; ends when they do what they are for. It is an error if one does not.
cd /tmp || exit 1
# A machine without the compilers for these has none of them.
deep=$(cd /app && ls -d deep 2>/dev/null)
for name in without-fp with-fp stripped static static-musl threads $deep; do
    "$name" >/dev/null 2>&1 &
done
# The lowest priority for all threads of a program.
least='renice -n 19 $$ >/dev/null && exec "$@"'
go=$(cd /app && ls -d goroutines go-calls-c 2>/dev/null)
for name in $go; do
    sh -c "$least" sh "$name" >/dev/null 2>&1 &
done
python3.11 -B -S /app/interpreted.py >/dev/null 2>&1 &
# Two levels of namespaces, with a process that computes in the inner one.
unshare -p -f sh -c 'unshare -p -f in-namespace & exec sleep 100000' >/dev/null 2>&1 &
# A server in namespaces of processes and of mounts, under load.
ifconfig lo up
sh -c "$least" sh unshare -p -f --mount-proc redis-server --save '' --bind 127.0.0.1 --dir /tmp >/tmp/redis-log 2>&1 &
tries=0
until grep -q "Ready to accept" redis-log 2>/dev/null; do
    tries=$((tries + 1))
    [ $tries = 3000 ] && cat redis-log && exit 1
    usleep 100000
done
sh -c "$least" sh redis-benchmark -l -q -c 4 -d 100 -r 1000 -t set,get,lpush,lpop >/dev/null 2>&1 &
# A control group of its own.
mkdir -p /sys/fs/cgroup/lab/inner
sh -c 'echo $$ >/sys/fs/cgroup/lab/inner/cgroup.procs; exec sleep 200000' >/dev/null 2>&1 &
# What containers have: namespaces, and a root of layers.
mkdir -p over/upper over/work over/root bound
mount -t overlay -o lowerdir=/,upperdir=over/upper,workdir=over/work over over/root || exit 1
unshare -p -m -f chroot over/root /app/in-container >/dev/null 2>&1 &
mount -t ext4 /dev/frozen /frozen && blocked /frozen || exit 1
# Files of another mount, and of a part of one.
mount --bind /app bound || exit 1
mappings /frozen/file /tmp/bound/stripped >/dev/null 2>&1 &
# Waits until there is a thread with this name in this state.
wait_for() {
    tries=0
    while [ $tries -lt 1000 ]; do
        for file in /proc/[0-9]*/task/*/stat; do
            read -r stat 2>/dev/null <"$file"
            case $stat in *"($1) $2 "*) return 0 ;; esac
        done
        tries=$((tries + 1))
        usleep 100000
    done
    echo "$1 is not in state $2"
    exit 1
}
for name in without-fp with-fp stripped static static-musl computes-0 $deep in-namespace in-container $go; do
    wait_for "$name" R
done
for name in in-futex in-nanosleep in-poll in-read in-epoll ${deep:+sleeps-deep} has-mappings; do
    wait_for "$name" S
done
tries=0
until [ -e interpreted ]; do
    tries=$((tries + 1))
    [ $tries = 3000 ] && echo "Python does not run" && exit 1
    usleep 100000
done
# Until they wait where they are to wait.
sleep 1
