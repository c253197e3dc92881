# Virtual machines for tests, from Debian's packages, nothing installed; sourced, not run.
# shellcheck shell=bash
# BM_VM_CACHE names the folder that keeps what was fetched and built (default: under the user's cache).

vm_cache=${BM_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/bellmetal-vm}
mkdir -p "$vm_cache"

# Ends the test as skipped, saying why.
vm_skip() {
  printf 'SKIPPED: %s\n' "$*"
  exit 77
}

vm_need() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || vm_skip "$tool is not here"
  done
}

# The Debian mirror that this system uses.
vm_mirror() {
  grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
    head -1 | tr -d ' ' || true
}

# vm_apt SUITE COMPONENTS: options that give apt lists and a package state of its own, with nothing
# installed in it, so that downloading a package brings everything it depends on. Result: vm_options.
vm_apt() {
  local dir=$vm_cache/apt-$1
  mkdir -p "$dir"/{lists/partial,cache/archives/partial,empty}
  printf 'deb [trusted=no] %s %s %s\n' "$vm_mirror_url" "$1" "$2" | sed 's/ \[trusted=no\]//' >"$dir/sources.list"
  : >"$dir/status"
  vm_options=(-qq -o "Dir::Etc::sourcelist=$dir/sources.list" -o "Dir::Etc::sourceparts=$dir/empty"
    -o "Dir::State::lists=$dir/lists" -o "Dir::State::status=$dir/status" -o "Dir::Cache=$dir/cache"
    -o APT::Install-Recommends=false -o "APT::Sandbox::User=$(id -un)" -o Debug::NoLocking=1
    -o Acquire::Languages=none -o Acquire::Retries=3 -o Acquire::http::Timeout=15)
  if [[ ! -e $dir/updated-$2 ]]; then
    apt-get "${vm_options[@]}" update >"$dir/log" 2>&1 || return 1
    : >"$dir/updated-$2"
  fi
}

# vm_unpack SUITE DIR PACKAGE…: the packages and all they depend on, unpacked into DIR.
vm_unpack() {
  local suite=$1 dir=$2 deb
  shift 2
  [[ -e $dir/.complete ]] && return 0
  vm_apt "$suite" main || return 1
  rm -f "$vm_cache/apt-$suite/cache/archives/"*.deb
  apt-get "${vm_options[@]}" -y --download-only install "$@" >/dev/null || return 1
  mkdir -p "$dir"
  for deb in "$vm_cache/apt-$suite/cache/archives/"*.deb; do dpkg-deb -x "$deb" "$dir" || return 1; done
  : >"$dir/.complete"
}

# vm_unpack_only SUITE COMPONENTS DIR PACKAGE…: just these packages.
vm_unpack_only() {
  local suite=$1 components=$2 dir=$3 package
  shift 3
  vm_apt "$suite" "$components" || return 1
  mkdir -p "$dir"
  for package in "$@"; do
    [[ -e $dir/.has-$package ]] && continue
    (cd "$vm_cache/apt-$suite/cache/archives" && rm -f "${package}"_*.deb &&
      apt-get "${vm_options[@]}" download "$package") || return 1
    dpkg-deb -x "$(ls "$vm_cache/apt-$suite/cache/archives/${package}"_*.deb)" "$dir" || return 1
    : >"$dir/.has-$package"
  done
}

# vm_depends SUITE PACKAGE PATTERN: the first dependency of PACKAGE that matches.
vm_depends() {
  vm_apt "$1" main || return 1
  apt-cache "${vm_options[@]}" show "$2" | grep '^Depends:' | grep -oE "$3" | head -1
}

# vm_qemu ROOT ARGUMENT…: the QEMU unpacked in ROOT, by its own loader and libraries.
vm_qemu() {
  local root=$1 loader
  shift
  for loader in "$root"/{usr/,}lib64/ld-linux-x86-64.so.2; do [[ -e $loader ]] && break; done
  QEMU_MODULE_DIR=$root/usr/lib/x86_64-linux-gnu/qemu "$loader" --library-path \
    "$root/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu/pulseaudio" \
    "$root/usr/bin/qemu-system-x86_64" -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" \
    -L "$root/usr/lib/ipxe/qemu" "$@"
}

