#!/usr/bin/env bash
# The Go client (google.golang.org/grpc): tests/interop/go/run.sh ADDRESS [FOLDER]; see tests/interop/README.md.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)"
go="$root/build/go"
export GOPATH="$go" GOCACHE="$go/cache" GOFLAGS="-modcacherw -buildvcs=false"
export PATH="$go/bin:/usr/bin:$PATH" # Debian's go first
mkdir -p "$go/stubs"
printf 'module attnd\n\ngo 1.19\n' >"$go/stubs/go.mod"
(
  cd "$root/tests/interop/go"
  "$root/tests/twice.sh" go install google.golang.org/protobuf/cmd/protoc-gen-go \
    google.golang.org/grpc/cmd/protoc-gen-go-grpc
  protoc -I "$root/proto" --go_out="$go/stubs" --go_opt=module=attnd --go-grpc_out="$go/stubs" \
    --go-grpc_opt=module=attnd attnd/v1/attention.proto
  "$root/tests/twice.sh" go install .
)
exec "$go/bin/attnd-interop" "$@"
