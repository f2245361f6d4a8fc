#include "server/wire/status.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

// google.rpc.RetryInfo { google.protobuf.Duration retry_delay = 1; }
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr std::size_t kMessageBytesMax = 2048;  // trailers have a limit of 8 KiB, and percent-encoding may triple it

void WriteBytesField(int field, const std::string& bytes, google::protobuf::io::CodedOutputStream& out) {
  out.WriteTag(static_cast<std::uint32_t>(field << 3 | 2));
  out.WriteVarint32(static_cast<std::uint32_t>(bytes.size()));
  out.WriteString(bytes);
}

std::string RetryInfo(absl::Duration delay) {
  google::protobuf::Duration duration;
  absl::Duration rest;
  duration.set_seconds(absl::IDivDuration(delay, absl::Seconds(1), &rest));
  duration.set_nanos(static_cast<std::int32_t>(absl::ToInt64Nanoseconds(rest)));
  std::string info;
  google::protobuf::io::StringOutputStream stream(&info);
  google::protobuf::io::CodedOutputStream out(&stream);
  WriteBytesField(1, duration.SerializeAsString(), out);
  out.Trim();
  return info;
}

// google.rpc.Status { int32 code = 1; string message = 2; repeated google.protobuf.Any details = 3; }
std::string StatusDetails(int code, const std::string& message, const std::string& retry_info) {
  google::protobuf::Any any;
  any.set_type_url(kRetryInfoUrl);
  any.set_value(retry_info);
  std::string details;
  google::protobuf::io::StringOutputStream stream(&details);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.WriteTag(1 << 3);
  out.WriteVarint32(static_cast<std::uint32_t>(code));
  WriteBytesField(2, message, out);
  WriteBytesField(3, any.SerializeAsString(), out);
  out.Trim();
  return details;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  // Both sides number the canonical codes alike.
  const int code = static_cast<int>(status.code());
  std::string message(status.message().substr(0, kMessageBytesMax));
  if (const auto retry = status.GetPayload(kRetryInfoUrl); retry.has_value()) {
    const std::string details = StatusDetails(code, message, std::string(*retry));
    return grpc::Status(static_cast<grpc::StatusCode>(code), message, details);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(code), message);
}

absl::Status WithRetryDelay(absl::Status status, absl::Duration delay) {
  absl::Status result(status.code(),
                      absl::StrCat(status.message(), "; retry after ", absl::ToInt64Milliseconds(delay), " ms"));
  result.SetPayload(kRetryInfoUrl, absl::Cord(RetryInfo(delay)));
  return result;
}

absl::Status AtField(absl::string_view field, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(field, ": ", status.message()));
}

absl::Status OutOfMemory() {
  return WithRetryDelay(absl::ResourceExhaustedError("the server ran out of memory"), absl::Seconds(1));
}

}  // namespace attnd::server
