#include "server/attend.h"

#include <memory>
#include <utility>

#include "server/receive.h"
#include "server/whole_problem.h"

namespace attnd::server {
namespace {

class NativeDoor final : public Door {
 public:
  absl::StatusOr<Asked> Read(const Engine& engine, grpc::ByteBuffer& message, Reservation& held,
                             RequestRecord&) override {
    auto request = std::make_unique<v1::AttendRequest>();
    absl::StatusOr<RawMessage> raw = Receive(engine, message, *request, held);
    if (!raw.ok()) return raw.status();
    return Asked{*std::move(raw), std::move(request)};
  }

  grpc::ByteBuffer Write(const Problem& problem, const std::vector<NamedOutput>& outputs,
                         const v1::Statistics& statistics) const override {
    return EncodeAttendResponse(problem, outputs, statistics);
  }
};

}  // namespace

CallReactor* StartAttend(Engine& engine, CallContext* context, CallHead head) {
  return StartProblemCall(engine, context, std::move(head), std::make_unique<NativeDoor>());
}

}  // namespace attnd::server
