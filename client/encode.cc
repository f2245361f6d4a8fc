#include "client/encode.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "client/wire.h"
#include "proto/wire/slice_writer.h"

namespace attnd::client {

namespace {

// Where protobuf writes to: strings that do not fit what is left of its buffer are passed by address.
class SliceStream final : public google::protobuf::io::ZeroCopyOutputStream {
 public:
  SliceStream(SliceWriter& writer, SharedRequest owner) : writer_(writer), owner_(std::move(owner)) {}

  bool Next(void** data, int* size) override {
    Flush();
    *data = buffer_;
    *size = used_ = sizeof(buffer_);
    return true;
  }
  void BackUp(int count) override { used_ -= count; }
  std::int64_t ByteCount() const override { return flushed_ + used_; }
  bool AllowsAliasing() const override { return true; }
  bool WriteAliasedRaw(const void* data, int size) override {
    Flush();
    writer_.Append(OwnedBytes{owner_, static_cast<const std::byte*>(data), size});
    flushed_ += size;
    return true;
  }
  void Flush() {
    writer_.Append(absl::string_view(buffer_, static_cast<std::size_t>(used_)));
    flushed_ += used_;
    used_ = 0;
  }

 private:
  SliceWriter& writer_;
  const SharedRequest owner_;
  std::int64_t flushed_ = 0;
  int used_ = 0;  // of buffer_
  char buffer_[2048] = {};
};

void AppendRequest(const SharedRequest& request, SliceWriter& writer) {
  SliceStream stream(writer, request);
  {
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.EnableAliasing(true);
    request->SerializeWithCachedSizes(&coded);
  }
  stream.Flush();
}

// AttendStreamRequest: problem_id(1), then the tag and length of its part.
std::string PartHead(std::uint64_t problem_id, int field, std::size_t bytes) {
  v1::AttendStreamRequest message;
  message.set_problem_id(problem_id);
  return message.SerializeAsString() + FieldHead(field, bytes);
}

}  // namespace

grpc::ByteBuffer EncodeAttend(const SharedRequest& request) {
  SliceWriter writer;
  request->ByteSizeLong();  // which SerializeWithCachedSizes relies on
  AppendRequest(request, writer);
  return writer.Finish();
}

grpc::ByteBuffer EncodeHeader(std::uint64_t problem_id, const SharedRequest& header) {
  SliceWriter writer;
  writer.Append(PartHead(problem_id, v1::AttendStreamRequest::kHeaderFieldNumber, header->ByteSizeLong()));
  AppendRequest(header, writer);
  return writer.Finish();
}

grpc::ByteBuffer EncodePiece(std::uint64_t problem_id, const std::string& tensor, const std::string& data,
                             std::int64_t offset_bytes, std::int64_t bytes, const SharedRequest& request) {
  v1::TensorPiece piece;
  piece.set_tensor(tensor);
  piece.set_offset_bytes(offset_bytes);
  const auto data_bytes = static_cast<std::size_t>(bytes);
  const std::string head = piece.SerializeAsString() + FieldHead(v1::TensorPiece::kDataFieldNumber, data_bytes);
  SliceWriter writer;
  writer.Append(PartHead(problem_id, v1::AttendStreamRequest::kPieceFieldNumber, head.size() + data_bytes));
  writer.Append(head);
  writer.Append(OwnedBytes{request, reinterpret_cast<const std::byte*>(data.data()) + offset_bytes, bytes});
  return writer.Finish();
}

StreamParts::StreamParts(const Problem& problem, std::int64_t piece_bytes)
    : piece_bytes_(std::max<std::int64_t>(piece_bytes, 1)), request_(problem.shared_request()), header_(request_) {
  if (problem.request_bytes() <= piece_bytes_) return;
  SplitRequest split = Split(*request_);
  header_ = std::make_shared<v1::AttendRequest>(std::move(split.header));
  tensors_ = std::move(split.tensors);
}

void StreamParts::Encode(std::uint64_t problem_id,
                         absl::FunctionRef<bool(const grpc::ByteBuffer&, std::int64_t)> take) const {
  if (!take(EncodeHeader(problem_id, header_), 0)) return;
  for (const auto& [path, data] : tensors_) {
    const auto size = static_cast<std::int64_t>(data->size());
    for (std::int64_t offset = 0; offset < size; offset += piece_bytes_) {
      const std::int64_t bytes = std::min(piece_bytes_, size - offset);
      if (!take(EncodePiece(problem_id, path, *data, offset, bytes, request_), bytes)) return;
    }
  }
}

}  // namespace attnd::client
