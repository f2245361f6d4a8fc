# attnd in a container of its own: the two binaries and the libraries they need, nothing else, as user 65532.
#
#   docker build -t attnd .
#   docker run --rm --read-only -p 127.0.0.1:50051:50051 attnd
#
# The server listens on all of the container's addresses; what reaches it is decided where the port is published.
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
# The run stage's whole file system: binaries, every library that the loader would find for them, and one user.
RUN set -eu; root=/image; mkdir -p $root/usr/bin $root/etc $root/tmp; chmod 1777 $root/tmp; \
    install -s build/release/bin/attnd build/release/bin/attn $root/usr/bin/; \
    ldd build/release/bin/attnd build/release/bin/attn | grep -o '/[^ ]*' | grep -v ':$' | sort -u | \
      while read -r library; do mkdir -p "$root$(dirname "$library")"; cp -L "$library" "$root$library"; done; \
    echo 'attnd:x:65532:65532::/:/sbin/nologin' >$root/etc/passwd; \
    echo 'attnd:x:65532:' >$root/etc/group

FROM scratch
COPY --from=build /image/ /
USER 65532:65532
EXPOSE 50051
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ["/usr/bin/attn", "health", "--server=127.0.0.1:50051"]
ENTRYPOINT ["/usr/bin/attnd"]
CMD ["--listen=0.0.0.0:50051"]
