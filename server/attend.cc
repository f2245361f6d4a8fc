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
                             RequestRecord& record) override {
    v1::AttendRequest request;
    absl::StatusOr<RawMessage> raw = Receive(engine, message, request, held);
    if (!raw.ok()) return raw.status();
    absl::StatusOr<DecodedProblem> decoded = Decode(engine, record.identity, request, DataRule::kWhole);
    if (!decoded.ok()) return decoded.status();
    return Asked{*std::move(raw), *std::move(decoded)};
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
