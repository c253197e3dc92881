# Shared by the scripts in this folder; sourced, not run. Owns: package check, configure, build.
# shellcheck shell=bash

bm_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

die() {
  printf '%s\n' "$*" >&2
  exit 1
}

# What is built here is executed: only its owner may write it (runtime/base/trust.h refuses the rest).
umask 022

# Processors this process may use (honours cgroup-less CPU masks; containers set both).
bm_jobs() {
  nproc 2>/dev/null || echo 2
}

# bm_packages build|test: names from tools/packages.txt, one per line.
bm_packages() {
  local scope=$1 name kind
  while read -r name kind; do
    case $name in '' | '#'*) continue ;; esac
    if [[ -z $kind || $kind == "$scope" ]]; then
      echo "$name"
    fi
  done <"$bm_root/tools/packages.txt"
}

# Installs what is missing as root; otherwise prints the one command to run and exits 2.
bm_need_packages() {
  local scope=$1 name state
  local -a missing=()
  if ! command -v dpkg-query >/dev/null; then
    printf 'not a Debian system: make sure what tools/packages.txt lists is installed\n' >&2
    return 0
  fi
  while read -r name; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null || true)
    [[ $state == installed ]] || missing+=("$name")
  done < <(bm_packages "$scope")
  ((${#missing[@]})) || return 0

  if ((EUID != 0)); then
    printf 'Some Debian packages are missing. Install them, then run this again:\n\n' >&2
    printf '  sudo apt-get install --no-install-recommends %s\n\n' "${missing[*]}" >&2
    exit 2
  fi
  printf 'installing %d Debian packages: %s\n' "${#missing[@]}" "${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # Another apt may hold the lock on a fresh machine (unattended-upgrades); mirrors drop connections.
  local -a apt=(apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5)
  bm_retry 3 "${apt[@]}" update </dev/null
  bm_retry 3 "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null
}

# bm_retry N COMMAND…: runs the command until it succeeds, at most N times.
bm_retry() {
  local tries=$1 attempt
  shift
  for ((attempt = 1; attempt <= tries; attempt++)); do
    if "$@"; then
      return 0
    fi
    printf 'attempt %d of %d failed: %s\n' "$attempt" "$tries" "$*" >&2
  done
  return 1
}

# bm_configure PRESET [BUILD_DIR] [-D…]: quick when nothing changed.
bm_configure() {
  local preset=$1 dir=${2:-$bm_root/build/$1}
  shift
  (($#)) && shift
  mkdir -p "$dir"
  # A checkout made under umask 0002 is writable by its group.
  local folder
  for folder in "$bm_root" "$bm_root/build" "$dir" "$dir/lib" "$dir/bin"; do
    if [[ -O $folder && -n $(find "$folder" -maxdepth 0 -perm /022) ]]; then
      printf 'chmod go-w %s: what is built there is executed\n' "$folder" >&2
      chmod go-w "$folder"
    fi
  done
  if ! (cd "$bm_root" && cmake --preset "$preset" -B "$dir" "$@") >"$dir/configure.log" 2>&1; then
    cat "$dir/configure.log" >&2
    die "configuring $dir failed"
  fi
}

# bm_large_pages COMMAND…: runs it with a malloc that takes large pages (glibc 2.35; others ignore it). On machines whose
# page faults leave the kernel, compilers are a quarter faster and tests of simulated cards take half as long.
bm_large_pages() {
  GLIBC_TUNABLES=${GLIBC_TUNABLES-glibc.malloc.hugetlb=1} "$@"
}

# bm_build BUILD_DIR JOBS [TARGET…]
bm_build() {
  local dir=$1 jobs=$2
  shift 2
  local -a targets=()
  (($#)) && targets=(--target "$@")
  NINJA_STATUS='[%f/%t %es] ' bm_large_pages cmake --build "$dir" --parallel "$jobs" "${targets[@]}" </dev/null
}
