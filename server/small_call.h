// Calls whose answer is made at once: receive, parse, answer, encode.
// Thread rule: answered on the thread of gRPC that read the message.
#pragma once

#include <memory>
#include <utility>

#include "server/call.h"
#include "server/receive.h"
#include "server/wire/decode.h"
#include "server/wire/encode.h"

namespace attnd::server {

// `answer(const Request&)` gives StatusOr<Response>.
template <typename Request, typename Answerer>
class SmallCall final : public UnaryCall {
 public:
  SmallCall(Engine& engine, CallContext* context, CallHead head, Answerer answer)
      : UnaryCall(engine, context, std::move(head)), answer_(std::move(answer)) {}

 private:
  absl::Status Answer(grpc::ByteBuffer& request) override {
    Reservation held(head_.AccountIn(engine_));
    Request parsed;
    const absl::StatusOr<RawMessage> raw = Receive(engine_, request, parsed, held);
    if (!raw.ok()) return raw.status();
    if (absl::Status status = CheckKnown(parsed); !status.ok()) return status;
    const auto answered = answer_(parsed);
    if (!answered.ok()) return answered.status();
    End(EncodeMessage(*answered));
    return absl::OkStatus();
  }

  const Answerer answer_;
};

template <typename Request, typename Answerer>
CallReactor* StartSmallCall(Engine& engine, CallContext* context, CallHead head, Answerer answer) {
  return StartCall<SmallCall<Request, Answerer>>(engine, context, std::move(head), std::move(answer));
}

}  // namespace attnd::server
