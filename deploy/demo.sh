#!/usr/bin/env bash
# Sets up, builds, starts a server on loopback, has the client do real work against it, and stops the server again.
#
#   deploy/demo.sh [--yes]
#
#   --yes   do not ask before installing packages, even at a terminal
#
# Everything it makes lies under build/: binaries in build/release/bin, the demo's files in build/demo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

setup=(deploy/setup.sh --for build)
for option in "$@"; do
  case "$option" in
    --yes) setup+=(--yes) ;;
    -h | --help) sed -n '2,/^set -/p' "$0" | sed -e '/^set -/d' -e 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "demo: unknown option '$option'; see deploy/demo.sh --help" >&2; exit 2 ;;
  esac
done
bin="$PWD/build/release/bin" files="$PWD/build/demo" cases="$PWD/tests/conformance"
python=/usr/bin/python3 # Debian's own: it has numpy from Debian's package

title() { printf '\n== %s\n' "$*"; }

title "1. What is needed"
"${setup[@]}"

title "2. Build (the first time takes some minutes)"
mkdir -p "$files"
if ! { cmake --preset release && cmake --build --preset release --target attnd attn; } >build/demo-build.log 2>&1; then
  tail -n 40 build/demo-build.log >&2
  echo "demo: the build failed; all of its output is in build/demo-build.log" >&2
  exit 1
fi
echo "built: build/release/bin/attnd (server) and build/release/bin/attn (client)"

title "3. A server on loopback"
rm -f "$files/port"
"$bin/attnd" --listen=127.0.0.1:0 --port_file="$files/port" --admin_listen= >"$files/server.log" 2>&1 &
server_pid=$!
stop_server() { # by its own pid, and only once
  if [ -n "$server_pid" ]; then
    kill -TERM "$server_pid" 2>/dev/null || true
    wait "$server_pid" 2>/dev/null || true
    server_pid=""
  fi
}
trap stop_server EXIT
for _ in $(seq 600); do
  if [ -s "$files/port" ]; then break; fi
  if ! kill -0 "$server_pid" 2>/dev/null; then break; fi
  sleep 0.1
done
if [ ! -s "$files/port" ]; then
  cat "$files/server.log" >&2
  echo "demo: the server did not start" >&2
  exit 1
fi
address="127.0.0.1:$(grep -oE '[0-9]+' "$files/port" | tail -n 1)"
echo "attnd is process $server_pid and listens on $address"
"$bin/attn" info --server="$address"

title "4. Three tokens, step by step: what \"it\" means in \"server request it\""
"$bin/attn" explain --server="$address" --labels "server,request,it"

title "5. Five tokens from X and projection weights (seed 0), in float32"
"$bin/attn" run --server="$address" --npz "$cases/lesson_five_tokens.npz" --wire_dtype float32 \
  --output "$files/five_o.npy" --weights "$files/five_w.npy"
"$python" - "$cases/lesson_five_tokens.npz" "$files" <<'PYTHON'
import sys

import numpy as np

given, files = np.load(sys.argv[1]), sys.argv[2]
np.set_printoptions(precision=4, suppress=True)
for name, path, right in (("weights", "five_w.npy", given["W"]), ("output", "five_o.npy", given["O"])):
    got = np.load(f"{files}/{path}").reshape(right.shape).astype(np.float64)
    error = np.abs(got - right).max()
    print(f"{name} {got.shape}: largest difference to the right values {error:.2g}")
    if name == "weights":
        print(got)
    if not error < 2e-6:
        sys.exit(f"demo: the {name} of the five tokens are wrong")
PYTHON

title "6. A (1, 8, 2048, 64) problem from .npy files, sampled rows checked against the server's float64 mode"
"$python" - "$files" <<'PYTHON'
import sys

import numpy as np

rng = np.random.default_rng(0)
for name in "qkv":
    np.save(f"{sys.argv[1]}/{name}.npy", rng.standard_normal((1, 8, 2048, 64), dtype=np.float32))
PYTHON
echo "without weights:"
"$bin/attn" run --server="$address" --q "$files/q.npy" --k "$files/k.npy" --v "$files/v.npy" --output "$files/o.npy"
echo
echo "with weights, 8 x 2048 x 2048 of them, and 64 rows recomputed in float64:"
"$bin/attn" run --server="$address" --q "$files/q.npy" --k "$files/k.npy" --v "$files/v.npy" \
  --output "$files/o_with_weights.npy" --weights "$files/w.npy" --check_rows 64 --report
cmp "$files/o.npy" "$files/o_with_weights.npy"
echo "the output is the same, byte for byte, with and without weights"

title "7. Stop"
stop_server
echo "the server has ended; nothing is left running"
cat <<NOTE

The files are in build/demo. To start the server for good:

    build/release/bin/attnd --listen=127.0.0.1:50051

and to ask it:

    build/release/bin/attn explain --server=127.0.0.1:50051
    build/release/bin/attn --help

All flags with their defaults are in README.md.
NOTE
