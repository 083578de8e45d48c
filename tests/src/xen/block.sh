#!/bin/sh
# Connects a block device of dom0 to the back end of a domain's disk: `xl` runs it.
[ "$1" = add ] || exit 0
device=$(xenstore-read "$XENBUS_PATH/params")
xenstore-write "$XENBUS_PATH/physical-device" "$(stat -L -c %t:%T "$device")" "$XENBUS_PATH/hotplug-status" connected
