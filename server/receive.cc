#include "server/receive.h"

#include <algorithm>
#include <utility>

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

absl::StatusOr<Received> Receive(Engine& engine, grpc::ByteBuffer& buffer, google::protobuf::Message& message,
                                 Reservation held) {
  absl::StatusOr<RawRequest> raw = RawRequest::Split(buffer, *message.GetDescriptor(), SkeletonBytesMax(engine.config));
  if (!raw.ok()) return raw.status();
  if (const std::int64_t bytes = raw->skeleton_bytes(); bytes > kFreeMessageBytes) {
    absl::StatusOr<Reservation> more =
        engine.admission.ReserveBytes("bytes of the parsed message", kParsedBytesPerByte * bytes, std::move(held));
    if (!more.ok()) return more.status();
    held = *std::move(more);
  }
  if (absl::Status status = raw->ParseSkeleton(message); !status.ok()) return status;
  return Received{*std::move(raw), std::move(held)};
}

}  // namespace attnd::server
