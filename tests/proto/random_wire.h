// Random bytes that a legal encoder of a message type may send: fields in any order and any number of times, parts of
// a message apart, lists packed or not, lengths and numbers longer than they need to be, unknown fields and groups.
#pragma once

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <random>
#include <string>

namespace attnd {

class RandomWire {
 public:
  explicit RandomWire(std::uint64_t seed) : random_(seed) {}

  std::uint64_t Below(std::uint64_t end) { return random_() % end; }

  std::string Message(const google::protobuf::Descriptor& type, int depth = 0) {
    std::string wire;
    for (std::uint64_t left = Below(depth == 0 ? 10 : 5); left > 0; --left) {
      if (type.field_count() == 0 || Below(25) == 0) {
        UnknownField(depth, wire);
      } else {
        Field(*type.field(static_cast<int>(Below(static_cast<std::uint64_t>(type.field_count())))), depth, wire);
      }
    }
    return wire;
  }

  // Sometimes longer than it needs to be, as protobuf allows up to `bytes_max`.
  void Varint(std::uint64_t value, int bytes_max, std::string& wire) {
    int pad = Below(8) == 0 ? static_cast<int>(Below(3)) : 0;
    for (int bytes = 1;; ++bytes) {
      const bool last = value < 0x80 && (pad == 0 || bytes >= bytes_max);
      wire.push_back(static_cast<char>((value & 0x7f) | (last ? 0 : 0x80)));
      if (last) return;
      if (value < 0x80) --pad;
      value >>= 7;
    }
  }

  void Bytes(const std::string& bytes, std::string& wire) {
    Varint(bytes.size(), 5, wire);
    wire += bytes;
  }

 private:
  using FieldDescriptor = google::protobuf::FieldDescriptor;

  std::uint64_t Number() {
    const std::uint64_t value = random_();
    return Below(2) == 0 ? value % 5 : value >> Below(64);
  }

  std::string Raw(std::uint64_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }

  void Tag(int number, std::uint32_t wire_type, std::string& wire) {
    Varint(static_cast<std::uint32_t>(number) << 3 | wire_type, 5, wire);
  }

  void Fixed(int bytes, std::string& wire) { wire += Raw(static_cast<std::uint64_t>(bytes)); }

  void Field(const FieldDescriptor& field, int depth, std::string& wire) {
    if (Below(40) == 0) return WrongWireType(field.number(), wire);
    switch (field.type()) {
      case FieldDescriptor::TYPE_MESSAGE:
        Tag(field.number(), 2, wire);
        return Bytes(Message(*field.message_type(), depth + 1), wire);
      case FieldDescriptor::TYPE_BYTES:
        Tag(field.number(), 2, wire);
        return Bytes(Raw(Below(12) == 0 ? Below(5000) : Below(3) == 0 ? 0 : Below(40)), wire);
      case FieldDescriptor::TYPE_STRING: Tag(field.number(), 2, wire); return Bytes(std::string(Below(9), 'k'), wire);
      default: break;
    }
    const int fixed = field.type() == FieldDescriptor::TYPE_DOUBLE  ? 8
                      : field.type() == FieldDescriptor::TYPE_FLOAT ? 4
                                                                    : 0;
    if (field.is_repeated() && Below(2) == 0) {
      std::string packed;
      for (std::uint64_t left = Below(6); left > 0; --left) {
        fixed != 0 ? Fixed(fixed, packed) : Varint(Number(), 10, packed);
      }
      Tag(field.number(), 2, wire);
      return Bytes(packed, wire);
    }
    Tag(field.number(), fixed == 8 ? 1 : fixed == 4 ? 5 : 0, wire);
    fixed != 0 ? Fixed(fixed, wire) : Varint(Number(), 10, wire);
  }

  void WrongWireType(int number, std::string& wire) {
    Tag(number, 1, wire);
    Fixed(8, wire);
  }

  void UnknownField(int depth, std::string& wire) {
    const int number = static_cast<int>(Below(4) == 0 ? (1u << 29) - 1 : 100 + Below(1000));
    switch (Below(5)) {
      case 0: Tag(number, 0, wire); return Varint(Number(), 10, wire);
      case 1: Tag(number, 1, wire); return Fixed(8, wire);
      case 2: Tag(number, 2, wire); return Bytes(Raw(Below(20)), wire);
      case 3: Tag(number, 5, wire); return Fixed(4, wire);
      default: break;
    }
    Tag(number, 3, wire);
    for (std::uint64_t left = depth > 8 ? 0 : Below(3); left > 0; --left) UnknownField(depth + 1, wire);
    Tag(number, 4, wire);
  }

  std::mt19937_64 random_;
};

}  // namespace attnd
