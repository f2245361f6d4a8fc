#!/bin/sh
# Makes the seeds of corpus/decode from the text messages in seeds/: ./make_corpus.sh (needs protoc). stream_*.txtpb are
# AttendStreamRequests, the others AttendRequests.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$here/corpus/decode"
for seed in "$here"/seeds/*.txtpb; do
  name=$(basename "$seed" .txtpb)
  case $name in stream_*) message=AttendStreamRequest ;; *) message=AttendRequest ;; esac
  protoc -I"$here/../../proto" --encode="attnd.v1.$message" attnd/v1/attention.proto \
    <"$seed" >"$here/corpus/decode/$name"
done
