#!/usr/bin/env bash
# The Python client (grpcio): tests/interop/python/run.sh ADDRESS [FOLDER]; see tests/interop/README.md.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)"
stubs="$root/build/interop/python"
mkdir -p "$stubs"
protoc -I "$root/proto" --python_out="$stubs" --grpc_out="$stubs" \
  --plugin=protoc-gen-grpc="$(command -v grpc_python_plugin)" attnd/v1/attention.proto
PYTHONPATH="$stubs" exec /usr/bin/python3 "$root/tests/interop/python/client.py" "$@"
