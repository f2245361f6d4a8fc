#!/usr/bin/env bash
# clang-format on every C++ file, buf lint and buf breaking on the contract, by build/venv (tests/venv.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tests/venv.sh

mapfile -t files < <({ git ls-files --cached --others --exclude-standard '*.cc' '*.h' 2>/dev/null ||
  find . -path ./build -prune -o \( -name '*.cc' -o -name '*.h' \) -print; } | sort)
build/venv/bin/clang-format --dry-run --Werror "${files[@]}"
echo "$(build/venv/bin/clang-format --version): ${#files[@]} files are as it would write them"
build/venv/bin/buf lint proto
echo "buf lint $(build/venv/bin/buf --version 2>&1): proto is clean"
tests/style/breaking.sh
