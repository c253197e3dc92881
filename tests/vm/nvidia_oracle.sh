#!/usr/bin/env bash
# Boots NVIDIA's real open kernel modules on a stub GPU and checks that the simulated driver gives the
# same answers. usage: nvidia_oracle.sh BIN_DIR   (with nvidia_oracle and stub_gpu)
# Exit 77: what it needs cannot be had here. Takes about ten seconds once everything is fetched.
set -euo pipefail
# shellcheck source=tests/vm/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bin=${1:?nvidia_oracle.sh BIN_DIR}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ ! -s $vm_cache/nvidia/nvidia-uvm.ko ]]; then
  "$here/fetch_nvidia.sh" || exit $?
fi

release=$(<"$vm_cache/release")
work=$(mktemp -d)
stub=''
# shellcheck disable=SC2317
finish() {
  [[ -z $stub ]] || kill "$stub" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

vm_start_root "$work/root"
# Modules that nvidia.ko needs, dependencies first.
for module in nvidia nvidia-uvm; do
  cp "$vm_cache/nvidia/$module.ko" "$work/root/modules/"
  while read -r needed; do
    [[ -z $needed || $needed == nvidia ]] || vm_add_module "$needed"
  done < <("$vm_root.tools/modinfo" -F depends "$vm_cache/nvidia/$module.ko" | tr ',' '\n')
done

cp "$bin/nvidia_oracle" "$work/root/oracle"
vm_add_libraries "$bin/nvidia_oracle"
vm_pack_root "$here/guest_init.sh" "$work/initramfs"

"$bin/stub_gpu" "$work/gpu.sock" &
stub=$!
for _ in {1..50}; do
  [[ -S $work/gpu.sock ]] && break
  sleep 0.1
done
status=0
# shellcheck disable=SC2016
timeout "$((300 * ${BM_TEST_TIME_FACTOR:-1}))" bash -c 'source "$1"; shift; vm_boot "$@"' _ "$here/lib.sh" "$vm_cache/qemu" \
  "$(vm_first_of "$vm_kernel"/boot/vmlinuz-"$release")" "$work/initramfs" 2048 \
  -machine q35,memory-backend=ram -object memory-backend-memfd,id=ram,size=2G,share=on \
  -device pcie-root-port,id=rp0,chassis=1 -device \
  "{\"driver\":\"vfio-user-pci\",\"bus\":\"rp0\",\"socket\":{\"path\":\"$work/gpu.sock\",\"type\":\"unix\"}}" \
  >"$work/console" 2>&1 || status=$?
if ((status != 0)); then
  tail -40 "$work/console"
  echo "the guest ended with $status"
  exit 1
fi
tr -d '\r' <"$work/console" | grep '^ask: ' >"$work/real" || true
"$bin/nvidia_oracle" --fake | grep '^ask: ' >"$work/fake"
tr -d '\r' <"$work/console" | grep NVRM | head -1
if ! diff -U0 --label 'real modules' "$work/real" --label 'simulated driver' "$work/fake"; then
  exit 1
fi
echo "$(wc -l <"$work/fake") answers are the same"
