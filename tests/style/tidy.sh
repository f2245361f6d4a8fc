#!/usr/bin/env bash
# clang-tidy with .clang-tidy's checks over our own .cc files, by the release build's compile commands.
#
#   tests/style/tidy.sh [BUILD_FOLDER [FILE...]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build="${1:-build/release}"
shift || true
files=("$@")
if [ "$#" = 0 ]; then mapfile -t files < <(find proto core server client -name '*.cc' | sort); fi
# The commands are g++'s: an older clang takes its clearing of local variables for a mistake.
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" clang-tidy -p "$build" --quiet --warnings-as-errors='*' \
    --extra-arg=-ftrivial-auto-var-init=uninitialized \
    2> >(grep -vE 'warnings? generated|^$' >&2)
echo "clang-tidy: ${#files[@]} files are clean"
