# Starts the programs of a guest, each in the background; ends when they do what they are for.
cd /tmp || exit 1
for name in without-fp with-fp stripped static; do
    nice -n 19 "$name" >/dev/null 2>&1 &
done
nice -n 19 threads >/dev/null 2>&1 &
nice -n 19 deep >/dev/null 2>&1 &
# Two levels of namespaces, with a process that computes in the inner one.
unshare -p -f sh -c 'unshare -p -f nice -n 19 in-namespace & exec sleep 100000' >/dev/null 2>&1 &
# A control group of its own.
mkdir -p /sys/fs/cgroup/lab/inner
sh -c 'echo $$ >/sys/fs/cgroup/lab/inner/cgroup.procs; exec sleep 200000' >/dev/null 2>&1 &
mount -t ext4 /dev/frozen /frozen && blocked /frozen
