#!/usr/bin/env bash
# Boots Debian's kernel with a virtual IOMMU and without one, and drives QEMU's "edu" PCI function there through
# our transports and the kernel's own VFIO and sysfs. usage: pci_lab.sh BIN_DIR vfio|sysfs
# (with pci_lab and bellmetal). Exit 77: what it needs cannot be had here. Fetches about 100 MB the first time.
set -euo pipefail
# shellcheck source=tests/vm/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bin=${1:?pci_lab.sh BIN_DIR LAB}
lab=${2:?pci_lab.sh BIN_DIR LAB}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
vm_fetch_machine
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

vm_start_root "$work/root"
vm_add_module vfio-pci
vm_add_module vfio_iommu_type1
for program in bellmetal pci_lab; do
  cp "$bin/$program" "$work/root/bin/"
  vm_add_libraries "$bin/$program"
done
vm_pack_root "$here/pci_lab_init.sh" "$work/initramfs"

# The device may address all that the virtual IOMMU translates.
devices=(-device 'pcie-root-port,id=rp0,chassis=1' -device 'edu,bus=rp0,dma_mask=0xffffffffffffffff')
case $lab in
vfio) devices=(-device 'intel-iommu,intremap=on' "${devices[@]}") vm_append='lab=vfio intel_iommu=on' ;;
sysfs) vm_append='lab=sysfs' ;;
*) echo "no lab $lab" && exit 2 ;;
esac
status=0
export vm_append
# shellcheck disable=SC2016
timeout 200 bash -c 'source "$1"; shift; vm_boot "$@"' _ "$here/lib.sh" "$vm_qemu_root" \
  "$(vm_first_of "$vm_kernel"/boot/vmlinuz-"$(<"$vm_cache/release")")" "$work/initramfs" 1024 -machine q35 \
  "${devices[@]}" >"$work/console" 2>&1 || status=$?
tr -d '\r' <"$work/console" | grep -av '^\[ *\(RUN\|---*\|===*\) '
if ((status != 0)); then
  echo "the guest ended with $status"
  exit 1
fi
