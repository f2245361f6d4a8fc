#!/usr/bin/env bash
# Runs a command that fetches packages from a registry, and once more when that failed: networks have bad moments.
#
#   tests/twice.sh COMMAND...
set -euo pipefail
if ! "$@"; then
  printf 'twice: again in 10 s: %s\n' "$*" >&2
  sleep 10
  exec "$@"
fi
