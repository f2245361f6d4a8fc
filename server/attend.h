// Attend: one AttendRequest in, one AttendResponse out; the native door. Thread rule: answered on the thread of gRPC
// that read the message.
#pragma once

#include "server/call.h"

namespace attnd::server {

CallReactor* StartAttend(Engine& engine, CallContext* context, CallHead head);

}  // namespace attnd::server