# vm_boot ROOT KERNEL INITRAMFS MEMORY ARGUMENT…: boots and returns what the guest's /init wrote to
# port 0xf4; 99 when it died without. The guest's console is on the standard output. vm_append: more options
# of the kernel.
vm_boot() {
  local root=$1 kernel=$2 initramfs=$3 memory=$4 status=0
  shift 4
  # KVM may exist and not work (it does so on machines that are virtual themselves): always emulate.
  vm_qemu "$root" -accel tcg,thread=multi -cpu max -m "$memory" -nodefaults -display none \
    -serial stdio -no-reboot -bios qboot.rom -device isa-debug-exit,iobase=0xf4,iosize=4 \
    -kernel "$kernel" -initrd "$initramfs" \
    -append "console=ttyS0 quiet mitigations=off panic=-1 ${vm_append:-}" "$@" </dev/null || status=$?
  ((status % 2 == 1)) && return $((status / 2))
  return 99
}

# First of the paths that exists.
vm_first_of() {
  local path
  for path in "$@"; do [[ -e $path ]] && echo "$path" && return; done
  vm_skip "none of $* was fetched"
}

# Debian's kernel, its modules and what packs them, in vm_kernel; the release in $vm_cache/release.
vm_kernel=$vm_cache/kernel
vm_fetch_kernel() {
  local image
  if [[ ! -s $vm_cache/release ]]; then
    image=$(vm_depends bookworm linux-image-amd64 'linux-image-[0-9][^ ,]*') || return 1
    vm_unpack_only bookworm main "$vm_kernel" "$image" busybox-static kmod cpio || return 1
    echo "${image#linux-image-}" >"$vm_cache/release"
  fi
}

# What every guest on Debian 12's own QEMU needs, or the test is skipped. Result: vm_qemu_root, vm_kernel.
vm_fetch_machine() {
  vm_need apt-get apt-cache dpkg-deb
  [[ -n $vm_mirror_url ]] || vm_skip 'no Debian mirror is configured here'
  vm_qemu_root=$vm_cache/qemu
  if [[ ! -e $vm_qemu_root/.complete ]]; then
    vm_qemu_root=$vm_cache/qemu-bookworm
    vm_unpack bookworm "$vm_qemu_root" qemu-system-x86 seabios || vm_skip "Debian's QEMU cannot be fetched"
  fi
  vm_fetch_kernel || vm_skip 'the kernel cannot be fetched'
}

# vm_start_root DIR: an empty root file system of the guest, as vm_root. Result too: vm_tree, the modules.
vm_start_root() {
  local release kmod
  vm_root=$1
  release=$(<"$vm_cache/release")
  kmod=$(vm_first_of "$vm_kernel"/{usr/,}bin/kmod)
  mkdir -p "$vm_root"/{bin,modules} "$vm_root.tools"
  ln -sf "$kmod" "$vm_root.tools/depmod"
  ln -sf "$kmod" "$vm_root.tools/modinfo"
  vm_tree=$(vm_first_of "$vm_kernel"/{usr/,}lib/modules/"$release")
  [[ -s $vm_tree/modules.dep ]] || "$vm_root.tools/depmod" -b "${vm_tree%/lib/modules/*}" "$release"
  : >"$vm_root/modules/order"
}

# vm_add_module NAME: a module of the kernel and what it needs, dependencies first. Nothing if there is none.
vm_add_module() {
  local line file
  line=$(grep -E "/${1//[-_]/[-_]}\.ko:" "$vm_tree/modules.dep" | head -1) || return 0
  for file in $(tr ' ' '\n' <<<"${line#*:}" | tac) "${line%%:*}"; do
    [[ -n $file && ! -e $vm_root/modules/${file##*/} ]] || continue
    cp "$vm_tree/$file" "$vm_root/modules/"
    echo "${file##*/}" >>"$vm_root/modules/order"
  done
}

# vm_add_libraries PROGRAM: the shared libraries it needs.
vm_add_libraries() {
  local library
  while read -r library; do
    mkdir -p "$vm_root${library%/*}"
    cp -L "$library" "$vm_root$library"
  done < <(ldd "$1" | grep -oE '/[^ ]+' | sort -u)
}

# vm_pack_root INIT OUT: the root file system as an initramfs with INIT as its first process.
vm_pack_root() {
  local cpio
  cpio=$(vm_first_of "$vm_kernel"/{usr/,}bin/cpio)
  cp "$(vm_first_of "$vm_kernel"/{usr/,}bin/busybox)" "$vm_root/bin/busybox"
  install -m 755 "$1" "$vm_root/init"
  (cd "$vm_root" && find . | "$cpio" -o -H newc --quiet) >"$2"
}

vm_mirror_url=$(vm_mirror)
