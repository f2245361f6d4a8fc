// The calls of StoreService that are about tensors: messages to the store and back.
// Thread rule: answered on the thread of gRPC that read the message.
#pragma once

#include "server/call.h"

namespace attnd::server {

CallReactor* StartPutTensor(Engine& engine, CallContext* context, CallHead head);
CallReactor* StartAppendTensors(Engine& engine, CallContext* context, CallHead head);
CallReactor* StartGetTensor(Engine& engine, CallContext* context, CallHead head);
CallReactor* StartListTensors(Engine& engine, CallContext* context, CallHead head);
CallReactor* StartDeleteTensor(Engine& engine, CallContext* context, CallHead head);

}  // namespace attnd::server
