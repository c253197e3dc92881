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

kernel=$vm_cache/kernel
release=$(<"$vm_cache/release")
work=$(mktemp -d)
stub=''
# shellcheck disable=SC2317
finish() {
  [[ -z $stub ]] || kill "$stub" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

first_of() {
  local path
  for path in "$@"; do [[ -e $path ]] && echo "$path" && return; done
  vm_skip "none of $* was fetched"
}
kmod=$(first_of "$kernel"/{usr/,}bin/kmod)
cpio=$(first_of "$kernel"/{usr/,}bin/cpio)
busybox=$(first_of "$kernel"/{usr/,}bin/busybox)
mkdir -p "$work/tools" "$work/root"/{bin,modules}
ln -s "$kmod" "$work/tools/depmod"
ln -s "$kmod" "$work/tools/modinfo"

# Modules that nvidia.ko needs, dependencies first.
tree=$(first_of "$kernel"/{usr/,}lib/modules/"$release")
[[ -s $tree/modules.dep ]] || "$work/tools/depmod" -b "${tree%/lib/modules/*}" "$release"
: >"$work/root/modules/order"
add_module() {
  local line file
  line=$(grep -E "/${1//[-_]/[-_]}\.ko:" "$tree/modules.dep" | head -1) || return 0
  for file in $(tr ' ' '\n' <<<"${line#*:}" | tac) "${line%%:*}"; do
    [[ -n $file && ! -e $work/root/modules/${file##*/} ]] || continue
    cp "$tree/$file" "$work/root/modules/"
    echo "${file##*/}" >>"$work/root/modules/order"
  done
}
for module in nvidia nvidia-uvm; do
  cp "$vm_cache/nvidia/$module.ko" "$work/root/modules/"
  while read -r needed; do
    [[ -z $needed || $needed == nvidia ]] || add_module "$needed"
  done < <("$work/tools/modinfo" -F depends "$vm_cache/nvidia/$module.ko" | tr ',' '\n')
done

cp "$busybox" "$work/root/bin/busybox"
install -m 755 "$here/guest_init.sh" "$work/root/init"
cp "$bin/nvidia_oracle" "$work/root/oracle"
while read -r library; do
  mkdir -p "$work/root${library%/*}"
  cp -L "$library" "$work/root$library"
done < <(ldd "$bin/nvidia_oracle" | grep -oE '/[^ ]+' | sort -u)
(cd "$work/root" && find . | "$cpio" -o -H newc --quiet) >"$work/initramfs"

"$bin/stub_gpu" "$work/gpu.sock" &
stub=$!
for _ in {1..50}; do
  [[ -S $work/gpu.sock ]] && break
  sleep 0.1
done
status=0
# shellcheck disable=SC2016
timeout 300 bash -c 'source "$1"; shift; vm_boot "$@"' _ "$here/lib.sh" "$vm_cache/qemu" \
  "$(first_of "$kernel"/boot/vmlinuz-"$release")" "$work/initramfs" 2048 \
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
