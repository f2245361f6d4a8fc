# attnd in a container of its own: the two binaries and the libraries they need, nothing else, as user 65532.
#
#   docker build -t attnd .
#   docker run --rm --read-only -p 127.0.0.1:50051:50051 attnd
#
# The server listens on all of the container's addresses, without TLS until the command says otherwise; what reaches it,
# and its admin port, is decided where ports are published.
ARG BASE=debian:trixie

FROM ${BASE} AS build
# What changes seldom comes first, so that its layer is kept.
COPY deploy/setup.sh /src/deploy/setup.sh
RUN /src/deploy/setup.sh --for build --yes && apt-get clean && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt CMakePresets.json /src/
COPY proto /src/proto
COPY core /src/core
COPY server /src/server
COPY client /src/client
WORKDIR /src
RUN cmake --preset release -DATTND_TESTS=OFF -DATTND_BENCH=OFF && cmake --build --preset release --target attnd attn
# The run stage's whole file system: binaries, every library that the loader would find for them, one user, and the
# Debian packages that these libraries are of, where scanners look for them and in one list. No time of the build is in
# it: the same sources and packages give the same bytes.
ARG SOURCE_DATE_EPOCH=0
RUN set -eu; root=/image; list=$root/usr/share/attnd/packages.txt; known=$root/var/lib/dpkg/status.d; \
    mkdir -p $root/usr/bin $root/etc $root/tmp $root/usr/share/attnd $known; \
    install -s build/release/bin/attnd build/release/bin/attn $root/usr/bin/; \
    ldd build/release/bin/attnd build/release/bin/attn | grep -o '/[^ ]*' | grep -v ':$' | sort -u >/libraries; \
    while read -r library; do \
      mkdir -p "$root$(dirname "$library")"; cp -L "$library" "$root$library"; \
      file="$(realpath "$library")"; { dpkg -S "$file" || dpkg -S "${file#/usr}"; } 2>/dev/null | cut -d : -f 1; \
    done </libraries | sort -u >/packages; \
    while read -r package; do \
      dpkg-query -W -f '${Package} ${Version}\n' "$package" >>$list; \
      dpkg-query -s "$package" >"$known/$package"; \
    done </packages; \
    cp -L /etc/os-release $root/etc/os-release; \
    echo 'attnd:x:65532:65532::/:/sbin/nologin' >$root/etc/passwd; \
    echo 'attnd:x:65532:' >$root/etc/group; \
    chmod 1777 $root/tmp; \
    find $root -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

FROM scratch
LABEL org.opencontainers.image.title="attnd" \
      org.opencontainers.image.description="Exact scaled dot-product attention as a gRPC service" \
      org.opencontainers.image.version="0.1.0"
COPY --from=build /image/ /
USER 65532:65532
EXPOSE 50051 9090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ["/usr/bin/attn", "health", "--server=127.0.0.1:50051"]
ENTRYPOINT ["/usr/bin/attnd"]
CMD ["--listen=0.0.0.0:50051", "--insecure", "--admin_listen=0.0.0.0:9090"]
