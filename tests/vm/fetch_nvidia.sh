#!/usr/bin/env bash
# Fetches and builds what nvidia_oracle.sh boots: QEMU, a kernel, NVIDIA's open kernel modules.
# About 150 MB and two minutes the first time; kept in BM_VM_CACHE.
set -euo pipefail
# shellcheck source=tests/vm/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

vm_need apt-get apt-cache dpkg-deb make gcc
[[ -n $vm_mirror_url ]] || vm_skip 'no Debian mirror is configured here'

# vfio-user-pci came with QEMU 10.1.
vm_unpack sid "$vm_cache/qemu" qemu-system-x86 seabios || vm_skip 'QEMU of Debian sid cannot be fetched'
image=$(vm_depends bookworm linux-image-amd64 'linux-image-[0-9][^ ,]*') || vm_skip 'no package lists'
headers=$(vm_depends bookworm linux-headers-amd64 'linux-headers-[0-9][^ ,]*')
release=${image#linux-image-}
kernel=$vm_cache/kernel
vm_unpack_only bookworm main "$kernel" "$image" "$headers" "${headers%-amd64}-common" \
  linux-kbuild-6.1 busybox-static kmod cpio || vm_skip 'the kernel cannot be fetched'
vm_unpack_only bookworm 'main contrib' "$vm_cache/nvidia" nvidia-open-kernel-source ||
  vm_skip "NVIDIA's modules cannot be fetched"
echo "$release" >"$vm_cache/release"

if [[ ! -s $vm_cache/nvidia/nvidia-uvm.ko ]]; then
  # The headers name each other by absolute paths.
  find "$kernel/usr/src" -maxdepth 2 -type f \( -name Makefile -o -name .kernelvariables \) \
    -exec sed -i "s#\(^\|[^a-zA-Z0-9_.]\)/usr/src/linux-headers#\1$kernel/usr/src/linux-headers#g
                  s#\(^\|[^a-zA-Z0-9_.]\)/usr/lib/linux-kbuild#\1$kernel/usr/lib/linux-kbuild#g" {} +
  build=$kernel/usr/src/linux-headers-$release
  rm -rf "$vm_cache/nvidia/src"
  mkdir -p "$vm_cache/nvidia/src"
  tar -C "$vm_cache/nvidia/src" -xJf "$vm_cache/nvidia/usr/src/nvidia-open-kernel.tar.xz"
  source_dir=$(dirname "$(find "$vm_cache/nvidia/src" -name Kbuild -path '*kernel*' | head -1)")
  rest='nvidia-drm nvidia-modeset nvidia-peermem'
  make -C "$source_dir" -j"$(nproc)" KERNEL_UNAME="$release" SYSSRC="${build%-amd64}-common" SYSOUT="$build" \
    NV_EXCLUDE_KERNEL_MODULES="$rest" NV_EXCLUDE_BUILD_MODULES="$rest" modules \
    >"$vm_cache/nvidia/build.log" 2>&1 || vm_skip "NVIDIA's modules do not build: $vm_cache/nvidia/build.log"
  for module in nvidia nvidia-uvm; do
    strip --strip-debug -o "$vm_cache/nvidia/$module.ko" "$source_dir/$module.ko"
  done
fi
echo "ready in $vm_cache"
