// Messages as JSON with numbers as numbers (the protobuf mapping turns int64 into strings).
// Thread rule: pure functions.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace attnd::client {

// Every field under its name in the contract, enums by name without their prefix in small letters, unset fields with
// their defaults. Bytes are left out.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

}  // namespace attnd::client
