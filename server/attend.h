// Attend: one message in, one message out. The reaction parses and admits; the pool computes straight into the answer.
// Thread rule: made by gRPC's threads, finished by a worker of the pool.
#pragma once

#include "server/call.h"

namespace attnd::server {

CallReactor* StartAttend(Engine& engine, CallContext* context, CallHead head);

}  // namespace attnd::server
