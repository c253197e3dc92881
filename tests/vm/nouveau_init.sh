#!/bin/busybox sh
# First process of the guest of nouveau.sh: loads nouveau, says what it said, and ends the machine.
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin

while read -r module; do
  # nouveau's own failure, later in its start, is what the model cannot help.
  insmod "/modules/$module" 2>/dev/null || echo "nouveau lab: $module is refused"
done </modules/order
# Unloads the GSP; then all of it again.
rmmod nouveau && echo 'nouveau lab: removed' && insmod /modules/nouveau.ko && echo 'nouveau lab: started again'
dmesg | grep nouveau
echo "nouveau lab, kernel $(uname -r), is through"
printf '\000' | dd of=/dev/port bs=1 seek=244 count=1 conv=notrunc 2>/dev/null
poweroff -f
