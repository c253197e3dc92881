#!/usr/bin/env bash
# Two clean builds in folders of different names and lengths give the same bytes. Minutes: run with
# `ctest -L long -R reproducible`.
#
#   reproducible_test.sh SOURCE CMAKE CXX CC
set -euo pipefail
source_dir=$1 cmake=$2 cxx=$3 cc=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build() {  # FOLDER UMASK: the sources as committed or not, copied to FOLDER/src
  (
    umask "$2"
    mkdir -p "$1/src"
    git -C "$source_dir" ls-files -z | (cd "$source_dir" && tar --null --files-from=- --ignore-failed-read -c 2>/dev/null) | tar -x -C "$1/src"
    CCACHE_DISABLE=1 "$cmake" -S "$1/src" -B "$1/out" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBM_TESTS=OFF \
      "-DCMAKE_CXX_COMPILER=$cxx" "-DCMAKE_C_COMPILER=$cc" >"$1/log" 2>&1 || { cat "$1/log"; exit 1; }
    CCACHE_DISABLE=1 "$cmake" --build "$1/out" --target bellmetal >"$1/log" 2>&1 || { tail -50 "$1/log"; exit 1; }
  )
}
build "$work/a" 022
build "$work/another folder of a much longer name" 077

status=0 files=0
for file in bin/bellmetal lib/libbellmetal_llvm.so; do
  [[ -e $work/a/out/$file ]] || continue
  files=$((files + 1))
  if cmp "$work/a/out/$file" "$work/another folder of a much longer name/out/$file"; then
    echo "same: $file $(sha256sum <"$work/a/out/$file" | cut -c1-64)"
  else
    status=1
  fi
  if strings -a "$work/a/out/$file" | grep -F "$work"; then
    echo "$file names the folder it was built in"
    status=1
  fi
done
((files > 0)) || { echo "nothing was built"; exit 1; }
exit $status
