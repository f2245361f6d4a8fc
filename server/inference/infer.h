// ModelInfer and ModelStreamInfer: the Open Inference Protocol's door to the way that Attend goes.
//
// A stream's requests are computed at the same time, at most problems_in_flight_max of them (what comes beyond waits
// unread), and answered in the order in which they came. Whatever is wrong with one of them is said in its answer and
// ends nothing else. Thread rule: that of call.h and message_stream.h.
#pragma once

#include "server/call.h"

namespace attnd::server {

CallReactor* StartModelInfer(Engine& engine, CallContext* context, CallHead head);

CallReactor* StartModelStreamInfer(Engine& engine, CallContext* context, CallHead head);

}  // namespace attnd::server
