#!/bin/sh
# Connects a domain's card: to the machine's own card if there is a bridge, else to dom0, which gets an address on it. `xl` runs it.
case "$1" in
online | add)
    if [ -d /sys/class/net/br0 ]; then brctl addif br0 "$vif"; else ip addr add 10.99.0.1/24 dev "$vif"; fi
    ip link set "$vif" up
    xenstore-write "$XENBUS_PATH/hotplug-status" connected
    ;;
esac
exit 0
