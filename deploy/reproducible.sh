#!/usr/bin/env bash
# Builds the release preset twice, from two copies of the sources in two folders, and compares every object, archive and
# binary byte by byte.
#
#   deploy/reproducible.sh [TARGET...]
#
#   TARGET   what to build (default: attnd attn, some minutes each)
#
# Exit code 0: all the same. What differs is named, and both copies are kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in -h | --help) sed -n '2,/^set -/p' "$0" | sed -e '/^set -/d' -e 's/^# \{0,1\}//'; exit 0 ;; esac
targets=("${@:-attnd}")
if (($# == 0)); then targets=(attnd attn); fi

folder="$(mktemp -d)"
mkdir -p "$folder/first" "$folder/a/second"
tar --exclude=./build --exclude=./.git -cf - . | tar -xf - -C "$folder/first"
cp -a "$folder/first" "$folder/a/second/somewhere-else"
for copy in first a/second/somewhere-else; do
  source="$folder/$copy"
  # Nothing remembered from another build, and another order of compiling.
  jobs="$(nproc)"
  if [ "$copy" != first ]; then jobs=1; fi
  if ! (cd "$source" && export CCACHE_DISABLE=1 && cmake --preset release -DATTND_TESTS=OFF -DATTND_BENCH=OFF &&
    cmake --build --preset release -j "$jobs" --target "${targets[@]}") >"$folder/log" 2>&1; then
    tail -n 40 "$folder/log" >&2
    exit 1
  fi
  (cd "$source/build/release" && find . -type f \( -name '*.o' -o -name '*.a' -o -path './bin/*' \) \
    -not -path '*/CMakeFiles/[0-9]*' -print0 | sort -z | xargs -0 sha256sum) >"$folder/$(basename "$copy").sums"
done

if ! diff "$folder/first.sums" "$folder/somewhere-else.sums"; then
  echo "reproducible: the files above differ; both builds are in $folder" >&2
  exit 1
fi
echo "reproducible: $(wc -l <"$folder/first.sums") files are the same bytes from two folders"
grep ' \./bin/' "$folder/first.sums" || true
rm -rf "$folder"
