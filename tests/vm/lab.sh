#!/usr/bin/env bash
# Boots Debian's kernel and runs our transports there over what the kernel really does. usage: lab.sh BIN_DIR LAB
#   vfio   QEMU's "edu" PCI function behind an Intel IOMMU, by VFIO
#   sysfs  the same without an IOMMU, by sysfs
#   usb    our model of an ASM2464PD bridge as a USB device, by libusb
#   amd_usb  our model of an AMD card behind that bridge
#   amd    our model of an AMD card behind an Intel IOMMU, by VFIO (QEMU's vfio-user-pci, from Debian sid)
#   nv     our model of an NVIDIA card there, and accesses of it to memory that is not mapped
# Exit 77: what it needs cannot be had here. Fetches about 100 MB the first time.
set -euo pipefail
# shellcheck source=tests/vm/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bin=${1:?lab.sh BIN_DIR LAB}
lab=${2:?lab.sh BIN_DIR LAB}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
vm_fetch_machine
work=$(mktemp -d)
server=''
# shellcheck disable=SC2317
finish() {
  [[ -z $server ]] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

# serve SOCKET PROGRAM ARGUMENT…: starts the model and waits until it listens on the socket in $work.
serve() {
  local socket=$work/$1 program=$2
  shift 2
  "$bin/$program" "$@" >"$work/server" 2>&1 &
  server=$!
  for _ in {1..50}; do
    [[ -S $socket ]] && return
    sleep 0.1
  done
  cat "$work/server"
  exit 1
}

machine=q35
# The device may address all that a virtual IOMMU translates.
edu=(-device 'pcie-root-port,id=rp0,chassis=1' -device 'edu,bus=rp0,dma_mask=0xffffffffffffffff')
export vm_append="lab=$lab"
case $lab in
vfio)
  programs=(pci_lab bellmetal) modules=(vfio-pci vfio_iommu_type1)
  devices=(-device 'intel-iommu,intremap=on' "${edu[@]}")
  vm_append+=' intel_iommu=on'
  ;;
sysfs)
  programs=(pci_lab bellmetal) modules=(vfio-pci)
  devices=("${edu[@]}")
  ;;
amd_usb)
  programs=(amd_pci_open) modules=(xhci-pci)
  devices=(-device 'qemu-xhci,id=xhci' -chardev "socket,id=bridge,path=$work/usb.sock"
    -device 'usb-redir,chardev=bridge,bus=xhci.0')
  serve usb.sock usb_bridge "$work/usb.sock" gfx1201
  ;;
amd | nv)
  vm_unpack sid "$vm_cache/qemu" qemu-system-x86 seabios || vm_skip 'QEMU of Debian sid cannot be fetched'
  vm_qemu_root=$vm_cache/qemu  # vfio-user-pci came with QEMU 10.1
  vm_qemu "$vm_qemu_root" -device help 2>/dev/null | grep '"vfio-user-pci"' >/dev/null || vm_skip "Debian sid's QEMU has no vfio-user-pci"
  programs=("${lab}_pci_open" bellmetal) modules=(vfio-pci vfio_iommu_type1)
  machine=q35,memory-backend=ram
  devices=(-object 'memory-backend-memfd,id=ram,size=1G,share=on' -device 'intel-iommu,intremap=on,caching-mode=on'
    -device 'pcie-root-port,id=rp0,chassis=1,pref64-reserve=1G'
    -device "{\"driver\":\"vfio-user-pci\",\"bus\":\"rp0\",\"socket\":{\"path\":\"$work/card.sock\",\"type\":\"unix\"},\"x-msg-timeout\":60000}")
  vm_append+=' intel_iommu=on'
  if [[ $lab == amd ]]; then
    serve card.sock sim-amd-pci --vfio-user "$work/card.sock" --chip gfx1201 --vram 256 --strict
  else
    programs+=(nv_dma_lab)
    "$bin/sim-nv-firmware" "$work/firmware" ga102
    serve card.sock sim-nv-pci ga102 --vfio-user "$work/card.sock" --firmware "$work/firmware"
  fi
  ;;
usb)
  programs=(usb_lab) modules=(xhci-pci)
  devices=(-device 'qemu-xhci,id=xhci' -chardev "socket,id=bridge,path=$work/usb.sock"
    -device 'usb-redir,chardev=bridge,bus=xhci.0')
  serve usb.sock usb_bridge "$work/usb.sock"
  ;;
*) echo "no lab $lab" && exit 2 ;;
esac

vm_start_root "$work/root"
for module in "${modules[@]}"; do vm_add_module "$module"; done
for program in "${programs[@]}"; do
  cp "$bin/$program" "$work/root/bin/"
  vm_add_libraries "$bin/$program"
done
if [[ $lab == *usb ]]; then  # loaded by the program itself
  libusb=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | sed -n 's/.*libusb-1\.0\.so\.0 .*x86-64.* => //p' | head -1)
  [[ -n $libusb ]] || vm_skip 'libusb-1.0-0 is not installed'
  mkdir -p "$work/root${libusb%/*}"
  cp -L "$libusb" "$work/root$libusb"
  vm_add_libraries "$libusb"
fi
case $lab in
amd*) "$bin/sim-amd-firmware" "$work/root/firmware" gfx1201 ;;
nv) cp -r "$work/firmware" "$work/root/firmware" ;;
esac
vm_pack_root "$here/lab_init.sh" "$work/initramfs"

status=0
# shellcheck disable=SC2016
timeout "$((200 * ${BM_TEST_TIME_FACTOR:-1}))" bash -c 'source "$1"; shift; vm_boot "$@"' _ "$here/lib.sh" "$vm_qemu_root" \
  "$(vm_first_of "$vm_kernel"/boot/vmlinuz-"$(<"$vm_cache/release")")" "$work/initramfs" 1024 -machine "$machine" \
  "${devices[@]}" >"$work/console" 2>&1 || status=$?
tr -d '\r' <"$work/console" | grep -av '^\[ *\(RUN\|---*\|===*\) '
if [[ -n $server ]]; then
  served=0
  wait "$server" || served=$?
  server=''
  cat "$work/server"
  if [[ $lab == nv ]]; then
    # nv_dma_lab has it write where nothing is mapped: that, and nothing else, is what the card says.
    grep -q 'was never mapped for DMA' "$work/server" || { echo 'the model reports no access that was blocked' && exit 1; }
    if grep 'violation:' "$work/server" | grep -v 'was never mapped for DMA'; then exit 1; fi
    served=0
  fi
  ((served == 0)) || { echo "the model ended with $served" && exit 1; }
fi
# QEMU's own failure to start is an odd status, too.
if ((status == 0)) && ! grep -aq "lab $lab ended with 0" "$work/console"; then status=98; fi
if ((status != 0)); then
  echo "the guest ended with $status"
  exit 1
fi
