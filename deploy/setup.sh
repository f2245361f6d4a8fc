#!/usr/bin/env bash
# Installs what attnd needs to be built and tested, on Debian 13 and Debian 12, from Debian's own packages.
#
#   deploy/setup.sh [--for build|tests|all] [--yes] [--print]
#
#   --for build   compiler and libraries: enough for deploy/demo.sh (the default)
#   --for tests   the above, and what tests/run.sh needs
#   --for all     the above, and what tests/run.sh --all needs (clang, container tools, Node, Go)
#   --yes         do not ask, even at a terminal
#   --print       only say what would be installed; change nothing
#
# A second run finds everything in place, changes nothing and asks nothing.
set -euo pipefail

purpose=build ask=1 print_only=0
while (($#)); do
  case "$1" in
    --for) purpose="${2:-}"; shift ;;
    --for=*) purpose="${1#--for=}" ;;
    --yes) ask=0 ;;
    --print) print_only=1 ;;
    -h | --help) sed -n '2,/^set -/p' "$0" | sed -e '/^set -/d' -e 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "setup: unknown option '$1'; see deploy/setup.sh --help" >&2; exit 2 ;;
  esac
  shift
done

build_packages=(g++ cmake ninja-build ccache pkg-config libgrpc++-dev protobuf-compiler protobuf-compiler-grpc
  libprotobuf-dev libabsl-dev libspdlog-dev libhwy-dev libcli11-dev nlohmann-json3-dev zlib1g-dev libssl-dev libdnnl-dev
  libcivetweb-dev prometheus-cpp-dev libgtest-dev libgmock-dev python3 python3-numpy)
tests_packages=(python3-grpcio python3-protobuf python3-pytest python3-venv python3-h2 curl openssl binutils iproute2
  nftables chromium fonts-dejavu-core tmux)
all_packages=(clang clang-tidy clang-format buildah debootstrap podman python3-yaml systemd zsh fish
  nodejs golang-go)
if ! command -v npm >/dev/null; then all_packages+=(npm); fi # other makers' nodejs brings it, and refuses Debian's
# Unpacked under build/debian for tests, not installed: Debian's prometheus starts its server when it is installed, on
# the port that attnd's admin port has by default.
unpacked_packages=(prometheus)
unpacked="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build/debian"

case "$purpose" in
  build) packages=("${build_packages[@]}") unpacked_packages=() ;;
  tests) packages=("${build_packages[@]}" "${tests_packages[@]}") ;;
  all) packages=("${build_packages[@]}" "${tests_packages[@]}" "${all_packages[@]}") ;;
  *) echo "setup: --for takes build, tests or all, not '$purpose'" >&2; exit 2 ;;
esac

# ID and VERSION_ID of this system; empty where the file is missing.
ID="" VERSION_ID=""
if [ -r /etc/os-release ]; then . /etc/os-release; fi
case "$ID:$VERSION_ID" in
  debian:13) needs_newer_onednn=0; clang_runtime=libclang-rt-19-dev ;;
  debian:12) needs_newer_onednn=1; clang_runtime=libclang-rt-14-dev ;;
  *)
    echo "setup: this is '${ID:-an unknown system} ${VERSION_ID}', and only Debian 13 and Debian 12 are known here." >&2
    echo "setup: install these (Debian's names; oneDNN 3.7 or newer, with ukernels) and build with CMake:" >&2
    printf '  %s\n' "${packages[@]}" >&2
    echo "setup: or build the container: Dockerfile." >&2
    exit 1
    ;;
esac
if [ "$purpose" = all ]; then packages+=("$clang_runtime"); fi

installed() { # PACKAGE -> true when it is installed
  [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null)" = "ii " ]
}
onednn_is_new_enough() {
  local version
  version="$(dpkg-query -W -f='${Version}' libdnnl-dev 2>/dev/null)" || return 1
  dpkg --compare-versions "$version" ge 3.7
}

missing=() onednn_from_trixie=0
for package in "${packages[@]}"; do
  if [ "$package" = libdnnl-dev ] && [ "$needs_newer_onednn" = 1 ]; then
    onednn_is_new_enough || onednn_from_trixie=1
  elif ! installed "$package"; then
    missing+=("$package")
  fi
done
missing_unpacked=()
for package in ${unpacked_packages[@]+"${unpacked_packages[@]}"}; do
  if [ ! -d "$unpacked/$package" ]; then missing_unpacked+=("$package"); fi
