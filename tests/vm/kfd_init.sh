#!/bin/busybox sh
# First process of the guest: loads amdgpu, which finds no GPU and shows its compute interface all the
# same, asks it, and ends the machine with the status written to port 0xf4.
/bin/busybox mkdir -p /proc /sys /dev /tmp /lib/firmware/amdgpu
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin

while read -r module; do
  insmod "/modules/$module" || echo "insmod $module failed"
done </modules/order
ls -d /dev/kfd
/oracle
status=$?
echo "oracle ended with $status"
# shellcheck disable=SC2059
printf "\\$(printf %o "$status")" | dd of=/dev/port bs=1 seek=244 count=1 conv=notrunc 2>/dev/null
poweroff -f
