#!/usr/bin/env bash
# Boots Debian sid's kernel with a modelled NVIDIA card behind vfio-user and has its nouveau make a device of it with
# NVIDIA's files of Debian's package, twice, with an unload between. usage: nouveau.sh BIN_DIR CHIP
# Passes where the model's GSP-RM says that it is ready and had nothing to refuse until then, where nouveau has copies by a
# channel of its own, and where the model had no more to refuse than what `borne` lists. gb202's display, which is not modelled,
# cannot be switched off for nouveau, which gives up there, after its channels.
# Exit 77: what it needs cannot be had here. Fetches about 300 MB the first time.
set -euo pipefail
# shellcheck source=tests/vm/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bin=${1:?nouveau.sh BIN_DIR CHIP}
chip=${2:?nouveau.sh BIN_DIR CHIP}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
vm_fetch_machine
vm_need xz
vm_unpack sid "$vm_cache/qemu" qemu-system-x86 seabios || vm_skip 'QEMU of Debian sid cannot be fetched'
vm_qemu_root=$vm_cache/qemu  # vfio-user-pci came with QEMU 10.1
vm_qemu "$vm_qemu_root" -device help 2>/dev/null | grep '"vfio-user-pci"' >/dev/null || vm_skip "Debian sid's QEMU has no vfio-user-pci"

# Its kernel: nouveau takes firmware 570.144 from Linux 6.16 on.
kernel=$vm_cache/kernel-sid
if [[ ! -s $vm_cache/release-sid ]]; then
  image=$(vm_depends sid linux-image-amd64 'linux-image-[0-9][^ ,]*') || vm_skip 'no package lists of Debian sid'
  release=${image#linux-image-}
  vm_unpack_only sid main "$kernel" "linux-binary-$release" "linux-modules-$release" || vm_skip "Debian sid's kernel cannot be fetched"
  echo "$release" >"$vm_cache/release-sid"
fi
release=$(<"$vm_cache/release-sid")
firmware=$vm_cache/firmware-sid
vm_unpack_only sid 'main non-free-firmware' "$firmware" firmware-nvidia-graphics || vm_skip 'the firmware cannot be fetched'
files=$firmware/usr/lib/firmware
[[ -e $files/nvidia/$chip/gsp/gsp-570.144.bin ]] || vm_skip "Debian sid's package has no 570.144 of $chip"

work=$(mktemp -d)
server=''
# shellcheck disable=SC2317
finish() {
  [[ -z $server ]] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

vm_start_root "$work/root"
vm_tree=$kernel/usr/lib/modules/$release
[[ -s $vm_tree/modules.dep ]] || "$vm_root.tools/depmod" -b "$kernel/usr" "$release" 2>/dev/null
: >"$vm_root/modules/order"
line=$(grep -E '/nouveau\.ko(\.xz)?:' "$vm_tree/modules.dep") || vm_skip 'the kernel has no nouveau'
for file in $(tr ' ' '\n' <<<"${line#*:}" | tac) "${line%%:*}"; do
  name=${file##*/} name=${name%.xz}
  if [[ $file == *.xz ]]; then xz -dc "$vm_tree/$file"; else cat "$vm_tree/$file"; fi >"$vm_root/modules/$name"
  echo "$name" >>"$vm_root/modules/order"
done
mkdir -p "$vm_root/lib/firmware/nvidia"
cp -rL "$files/nvidia/$chip" "$vm_root/lib/firmware/nvidia/"
# Of two releases it takes the newer one.
rm -f "$vm_root/lib/firmware/nvidia/$chip/gsp/"*535*
vm_pack_root "$here/nouveau_init.sh" "$work/initramfs"

"$bin/sim-nv-pci" "$chip" --vfio-user "$work/card.sock" --firmware "$files" --no-display >"$work/server" 2>&1 &
server=$!
for _ in {1..50}; do
  [[ -S $work/card.sock ]] && break
  sleep 0.1
done
status=0
# shellcheck disable=SC2016
timeout "$((600 * ${BM_TEST_TIME_FACTOR:-1}))" bash -c 'source "$1"; shift; vm_boot "$@"' _ "$here/lib.sh" "$vm_qemu_root" "$vm_tree/vmlinuz" \
  "$work/initramfs" 2048 -machine q35,memory-backend=ram -object memory-backend-memfd,id=ram,size=2G,share=on \
  -device pcie-root-port,id=rp0,chassis=1,pref64-reserve=1G -device \
  "{\"driver\":\"vfio-user-pci\",\"bus\":\"rp0\",\"socket\":{\"path\":\"$work/card.sock\",\"type\":\"unix\"}}" \
  >"$work/console" 2>&1 || status=$?
wait "$server" || true  # 3: what the model has not
server=''
tr -d '\r' <"$work/console" | grep -a '^nouveau lab\|nouveau [0-9a-f:.]*: [a-z]' | sed -n 1,20p || true
sort "$work/server" | uniq -c | sort -rn | sed -n 1,20p
if ((status != 0)); then
  tail -20 "$work/console"
  echo "the guest ended with $status"
  exit 1
fi
fail() {
  echo "FAILED: $*"
  exit 1
}
# The channel of its golden context: a method buffer described in the wrong memory, a ring that is never used.
borne='method buffer: system memory|ring at 0x0 is not mapped|MMU: address 0x0: directory entry 0xdeadc0de'
[[ $chip == gb202 ]] && borne+='|class 0x0073|control 0x20800a49'
grep -q 'GSP-RM was ready after 0 violations' "$work/server" || fail 'not ready, or not without a violation'
(($(grep -c 'GSP-RM was ready' "$work/server") == 2)) || fail 'not started again after the unload'
[[ $chip == gb202 ]] || (($(grep -ac 'MM: using COPY for buffer copies' "$work/console") == 2)) || fail 'no channel for copies'
! grep 'violation: ' "$work/server" | grep -Ev "$borne" || fail 'the model refused more than that'
