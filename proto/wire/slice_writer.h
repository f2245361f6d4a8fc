// A message under construction whose tensor bytes are not copied: small bytes gather, large ones become slices that
// keep their memory alive until gRPC has sent them.
// Thread rule: one owner; no locks. What a slice keeps alive may be given back on any thread.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace attnd {

// Bytes with whatever keeps them alive.
struct OwnedBytes {
  std::shared_ptr<const void> owner;
  const std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

// A slice over the bytes, which keeps them alive.
grpc::Slice SliceOf(OwnedBytes data);

// The tag and length of a length-delimited field.
std::string FieldHead(int field, std::size_t bytes);

class SliceWriter {
 public:
  void Append(absl::string_view bytes) { small_.append(bytes.data(), bytes.size()); }
  void Append(OwnedBytes data);

  // What was appended, in that order. Nothing is left here.
  grpc::ByteBuffer Finish();

 private:
  void Flush();

  std::string small_;
  std::vector<grpc::Slice> slices_;
};

}  // namespace attnd
