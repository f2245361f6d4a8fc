#include "client/cli/ask.h"

namespace attnd::client {

bool WantsStream(const Problem& problem) {
  const std::int64_t in = problem.request_bytes();
  const std::int64_t out = problem.reply_bytes().value_or(0);
  return in > kUnaryBytesMax || out > kUnaryBytesMax - in;
}

absl::StatusOr<Answer> Ask(Client& client, const Problem& problem) {
  return WantsStream(problem) ? client.AttendStream(problem) : client.Attend(problem);
}

}  // namespace attnd::client
