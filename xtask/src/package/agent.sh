# In a clean Debian with the package: starts the agent by the command line of its unit, a Linux VM under TCG and one of ours (the image "$1"), and waits
# until both are on the page, the Linux with a process.
set -e
cd /tmp
unit=/lib/systemd/system/glass-agent.service
state=$(sed -n 's/^StateDirectory=//p' $unit)
mode=$(sed -n 's/^StateDirectoryMode=//p' $unit)
install -d -m "$mode" "/var/lib/$state"

get() {
    exec 3<>/dev/tcp/127.0.0.1/4040
    printf 'GET %s HTTP/1.1\r\nHost: 127.0.0.1:4040\r\nConnection: close\r\n\r\n' "$1" >&3
    cat <&3
    exec 3>&-
}

# The Linux has a shell, and a process that computes; its name is what the page must have.
mkdir -p linux/bin linux/dev linux/proc
cp "$(command -v busybox)" linux/bin/busybox
for name in sh mount; do ln -sf busybox linux/bin/$name; done
# (A shell gives /dev/null to what it starts in the background.)
printf '#!/bin/sh\nmount -t devtmpfs dev /dev\nmount -t proc proc /proc\n/bin/trial-process &\nwhile :; do read line; done\n' > linux/init
printf '#!/bin/sh\nwhile :; do :; done\n' > linux/bin/trial-process
chmod +x linux/init linux/bin/trial-process
(cd linux; find . | cpio --quiet --create --format=newc | gzip > ../linux.img)

$(sed -n 's/^ExecStart=//p' $unit) > agent.log 2>&1 &
agent=$!
qemu-system-x86_64 -accel tcg -name debian -m 256 -nodefaults -display none -no-reboot -kernel /boot/vmlinuz-* -initrd linux.img \
    -serial file:console -append 'console=ttyS0 quiet' -qmp unix:/tmp/qmp,server=on,wait=off &
# Its name is that of its image.
cp "$1" ours
glass run ./ours > ours.log 2>&1 &
start=$SECONDS
while :; do
    page=$(get / 2>/dev/null || true)
    linux=$(printf %s "$page" | grep -o "/segment/debian/[^']*" | tail -n 1 || true)
    ours=$(printf %s "$page" | grep -o "/segment/ours/[^']*" | tail -n 1 || true)
    if [ -n "$linux" ] && [ -n "$ours" ] && get "$linux" | grep -aq trial-process; then break; fi
    if [ $((SECONDS - start)) -ge 60 ] || ! kill -0 $agent; then
        echo "not on the page after 60 s:"
        printf '%s\n' "$page"
        tail agent.log console ours.log
        exit 1
    fi
    sleep 0.5
done
echo "on the page after $((SECONDS - start)) s"
# It ends as systemd ends it.
kill $agent
wait $agent
ls -d "/var/lib/$state/segments/debian"
