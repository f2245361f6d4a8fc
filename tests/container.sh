#!/usr/bin/env bash
# Builds the image for real and has its server answer the client, as its own user, within limits of a cgroup.
#
# With docker where an engine answers; else, as root, with buildah on a base made by debootstrap from this machine's own
# Debian mirror (kept in build/container). Needs build/release/bin/attn on the host side.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work="$PWD/build/container" image=localhost/attnd-test base=localhost/attnd-test-base
size_bytes_max=$((120 * 1000 * 1000))
start_ms_max=10000 # ten times what it should take
limit_bytes=$((1 << 30))
version="$(sed -n 's/^project(attnd VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)"
client="$PWD/build/release/bin/attn"
mkdir -p "$work"

say() { printf 'container: %s\n' "$*"; }
die() { printf 'container: %s\n' "$*" >&2; exit 1; }

# Ends whatever this script started, however it ends.
server_pid="" container="" docker_id="" groups=()
clean_up() {
  if [ -n "$server_pid" ]; then kill -TERM "$server_pid" 2>/dev/null || true; fi
  if [ -n "$container" ]; then buildah rm "$container" >/dev/null 2>&1 || true; fi
  for group in ${groups[@]+"${groups[@]}"}; do rmdir "$group" || true; done
  if [ -n "$docker_id" ]; then docker rm -f "$docker_id" >/dev/null 2>&1 || true; fi
}
trap clean_up EXIT

eventually() { # COMMAND...: until it succeeds; the bound is for hangs
  local tries=0
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 1200 ] || return 1
    sleep 0.1
  done
}

# The client against the image's server: the lesson's output row must come back.
lesson() { # ADDRESS
  "$client" health --server="$1"
  "$client" explain --server="$1" >"$work/lesson.txt"
  grep -q '0\.6151' "$work/lesson.txt" || die "no 0.6151 in: $(cat "$work/lesson.txt")"
  say "the lesson's numbers came back from $1"
}

# A server under a limit of one CPU and of 1 GiB: one thread, and half of the memory for problems.
obeys() { # LOG
  grep -q " threads=1 memory_bytes_max=$((limit_bytes / 2)) " "$1" || die "it does not obey its cgroup: $(cat "$1")"
  say "under a limit of one CPU and 1 GiB: $(grep -o 'threads=1 memory_bytes_max=[0-9]*' "$1")"
}

# The Debian packages inside, by the image's own list.
lists_packages() { # LIST
  local package
  for package in libc6 libdnnl3 libgrpc++; do
    grep -qE "^$package[^ ]* [0-9]" "$1" || die "$package is not in the list of packages: $(cat "$1")"
  done
  say "it lists the $(wc -l <"$1") packages inside"
}

with_docker() {
  local id size port
  docker build -t "$image" .
  size="$(docker image inspect --format '{{.Size}}' "$image")"
  [ "$size" -lt "$size_bytes_max" ] || die "the image has $size bytes, expected under $size_bytes_max"
  say "the image has $size bytes"
  id="$(docker run -d --read-only -p 127.0.0.1::50051 "$image")" docker_id="$id"
  port="$(docker port "$id" 50051/tcp | head -n 1)"
  eventually "$client" health --server="$port" || die "the server does not answer: $(docker logs "$id" 2>&1)"
  [ "$(docker inspect --format '{{.Config.User}}' "$id")" = 65532:65532 ] || die "it does not run as 65532"
  lesson "$port"
  docker exec "$id" /usr/bin/attn health --server=127.0.0.1:50051
  docker cp "$id:/usr/share/attnd/packages.txt" "$work/packages.txt"
  lists_packages "$work/packages.txt"
  [ "$(docker inspect --format '{{index .Config.Labels "org.opencontainers.image.version"}}' "$id")" = "$version" ] ||
    die "the image's label does not say version $version"
  docker stop "$id" >/dev/null
  [ "$(docker inspect --format '{{.State.ExitCode}}' "$id")" = 0 ] || die "the server did not end with 0"
  docker rm "$id" >/dev/null
  id="$(docker run -d --read-only --cpus 1 --memory "$limit_bytes" -p 127.0.0.1::50051 "$image")" docker_id="$id"
  port="$(docker port "$id" 50051/tcp | head -n 1)"
  eventually "$client" health --server="$port" || die "the server does not answer: $(docker logs "$id" 2>&1)"
  docker logs "$id" >"$work/limited.log" 2>&1
  obeys "$work/limited.log"
}

