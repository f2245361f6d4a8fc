#!/usr/bin/env bash
# grpcurl, by reflection: tests/interop/grpcurl/run.sh ADDRESS [FOLDER]; see tests/interop/README.md.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)"
go="$root/build/go"
export GOPATH="$go" GOCACHE="$go/cache" GOFLAGS="-modcacherw -buildvcs=false"
export PATH="$go/bin:/usr/bin:$PATH" # Debian's go first
"$root/tests/twice.sh" go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.1
exec /usr/bin/python3 "$root/tests/interop/grpcurl/client.py" "$@"
