# Runs commands from the console, each a line: a number and a script of the shell. Prints `[NUMBER started]`, what the script prints, and,
# on a new line, `[NUMBER ended CODE]`.
export PATH=/app:/bin:/usr/bin HOME=/ TERM=linux
mount -t tmpfs tmp /tmp
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
mount -t cgroup2 cgroup /sys/fs/cgroup
hostname guest
stty -echo
# A guest whose owner was killed ends by itself.
{ sleep 3600; poweroff -f; } </dev/null >/dev/null 2>&1 &
echo "GUEST READY after $(cut -d' ' -f1 /proc/uptime) s"
while read -r number script; do
    echo "[$number started]"
    sh -c "$script" </dev/null
    printf '\n[%s ended %s]\n' "$number" $?
done
poweroff -f
