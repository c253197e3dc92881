#!/bin/busybox sh
# First process of the guest: loads NVIDIA's modules over the stub GPU, asks the driver, and ends the
# machine with the status written to port 0xf4.
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin

while read -r module; do
  insmod "/modules/$module" || echo "insmod $module failed"
done </modules/order
insmod /modules/nvidia.ko NVreg_OpenRmEnableUnsupportedGpus=1 || dmesg | tail -20
insmod /modules/nvidia-uvm.ko || dmesg | tail -20
# shellcheck disable=SC2013
for major in $(grep -E ' nvidia(-frontend)?$' /proc/devices | head -1 | cut -d' ' -f1); do
  mknod -m 666 /dev/nvidiactl c "$major" 255
  mknod -m 666 /dev/nvidia0 c "$major" 0
done
mknod -m 666 /dev/nvidia-uvm c "$(grep nvidia-uvm /proc/devices | head -1 | cut -d' ' -f1)" 0
head -1 /proc/driver/nvidia/version
/oracle
status=$?
echo "oracle ended with $status"
# shellcheck disable=SC2059
printf "\\$(printf %o "$status")" | dd of=/dev/port bs=1 seek=244 count=1 conv=notrunc 2>/dev/null
poweroff -f
