// Attend: one AttendRequest in, one AttendResponse out; the native door. Thread rule: that of call.h.
#pragma once

#include "server/call.h"

namespace attnd::server {

CallReactor* StartAttend(Engine& engine, CallContext* context, CallHead head);

}  // namespace attnd::server
