// AttendStream: many problems over one stream, both ways.
//
//   peer -> header(id) [piece(id)]* | cancel(id)        server -> block(id)* closing(id)
//
// Reading, computing and writing go on at the same time. Whatever is wrong with a problem ends that problem by its
// closing; only bytes that are no message, a peer that does not read, and a drain end the stream. Thread rule:
// reactions on gRPC's threads, rows from workers, ticks from the stall watch; one mutex inside.
#pragma once

#include "server/call.h"

namespace attnd::server {

CallReactor* StartAttendStream(Engine& engine, CallContext* context, CallHead head);

}  // namespace attnd::server