done
if [ ${#missing[@]} = 0 ] && [ "$onednn_from_trixie" = 0 ] && [ ${#missing_unpacked[@]} = 0 ]; then
  echo "setup: everything for '$purpose' is installed; nothing to do."
  exit 0
fi

if [ ${#missing[@]} -gt 0 ]; then echo "setup: will install from Debian $VERSION_ID: ${missing[*]}"; fi
if [ ${#missing_unpacked[@]} -gt 0 ]; then
  echo "setup: will unpack under $unpacked, without installing: ${missing_unpacked[*]}"
fi
if [ "$onednn_from_trixie" = 1 ]; then
  cat <<'NOTE'
setup: Debian 12's oneDNN (2.6) has no micro-kernels, so libdnnl-dev will come from Debian 13.
       With it libc6, libstdc++6 and about 30 packages that depend on them are upgraded to Debian 13's versions.
       A Debian 13 source is added with pin priority 100: nothing else moves to Debian 13 by itself.
       If this machine must stay pure Debian 12, use the container instead (Dockerfile).
NOTE
fi
if [ "$print_only" = 1 ]; then exit 0; fi

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "setup: not root, and there is no sudo: run it as root" >&2; exit 1; }
  as_root=(sudo)
fi
if [ "$ask" = 1 ] && [ -t 0 ]; then
  read -r -p "setup: go on? [y/N] " answer
  case "$answer" in y | Y | yes) ;; *) echo "setup: nothing was changed."; exit 1 ;; esac
fi

# The Debian 13 source is this machine's own Debian source with the suite rewritten, so whatever mirror is in use stays.
add_trixie_source() {
  local list=/etc/apt/sources.list.d/attnd-trixie target
  if compgen -G "$list.*" >/dev/null; then return; fi
  if grep -qsE '^Suites:.*\bbookworm\b' /etc/apt/sources.list.d/*.sources; then
    target="$list.sources"
    awk 'BEGIN { RS = ""; ORS = "\n\n" } /(^|\n)Suites:[^\n]*[ \t]bookworm([ \t\n]|$)/ {
           gsub(/Suites:[^\n]*/, "Suites: trixie"); print }' /etc/apt/sources.list.d/*.sources
  else
    target="$list.list"
    grep -hE '^deb .* bookworm ' /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
      sed -e 's/ bookworm / trixie /'
  fi >/tmp/attnd-trixie.$$
  if [ ! -s /tmp/attnd-trixie.$$ ]; then
    echo "setup: found no Debian 12 source to derive the Debian 13 source from" >&2; exit 1
  fi
  "${as_root[@]}" install -m 644 /tmp/attnd-trixie.$$ "$target"
  rm -f /tmp/attnd-trixie.$$
  printf 'Package: *\nPin: release n=trixie\nPin-Priority: 100\n' |
    "${as_root[@]}" tee /etc/apt/preferences.d/attnd-trixie >/dev/null
}

step() { # TEXT COMMAND...: says what runs, then runs it; its output is shown only when it fails
  local text="$1" log start=$SECONDS; shift
  log="$(mktemp)"
  printf 'setup: %s ... ' "$text"
  if "$@" >"$log" 2>&1; then printf 'done in %d s\n' $((SECONDS - start)); rm -f "$log"
  else printf 'FAILED\n'; tail -n 40 "$log" >&2; rm -f "$log"; exit 1; fi
}
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -o Dpkg::Options::=--force-confold
  -o APT::Acquire::Retries=3 -o DPkg::Lock::Timeout=300)

if [ "$onednn_from_trixie" = 1 ]; then add_trixie_source; fi
step "reading package lists" "${apt[@]}" update
if [ ${#missing[@]} -gt 0 ]; then
  step "installing ${#missing[@]} packages" "${apt[@]}" install --no-install-recommends "${missing[@]}"
fi
if [ "$onednn_from_trixie" = 1 ]; then
  step "installing oneDNN from Debian 13" "${apt[@]}" install --no-install-recommends -t trixie libdnnl-dev
fi
unpack() { # PACKAGE: its files, as they would lie under /, into a folder of its own
  local work="$unpacked/$1.part"
  rm -rf "$work" && mkdir -p "$work/files"
  (cd "$work" && apt-get -q -o APT::Sandbox::User="$(id -un)" download "$1" && dpkg-deb -x ./*.deb files)
  mv "$work/files" "$unpacked/$1"
  rm -rf "$work"
}
for package in ${missing_unpacked[@]+"${missing_unpacked[@]}"}; do step "unpacking $package" unpack "$package"; done
echo "setup: done."
