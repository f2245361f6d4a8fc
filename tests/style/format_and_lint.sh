#!/usr/bin/env bash
# clang-format on every C++ file and buf lint on the contract, each of one fixed version from PyPI in build/venv: what
# is called well formatted must not change with the system.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
clang_format_version=14.0.6 buf_version=1.75.0

wanted="clang-format==$clang_format_version buf-bin==$buf_version"
if [ "$(cat build/venv/attnd-installed 2>/dev/null)" != "$wanted" ]; then
  rm -rf build/venv
  /usr/bin/python3 -m venv build/venv
  # shellcheck disable=SC2086  # two words on purpose
  build/venv/bin/pip install --quiet --disable-pip-version-check $wanted
  echo "$wanted" >build/venv/attnd-installed
fi

mapfile -t files < <({ git ls-files --cached --others --exclude-standard '*.cc' '*.h' 2>/dev/null ||
  find . -path ./build -prune -o \( -name '*.cc' -o -name '*.h' \) -print; } | sort)
build/venv/bin/clang-format --dry-run --Werror "${files[@]}"
echo "clang-format $clang_format_version: ${#files[@]} files are as it would write them"
build/venv/bin/buf lint proto
echo "buf lint $buf_version: proto is clean"