# A minimal Debian 13 as the base image, from the mirror that apt uses here.
make_base() {
  if buildah inspect --type image "$base" >/dev/null 2>&1; then return; fi
  if [ ! -s "$work/trixie.tar" ]; then
    local mirror
    mirror="$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
      awk '$2 == "trixie" { print $1; exit }')"
    [ -n "$mirror" ] || die "apt knows no Debian 13 source here; run deploy/setup.sh first"
    say "making a Debian 13 base with debootstrap"
    rm -rf "$work/rootfs"
    debootstrap --variant=minbase --include=ca-certificates trixie "$work/rootfs" "$mirror" \
      >"$work/debootstrap.log" 2>&1 ||
      { tail -n 20 "$work/debootstrap.log" >&2; die "debootstrap failed"; }
    tar -C "$work/rootfs" --numeric-owner -cf "$work/trixie.tar.part" .
    mv "$work/trixie.tar.part" "$work/trixie.tar"
    rm -rf "$work/rootfs"
  fi
  container="$(buildah from scratch)"
  buildah add --quiet "$container" "$work/trixie.tar" / >/dev/null
  buildah commit --quiet --rm "$container" "$base" >/dev/null
  container=""
}

# What the image says about itself: the one line `field` of its configuration.
image_config() { # EXPRESSION
  buildah inspect --type image "$image" |
    /usr/bin/python3 -c "import json, sys; c = json.load(sys.stdin)['Docker']['config']; print($1)"
}

# Groups of one CPU and 1 GiB, of whichever version this system has.
make_groups() {
  local name="attnd-test-$$" group
  if [ -d /sys/fs/cgroup/memory ]; then
    group="/sys/fs/cgroup/cpu/$name" && mkdir "$group" && groups+=("$group")
    echo 100000 >"$group/cpu.cfs_period_us" && echo 100000 >"$group/cpu.cfs_quota_us"
    group="/sys/fs/cgroup/memory/$name" && mkdir "$group" && groups+=("$group")
    echo "$limit_bytes" >"$group/memory.limit_in_bytes"
  else
    echo '+cpu +memory' >/sys/fs/cgroup/cgroup.subtree_control
    group="/sys/fs/cgroup/$name" && mkdir "$group" && groups+=("$group")
    echo '100000 100000' >"$group/cpu.max" && echo "$limit_bytes" >"$group/memory.max"
  fi
}

in_groups() { # COMMAND...: takes the place of the shell that calls it
  local group
  for group in "${groups[@]}"; do echo "$BASHPID" >"$group/cgroup.procs"; done
  "$@"
}

