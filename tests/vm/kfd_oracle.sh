#!/usr/bin/env bash
# Boots Debian's real amdgpu module without a GPU, which shows /dev/kfd all the same, and checks that our
# version, topology and event code works on it and that the modelled driver gives the same answers.
# usage: kfd_oracle.sh BIN_DIR   (with kfd_oracle)
# Exit 77: what it needs cannot be had here. Fetches about 100 MB the first time.
set -euo pipefail
# shellcheck source=tests/vm/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bin=${1:?kfd_oracle.sh BIN_DIR}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
vm_fetch_machine
release=$(<"$vm_cache/release")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

vm_start_root "$work/root"
vm_add_module amdgpu
cp "$bin/kfd_oracle" "$work/root/oracle"
vm_add_libraries "$bin/kfd_oracle"
vm_pack_root "$here/kfd_init.sh" "$work/initramfs"

status=0
# shellcheck disable=SC2016
timeout "$((200 * ${BM_TEST_TIME_FACTOR:-1}))" bash -c 'source "$1"; shift; vm_boot "$@"' _ "$here/lib.sh" "$vm_qemu_root" \
  "$(vm_first_of "$vm_kernel"/boot/vmlinuz-"$release")" "$work/initramfs" 1024 -machine q35 \
  >"$work/console" 2>&1 || status=$?
tr -d '\r' <"$work/console" >"$work/clean"
if ((status != 0)); then
  tail -40 "$work/clean"
  echo "the guest ended with $status"
  exit 1
fi
grep '^ask: ' "$work/clean" >"$work/real" || true
minor=$(sed -n 's/^minor: //p' "$work/clean" | head -1)
"$bin/kfd_oracle" --fake "$minor" | grep '^ask: ' >"$work/fake"
if ! diff -U0 --label "amdgpu of Linux $release" "$work/real" --label 'the model' "$work/fake"; then
  exit 1
fi
echo "interface 1.$minor: $(wc -l <"$work/fake") answers are the same"
