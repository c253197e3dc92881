#!/usr/bin/env bash
# Syntax of every shell script; shellcheck too where it is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mapfile -t scripts < <(grep -rlIE '^#!/usr/bin/env bash|^# shellcheck shell=bash' tools .ci tests examples 2>/dev/null)
for script in "${scripts[@]}"; do
  bash -n "$script"
done
if command -v shellcheck >/dev/null; then
  shellcheck -x "${scripts[@]}"
fi
printf '%d scripts\n' "${#scripts[@]}"
