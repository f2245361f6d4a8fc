#!/usr/bin/env bash
# buf breaking: clients of the released contract go on working with the one of a folder (default: proto).
set -euo pipefail
contract="$(realpath "${1:-proto}")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tests/venv.sh
for released in proto/attnd-*.binpb; do
  build/venv/bin/buf breaking "$contract" --against "$released"
  echo "buf breaking: nothing of $released is broken"
done
