#include "server/receive.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

// Small fields are lists of a value a sequence or a head: far above what any problem within the limits needs.
std::int64_t SkeletonBytesMax(const ServerConfig& config) {
  return std::max<std::int64_t>(config.message_bytes_max / 8, 1 << 20);
}

// A value of a list takes one byte on the wire and eight in a message, whose list doubles as it grows and is copied
// once, to the problem's inputs.
constexpr std::int64_t kParsedBytesPerByte = 24;

}  // namespace

absl::StatusOr<RawMessage> Receive(const Engine& engine, grpc::ByteBuffer& buffer, google::protobuf::Message& message,
                                   Reservation& held) {
  absl::StatusOr<RawMessage> raw = RawMessage::Split(buffer, *message.GetDescriptor(), SkeletonBytesMax(engine.config));
  if (absl::IsResourceExhausted(raw.status())) {
    return absl::ResourceExhaustedError(absl::StrCat(raw.status().message(), " (an eighth of message_bytes_max)"));
  }
  if (!raw.ok()) return raw.status();
  if (absl::Status status = ReserveParsed(raw->skeleton_bytes(), held); !status.ok()) return status;
  if (absl::Status status = raw->ParseSkeleton(message); !status.ok()) return status;
  return raw;
}

absl::Status ReserveParsed(std::int64_t bytes, Reservation& held) {
  if (bytes <= kFreeMessageBytes) return absl::OkStatus();
  return held.GrowTo("bytes of the parsed message", held.bytes() + kParsedBytesPerByte * bytes);
}

}  // namespace attnd::server
