#include "proto/wire/slice_writer.h"

#include <google/protobuf/io/coded_stream.h>

#include <utility>

namespace attnd {
namespace {

constexpr std::int64_t kCopyBytesMax = 4096;  // a copy of less is cheaper than a slice of its own

void AppendVarint(std::uint64_t value, std::string& to) {
  std::uint8_t buffer[10];
  const std::uint8_t* end = google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(value, buffer);
  to.append(reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(end - buffer));
}

void Release(void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }

}  // namespace

grpc::Slice SliceOf(OwnedBytes data) {
  auto* owner = new std::shared_ptr<const void>(std::move(data.owner));
  return grpc::Slice(const_cast<std::byte*>(data.data), static_cast<std::size_t>(data.bytes), &Release, owner);
}

std::string FieldHead(int field, std::size_t bytes) {
  std::string head;
  AppendVarint(static_cast<std::uint64_t>(field << 3 | 2), head);
  AppendVarint(bytes, head);
  return head;
}

void SliceWriter::Append(OwnedBytes data) {
  if (data.bytes <= kCopyBytesMax) {
    return Append(absl::string_view(reinterpret_cast<const char*>(data.data), static_cast<std::size_t>(data.bytes)));
  }
  Flush();
  slices_.push_back(SliceOf(std::move(data)));
}

grpc::ByteBuffer SliceWriter::Finish() {
  Flush();
  if (slices_.empty()) slices_.emplace_back();
  grpc::ByteBuffer message(slices_.data(), slices_.size());
  slices_.clear();
  return message;
}

void SliceWriter::Flush() {
  if (!small_.empty()) slices_.emplace_back(small_.data(), small_.size());
  small_.clear();
}

}  // namespace attnd
