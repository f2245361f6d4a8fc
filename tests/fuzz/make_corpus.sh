#!/bin/sh
# Makes the seeds of the corpora from the text messages in seeds/ and NumPy's files of the client's tests:
# ./make_corpus.sh (needs protoc). In seeds/, stream_*.txtpb are AttendStreamRequests, the others AttendRequests; in
# seeds/options/ Options, each named by the digit that chooses the problem's shape; in seeds/reply/ likewise responses,
# in seeds/infer/ ModelInferRequests.
# The seeds of corpus/flags and corpus/auth are texts and lie there; those of corpus/safetensors are written by
# ../client/data/make_safetensors.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
encode() { # MESSAGE SEED: to stdout
  protoc -I"$here/../../proto" --encode="attnd.v1.$1" attnd/v1/attention.proto <"$2"
}
mkdir -p "$here/corpus/decode" "$here/corpus/options" "$here/corpus/reply" "$here/corpus/npy" "$here/corpus/infer"
for seed in "$here"/seeds/*.txtpb; do
  name=$(basename "$seed" .txtpb)
  case $name in stream_*) message=AttendStreamRequest ;; *) message=AttendRequest ;; esac
  encode $message "$seed" >"$here/corpus/decode/$name"
done
for seed in "$here"/seeds/options/*.txtpb; do
  name=$(basename "$seed" .txtpb)
  { printf "\\00${name%%_*}" && encode Options "$seed"; } >"$here/corpus/options/$name"
done
for seed in "$here"/seeds/reply/*.txtpb; do
  name=$(basename "$seed" .txtpb)
  case $name in stream_*) message=AttendStreamResponse ;; *) message=AttendResponse ;; esac
  encode $message "$seed" >"$here/corpus/reply/$name"
done
for seed in "$here"/seeds/infer/*.txtpb; do
  protoc -I"$here/../../proto" --encode=inference.ModelInferRequest inference/inference.proto <"$seed" \
    >"$here/corpus/infer/$(basename "$seed" .txtpb)"
done
cp "$here"/../client/data/*.np[yz] "$here/corpus/npy/"
