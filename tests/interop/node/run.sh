#!/usr/bin/env bash
# The Node client (@grpc/grpc-js): tests/interop/node/run.sh ADDRESS [FOLDER]; see tests/interop/README.md.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)"
source="$root/tests/interop/node" modules="$root/build/node"
mkdir -p "$modules"
if ! cmp -s "$source/package-lock.json" "$modules/installed"; then
  cp "$source/package.json" "$source/package-lock.json" "$modules"
  "$root/tests/twice.sh" npm ci --prefix "$modules" --cache "$modules/cache" --ignore-scripts --no-audit --no-fund >&2
  cp "$source/package-lock.json" "$modules/installed"
fi
NODE_PATH="$modules/node_modules" exec node "$source/client.js" "$@"
