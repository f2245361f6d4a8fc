// Messages as they come: cut into slices, split and parsed, and put together again to compare with stock protobuf.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/raw_message.h"

namespace attnd {

// What gRPC's own parser says of these bytes.
inline bool ParseStock(grpc::ByteBuffer buffer, google::protobuf::Message& message) {
  return grpc::GenericDeserialize<grpc::ProtoBufferReader, google::protobuf::Message>(&buffer, &message).ok();
}

// `next_size()` gives the size of each slice, at least 1.
template <typename NextSize>
grpc::ByteBuffer CutIntoSlices(const std::string& bytes, NextSize next_size) {
  std::vector<grpc::Slice> slices;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t size = std::min<std::size_t>(next_size(), bytes.size() - at);
    slices.emplace_back(bytes.data() + at, size);
    at += size;
  }
  if (slices.empty()) slices.emplace_back();
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// Puts the bytes that `message`'s extents name in their place.
inline void Rejoin(google::protobuf::Message& message, RawMessage& raw) {
  using google::protobuf::FieldDescriptor;
  struct Place {
    google::protobuf::Message* message;
    const FieldDescriptor* field;
    int index;  // of a repeated field
    std::string bytes;
  };
  std::vector<Place> places;
  std::vector<google::protobuf::Message*> open = {&message};
  std::vector<DataExtent> extents;
  while (!open.empty()) {
    google::protobuf::Message& at = *open.back();
    open.pop_back();
    std::vector<const FieldDescriptor*> fields;
    at.GetReflection()->ListFields(at, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->type() == FieldDescriptor::TYPE_MESSAGE && field->is_repeated()) {
        for (int i = 0; i < at.GetReflection()->FieldSize(at, field); ++i) {
          open.push_back(at.GetReflection()->MutableRepeatedMessage(&at, field, i));
        }
      } else if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
        open.push_back(at.GetReflection()->MutableMessage(&at, field));
      }
      if (field->type() != FieldDescriptor::TYPE_BYTES) continue;
      const int count = field->is_repeated() ? at.GetReflection()->FieldSize(at, field) : 1;
      for (int i = 0; i < count; ++i) {
        extents.push_back(ExtentOf(field->is_repeated() ? at.GetReflection()->GetRepeatedString(at, field, i)
                                                        : at.GetReflection()->GetString(at, field)));
        places.push_back({&at, field, i, std::string(static_cast<std::size_t>(extents.back().bytes), '\0')});
      }
    }
  }
  std::vector<DataCopy> copies;
  for (std::size_t i = 0; i < places.size(); ++i) {
    copies.push_back({extents[i], reinterpret_cast<std::byte*>(places[i].bytes.data())});
  }
  raw.CopyOut(std::move(copies));
  for (Place& place : places) {
    const google::protobuf::Reflection& reflection = *place.message->GetReflection();
    if (place.field->is_repeated()) {
      reflection.SetRepeatedString(place.message, place.field, place.index, std::move(place.bytes));
    } else {
      reflection.SetString(place.message, place.field, std::move(place.bytes));
    }
  }
}

}  // namespace attnd
