#!/bin/busybox sh
# First process of the guest: runs the tests of the lab that the kernel option lab=NAME names (lab.sh), with the
# unmodified program around them, and ends the machine with the status written to port 0xf4.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run/lock
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp BM_PLUGIN_DIR=/bin
lab=$(tr ' ' '\n' </proc/cmdline | sed -n 's/^lab=//p')

while read -r module; do
  insmod "/modules/$module" || echo "insmod $module failed"
done </modules/order

status=0
# expect WHAT COMMAND…: the command succeeds and says WHAT.
expect() {
  what=$1
  shift
  "$@" >/tmp/said 2>&1 || { echo "FAILED: $*"; status=1; }
  cat /tmp/said
  grep -q -- "$what" /tmp/said || { echo "FAILED: '$*' did not say '$what'"; status=1; }
}

lab_pci() {
  card=$(for folder in /sys/bus/pci/devices/*; do
    [ "$(cat "$folder/vendor"):$(cat "$folder/device")" = 0x1234:0x11e8 ] && echo "${folder##*/}"
  done)
  echo "edu is $card"
  expect "$card" bellmetal pci list --all
}

lab_vfio() {
  lab_pci
  pci_lab --gtest_color=no --gtest_filter='WithIommu.*' || status=1
  expect vfio-pci bellmetal pci bind "$card" --dry-run
  [ ! -e "/sys/bus/pci/devices/$card/driver" ] || { echo 'FAILED: --dry-run changed the driver'; status=1; }
  expect vfio-pci bellmetal pci bind "$card"
  [ "$(basename "$(readlink "/sys/bus/pci/devices/$card/driver")")" = vfio-pci ] || { echo 'FAILED: not bound'; status=1; }
  expect vfio-pci bellmetal pci list --all
  pci_lab --gtest_color=no --gtest_filter='Vfio.*:VfioLoss.Unbinding*' || status=1
  dmesg | grep -i 'DMAR.*fault' | tail -3
  dmesg | grep -qi 'DMAR.*fault' || { echo 'FAILED: the IOMMU reported no blocked access'; status=1; }
  expect "$card" bellmetal pci restore "$card"
  [ ! -e "/sys/bus/pci/devices/$card/driver" ] || { echo 'FAILED: not given back'; status=1; }
  [ "$(cat "/sys/bus/pci/devices/$card/driver_override")" = '(null)' ] || { echo 'FAILED: driver_override stays'; status=1; }
  expect vfio-pci bellmetal pci bind "$card"
  pci_lab --gtest_color=no --gtest_filter='VfioLoss.Removal*' || status=1
}

lab_sysfs() {
  lab_pci
  pci_lab --gtest_color=no --gtest_filter='WithoutIommu.*' || status=1
  if bellmetal pci bind "$card" >/tmp/said 2>&1; then
    echo 'FAILED: bound to vfio-pci without an IOMMU'
    status=1
  fi
  cat /tmp/said
  grep -q IOMMU /tmp/said || { echo 'FAILED: the refusal does not name the IOMMU'; status=1; }
}

lab_amd() {
  card=$(for folder in /sys/bus/pci/devices/*; do
    [ "$(cat "$folder/vendor")" = 0x1002 ] && echo "${folder##*/}"
  done)
  echo "the modelled card is $card"
  export DEV=AMD:PCI BM_FIRMWARE_DIR=/firmware BM_LOG=amd=2
  # The only display of the machine, so it is the boot display, too.
  expect vfio-pci bellmetal pci bind "$card" --display
  expect "$card" bellmetal devices
  expect 'left in order\|cold\|not ours' bellmetal gpu boot --pci "$card" --stats
  amd_pci_open || { echo 'FAILED: the card does not open'; status=1; }
  amd_pci_open || { echo 'FAILED: the card does not open again'; status=1; }
  dmesg | grep -i 'DMAR.*fault' && { echo 'FAILED: the card left its mappings'; status=1; }
  expect "$card" bellmetal pci restore "$card"
}

lab_nv() {
  card=$(for folder in /sys/bus/pci/devices/*; do
    [ "$(cat "$folder/vendor")" = 0x10de ] && echo "${folder##*/}"
  done)
  echo "the modelled card is $card"
  export DEV=NV:PCI BM_FIRMWARE_DIR=/firmware BM_LOG=nv=2
  # The only display of the machine, so it is the boot display, too.
  expect vfio-pci bellmetal pci bind "$card" --display
  expect '1 of interface PCI' bellmetal devices
  expect ga102 bellmetal gpu discover --pci "$card"
  expect 'P17 unload' bellmetal gpu boot --pci "$card" --stats
  dmesg | grep -i 'DMAR.*fault' && { echo 'FAILED: the card left its mappings'; status=1; }
  expect 'left alone' nv_dma_lab "vfio:$card"
  nv_pci_open || { echo 'FAILED: the card does not open after that'; status=1; }
  expect "$card" bellmetal pci restore "$card"
}

lab_amd_usb() {
  export BM_FIRMWARE_DIR=/firmware BM_LOG=amd=3
  tries=0
  until grep -qs 3801 /sys/bus/usb/devices/*/idVendor || [ $((tries += 1)) -gt 200 ]; do sleep 0.1; done
  for _ in cold warm; do
    amd_pci_open --usb || { echo 'FAILED: the card does not open'; status=1; }
  done
}

lab_usb() {
  usb_lab --gtest_color=no --gtest_filter='UsbLab.*' || status=1
  usb_lab --gtest_color=no --gtest_filter='UsbLabUnplugged.*' || status=1
}

echo "lab $lab, kernel $(uname -r)"
"lab_$lab"
echo "lab $lab ended with $status"
# shellcheck disable=SC2059
printf "\\$(printf %o "$status")" | dd of=/dev/port bs=1 seek=244 count=1 conv=notrunc 2>/dev/null
poweroff -f
