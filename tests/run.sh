#!/usr/bin/env bash
# Sets up, builds and tests attnd.
#
#   tests/run.sh [--all] [--yes]
#
#   (nothing)  unit, conformance, integration, adversarial and interop tests and pages in a browser, of the release
#              build (up to 20 minutes on 2 cores)
#   --all      the above, and style, deploy, static checks, sanitizers, fuzzers and the container (about an hour)
#   --yes      do not ask before installing packages, even at a terminal
#
# Stops at the first step that fails. Builds live in build/<preset>; a second run rebuilds only what changed.
# JOBS=N changes how many compilers run at once (default: the number of CPUs).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

all=0 setup=(deploy/setup.sh --for tests)
for option in "$@"; do
  case "$option" in
    --all) all=1 setup[2]=all ;;
    --yes) setup+=(--yes) ;;
    -h | --help) sed -n '2,/^set -/p' "$0" | sed -e '/^set -/d' -e 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "run: unknown option '$option'; see tests/run.sh --help" >&2; exit 2 ;;
  esac
done
jobs="${JOBS:-$(nproc)}"
python=/usr/bin/python3 # Debian's own: it sees Debian's numpy, grpcio and pytest
started=$SECONDS
export PYTHONDONTWRITEBYTECODE=1

step() { # TEXT COMMAND...
  local text="$1" start=$SECONDS code=0
  shift
  printf '\n=== %s\n' "$text"
  "$@" || code=$?
  if [ "$code" != 0 ]; then
    printf '=== FAILED after %d s, exit code %d: %s\n' $((SECONDS - start)) "$code" "$text" >&2
    exit 1
  fi
  printf '=== ok, %d s: %s\n' $((SECONDS - start)) "$text"
}

build() { # PRESET [TARGET...]: output only when it fails
  local preset="$1" log="build/$1.log"
  shift
  mkdir -p build
  if ! { cmake --preset "$preset" && cmake --build --preset "$preset" -j "$jobs" ${*:+--target "$@"}; } \
    >"$log" 2>&1; then
    grep -nE 'error|FAILED|undefined reference' "$log" | head -n 40 >&2 || true
    tail -n 40 "$log" >&2
    return 1
  fi
  tail -n 1 "$log"
}

units() { # PRESET
  ctest --test-dir "build/$1/tests" --output-on-failure --no-tests=error -j "$jobs"
}

pytests() { # BIN_FOLDER TEST...
  ATTND_BIN="$PWD/$1" "$python" -m pytest -c tests/pytest.ini "${@:2}"
}

fuzzer() { # NAME: replays its corpus, then looks further for a bounded time; a finding is kept under build/fuzz
  local name="$1" fuzzer="build/fuzz/bin/$1_fuzz"
  mkdir -p "build/fuzz/new/$name"
  if ! { "$fuzzer" -runs=0 "tests/fuzz/corpus/$name" &&
    "$fuzzer" -max_total_time=20 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
      -artifact_prefix="build/fuzz/$name-" "build/fuzz/new/$name" "tests/fuzz/corpus/$name"; } >"$fuzzer.log" 2>&1; then
    tail -n 60 "$fuzzer.log" >&2
    return 1
  fi
  printf '%s: %s runs, no finding\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$fuzzer.log")"
}

fuzzers() { # one on each CPU at a time
  export -f fuzzer
  basename -as .cc tests/fuzz/*_fuzz.cc | sed 's/_fuzz$//' | xargs -P "$jobs" -I{} bash -c 'fuzzer {}'
}

# Debian's abseil and protobuf are not instrumented: containers that cross into them look overflown when they are not.
# A small quarantine keeps the tests that look at resident memory meaningful.
export ASAN_OPTIONS=detect_container_overflow=0:quarantine_size_mb=8 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1

step "set-up" "${setup[@]}"

if [ "$all" = 1 ]; then
  step "style: layout, includes, headers, words" "$python" -m pytest -c tests/pytest.ini tests/style
  step "style: clang-format, buf lint and buf breaking" tests/style/format_and_lint.sh
fi

step "build: release" build release
step "unit tests: release" units release
step "conformance tests" pytests build/release/bin tests/conformance
step "integration tests" pytests build/release/bin tests/integration
step "adversarial tests" pytests build/release/bin tests/adversarial
step "interop tests: Python" pytests build/release/bin tests/interop -k 'python or two_doors'
step "pages in a browser" pytests build/release/bin tests/pages
step "tests of the Python package" pytests build/release/bin tests/python

if [ "$all" = 1 ]; then
  step "tools of other makers" tests/venv.sh
  step "the Python package's wheel" pytests build/release/bin tests/wheel
  step "interop tests: Node, Go, grpcurl, stock clients" pytests build/release/bin tests/interop \
    -k 'not python and not two_doors'
  step "files of other packages" pytests build/release/bin tests/formats
  step "deploy tests: Envoy, Kubernetes, systemd, cgroups, the manual" pytests build/release/bin tests/deploy
  step "soak: the rule it is judged by" pytests build/release/bin tests/bench
  step "soak: 2 minutes of mixed load" "$python" tests/bench/soak.py --seconds 120
  step "same bytes from two folders" deploy/reproducible.sh attnd_wire
  step "static checks: clang-tidy" tests/style/tidy.sh
  step "build: tsan (core only)" build tsan
  step "unit tests: tsan" units tsan
  step "build: asan" build asan
  step "unit tests: asan" units asan
  # Shadow memory has no bounds; and without descriptors UBSan takes objects for none, since it looks at their memory
  # through a pipe.
  step "conformance and integration tests: asan" pytests build/asan/bin tests/conformance tests/integration \
    tests/interop/kserve/test_two_doors.py \
    --ignore-glob='*/test_large_context.py' --ignore-glob='*/test_memory_returns.py' \
    --ignore-glob='*/test_confined_memory.py' --ignore-glob='*/test_hardening.py' \
    --deselect=integration/test_memory_limit.py::test_everything_at_once \
    --deselect=integration/test_connections.py::test_out_of_descriptors_is_not_the_end
  step "adversarial tests: asan" pytests build/asan/bin tests/adversarial \
    --deselect=adversarial/test_connection_floods.py::test_more_than_there_are_descriptors
  # Only the fuzzers, and what they link.
  step "build: fuzz" build fuzz $(basename -as .cc tests/fuzz/*_fuzz.cc)
  step "fuzzers: corpora, then 20 s each" fuzzers
  step "container" tests/container.sh
fi

printf '\n=== all passed in %d s\n' $((SECONDS - started))