# From the start of the process until its log says that it listens.
start_ms() { # PID LOG
  /usr/bin/python3 - "$1" "$2" <<'CODE'
import datetime, os, re, sys, time
started = int(open(f"/proc/{sys.argv[1]}/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
started += time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
listens = re.search(r"^(\S+) info listening", open(sys.argv[2]).read(), re.M).group(1)
print(round((datetime.datetime.fromisoformat(listens).timestamp() - started) * 1000))
CODE
}

in_container() { buildah run --isolation chroot --network host --user "$user" "$container" -- "$@"; }

with_buildah() {
  local root size port code=0 server_job milliseconds
  [ "$(id -u)" = 0 ] || die "without a docker engine this needs root (debootstrap, buildah in a chroot)"
  make_base
  say "building the image"
  buildah bud --isolation chroot --pull-never --network host --format docker --layers --build-arg "BASE=$base" \
    -t "$image" . >"$work/build.log" 2>&1 || { tail -n 40 "$work/build.log" >&2; die "the build failed"; }
  user="$(image_config "c['User']")"
  [ "$user" = 65532:65532 ] || die "user is '$user', expected 65532:65532"
  [ "$(image_config "c['Entrypoint'][0]")" = /usr/bin/attnd ] || die "the entry point is not attnd"
  [ "$(image_config "c['Labels']['org.opencontainers.image.version']")" = "$version" ] ||
    die "the image's label does not say version $version"
  image_config "' '.join(c['Healthcheck']['Test'])" | grep -q '^CMD /usr/bin/attn health' || die "no health check"

  container="$(buildah from --pull-never "$image")"
  root="$(buildah mount "$container")"
  size="$(du -sb "$root" | cut -f 1)"
  [ "$size" -lt "$size_bytes_max" ] || die "the image has $size bytes, expected under $size_bytes_max"
  say "the image has $size bytes in $(find "$root" -type f | wc -l) files"
  lists_packages "$root/usr/share/attnd/packages.txt"
  cut -d ' ' -f 1 "$root/usr/share/attnd/packages.txt" | cmp - <(ls "$root/var/lib/dpkg/status.d") ||
    die "the two lists of packages differ"
  [ -z "$(find "$root/usr" "$root/etc/passwd" -xdev -newermt @0)" ] || die "times of the build are in the image"
  [ -z "$(find "$root" -xdev -path "$root/tmp" -prune -o ! -type l -perm /022 -print)" ] ||
    die "there are files that others may write"

  in_container /usr/bin/attnd --listen=127.0.0.1:0 --port_file=/tmp/port --admin_listen= >"$work/server.log" 2>&1 &
  server_job=$!
  eventually test -s "$root/tmp/port" || die "the server wrote no port: $(cat "$work/server.log")"
  port="$(grep -oE '[0-9]+' "$root/tmp/port" | tail -n 1)"
  server_pid="$(pgrep -u 65532 -x attnd | head -n 1)"
  [ -n "$server_pid" ] || die "no attnd runs as user 65532"
  milliseconds="$(start_ms "$server_pid" "$work/server.log")"
  say "attnd runs as process $server_pid of user 65532, $milliseconds ms after its start"
  [ "$milliseconds" -lt "$start_ms_max" ] || die "expected under $start_ms_max ms"
  lesson "127.0.0.1:$port"
  in_container /usr/bin/attn health --server="127.0.0.1:$port" || die "attn health in the image says no"

  kill -TERM "$server_pid"
  server_pid=""
  wait "$server_job" || code=$?
  [ "$code" = 0 ] || die "the server ended with $code: $(tail -n 5 "$work/server.log")"
  if in_container /usr/bin/attn health --server="127.0.0.1:$port" >/dev/null 2>&1; then
    die "attn health says yes without a server"
  fi
  rm "$root/tmp/port"
  make_groups
  (in_groups in_container /usr/bin/attnd --listen=127.0.0.1:0 --port_file=/tmp/port >"$work/limited.log" 2>&1) &
  server_job=$!
  eventually test -s "$root/tmp/port" || die "the server wrote no port: $(cat "$work/limited.log")"
  server_pid="$(pgrep -u 65532 -x attnd | head -n 1)"
  obeys "$work/limited.log"
  kill -TERM "$server_pid"
  server_pid=""
  wait "$server_job" || die "the server ended with $?: $(tail -n 5 "$work/limited.log")"
  # A read-only root is enough: nothing was written but the port file that was asked for.
  [ "$(find "$root/tmp" -type f)" = "$root/tmp/port" ] || die "the server wrote files: $(find "$root/tmp" -type f)"
}

if docker info >/dev/null 2>&1; then with_docker; else with_buildah; fi
say "passed"
