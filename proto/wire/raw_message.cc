#include "proto/wire/raw_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attention.pb.h"
#include "attnd/v1/store.pb.h"
#include "inference/inference.pb.h"

namespace attnd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

// The three lowest bits of a tag.
constexpr std::uint32_t kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kGroup = 3, kEndGroup = 4, kFixed32 = 5;
constexpr int kVarintBytesMax = 10;
constexpr int kLengthBytesMax = 5;  // protobuf takes no longer one

// The fields of a type that are walked into: bytes, and messages that can hold bytes, however often they stand there.
struct TypeWalk {
  struct Field {
    bool is_data = false;
    const TypeWalk* message = nullptr;
  };
  std::vector<Field> fields;  // by number

  Field At(std::uint32_t number) const { return number < fields.size() ? fields[number] : Field{}; }
};

class TypeWalks {
 public:
  explicit TypeWalks(std::initializer_list<const FileDescriptor*> files) {
    for (const FileDescriptor* file : files) {
      for (int i = 0; i < file->message_type_count(); ++i) Add(*file->message_type(i));
    }
  }

  // Messages of other files (health, reflection) hold no tensors: they are copied as they are.
  const TypeWalk& Of(const Descriptor& type) const {
    static const TypeWalk nothing;
    const auto found = walks_.find(&type);
    return found == walks_.end() ? nothing : found->second;
  }

 private:
  const TypeWalk& Add(const Descriptor& type) {
    const auto [found, is_new] = walks_.try_emplace(&type);
    TypeWalk& walk = found->second;
    for (int i = 0; is_new && i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      TypeWalk::Field step;
      step.is_data = field.type() == FieldDescriptor::TYPE_BYTES;
      if (field.type() == FieldDescriptor::TYPE_MESSAGE) step.message = &Add(*field.message_type());
      if (step.message != nullptr && step.message->fields.empty()) step.message = nullptr;
      if (!step.is_data && step.message == nullptr) continue;
      const auto number = static_cast<std::size_t>(field.number());
      walk.fields.resize(std::max(walk.fields.size(), number + 1));
      walk.fields[number] = step;
    }
    return walk;
  }

  std::map<const Descriptor*, TypeWalk> walks_;  // addresses stay
};

// Walks the slices once and writes the skeleton. It finds where each field ends, as protobuf does, and judges nothing
// that the skeleton still shows to protobuf.
class Splitter {
 public:
  Splitter(const std::vector<grpc::Slice>& slices, std::int64_t skeleton_bytes_max, std::string& skeleton)
      : slices_(slices), skeleton_bytes_max_(skeleton_bytes_max), skeleton_(skeleton) {}

  // The fields up to `end`, an offset into the message. False when protobuf would refuse them.
  bool Fields(const TypeWalk& walk, std::int64_t end) {
    while (offset_ < end) {
      std::uint64_t tag = 0;
      if (!CopyVarint(end, tag)) return false;
      const TypeWalk::Field field =
          WireType(tag) == kLengthDelimited ? walk.At(static_cast<std::uint32_t>(tag) >> 3) : TypeWalk::Field{};
      bool whole = false;
      if (field.is_data) {
        whole = Data(end);
      } else if (field.message != nullptr) {
        whole = Submessage(*field.message, end);
      } else {
        whole = Value(tag, end);
      }
      if (!whole) return false;
    }
    return true;
  }

  // Of the whole skeleton, written or not.
  std::int64_t skeleton_bytes() const { return skeleton_bytes_; }

 private:
  static std::uint32_t WireType(std::uint64_t tag) { return static_cast<std::uint32_t>(tag) & 7; }

  bool Data(std::int64_t end) {
    std::int64_t bytes = 0;
    if (!ReadLength(end, bytes)) return false;
    if (bytes == 0) {
      AppendLength(0);
      return true;
    }
    const DataExtent extent{offset_, bytes};
    AppendLength(sizeof(extent));
    Append(reinterpret_cast<const char*>(&extent), sizeof(extent));
    return Skip(bytes, end);
  }

  bool Submessage(const TypeWalk& walk, std::int64_t end) {
    std::int64_t bytes = 0;
    if (!ReadLength(end, bytes)) return false;
    // The new length is known at the end: room for the longest, which protobuf reads as it reads the shortest.
    const std::int64_t length_at = skeleton_bytes_;
    Append("\x80\x80\x80\x80\x00", kLengthBytesMax);
    if (!Fields(walk, offset_ + bytes)) return false;
    if (skeleton_bytes_ > skeleton_bytes_max_) return true;  // nobody will read it
    auto length = static_cast<std::uint32_t>(skeleton_bytes_ - length_at - kLengthBytesMax);
    for (int i = 0; i < kLengthBytesMax; ++i, length >>= 7) {
      char& byte = skeleton_[static_cast<std::size_t>(length_at + i)];
      byte = static_cast<char>((byte & 0x80) | (length & 0x7f));
    }
    return true;
  }

  // A field's value as it came, after its tag.
  bool Value(std::uint64_t tag, std::int64_t end) {
    std::uint64_t value = 0;
    switch (WireType(tag)) {
      case kVarint: return CopyVarint(end, value);
      case kFixed64: return Copy(8, end);
      case kFixed32: return Copy(4, end);
      case kLengthDelimited:
        return CopyVarint(end, value) && value <= static_cast<std::uint64_t>(end - offset_) &&
               Copy(static_cast<std::int64_t>(value), end);
      case kGroup: return Group(end);
      default: return false;
    }
  }

  // To the group's end; which field's end it is, and how deep groups may lie, is protobuf's to say.
  bool Group(std::int64_t end) {
    for (std::int64_t depth = 1; depth > 0;) {
      std::uint64_t tag = 0;
      if (!CopyVarint(end, tag)) return false;
      if (WireType(tag) == kGroup) {
        ++depth;
      } else if (WireType(tag) == kEndGroup) {
        --depth;
      } else if (!Value(tag, end)) {
        return false;
      }
    }
    return true;
  }

  bool ReadLength(std::int64_t end, std::int64_t& bytes) {
    std::uint64_t value = 0;
    if (!ReadVarint(end, kLengthBytesMax, value)) return false;
    if (value > static_cast<std::uint64_t>(end - offset_)) return false;
    bytes = static_cast<std::int64_t>(value);
    return true;
  }

  bool CopyVarint(std::int64_t end, std::uint64_t& value) {
    if (!ReadVarint(end, kVarintBytesMax, value)) return false;
    Append(varint_, static_cast<std::size_t>(varint_bytes_));
    return true;
  }

  // Leaves the bytes as they came in varint_.
  bool ReadVarint(std::int64_t end, int bytes_max, std::uint64_t& value) {
    value = 0;
    for (varint_bytes_ = 0; varint_bytes_ < bytes_max && offset_ < end;) {
      while (at_ == slice_end_) NextSlice();
      const std::uint8_t byte = *at_++;
      ++offset_;
      value |= static_cast<std::uint64_t>(byte & 0x7f) << (7 * varint_bytes_);
      varint_[varint_bytes_++] = static_cast<char>(byte);
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool Copy(std::int64_t bytes, std::int64_t end) {
    return Pass(bytes, end, [this](const std::uint8_t* data, std::size_t size) {
      Append(reinterpret_cast<const char*>(data), size);
    });
  }

  bool Skip(std::int64_t bytes, std::int64_t end) {
    return Pass(bytes, end, [](const std::uint8_t*, std::size_t) {});
  }

  template <typename Visit>
  bool Pass(std::int64_t bytes, std::int64_t end, Visit visit) {
    if (bytes > end - offset_) return false;
    while (bytes > 0) {
      while (at_ == slice_end_) NextSlice();
      const std::int64_t part = std::min<std::int64_t>(bytes, slice_end_ - at_);
      visit(at_, static_cast<std::size_t>(part));
      at_ += part;
      offset_ += part;
      bytes -= part;
    }
    return true;
  }

  void NextSlice() {
    const grpc::Slice& slice = slices_[next_slice_++];
    at_ = slice.begin();
    slice_end_ = slice.end();
  }

  void AppendLength(std::uint8_t below_128) {
    const char byte = static_cast<char>(below_128);
    Append(&byte, 1);
  }

  void Append(const char* data, std::size_t size) {
    skeleton_bytes_ += static_cast<std::int64_t>(size);
    if (skeleton_bytes_ <= skeleton_bytes_max_) skeleton_.append(data, size);
  }

  const std::vector<grpc::Slice>& slices_;
  const std::int64_t skeleton_bytes_max_;
  std::string& skeleton_;
  std::int64_t skeleton_bytes_ = 0;
  std::size_t next_slice_ = 0;
  const std::uint8_t* at_ = nullptr;
  const std::uint8_t* slice_end_ = nullptr;
  std::int64_t offset_ = 0;  // of at_ in the message
  char varint_[kVarintBytesMax] = {};
  int varint_bytes_ = 0;
};

absl::Status NoMessage(const Descriptor& type) {
  return absl::InvalidArgumentError(absl::StrCat("the message is not a valid ", type.full_name()));
}

}  // namespace

DataExtent ExtentOf(const std::string& data) {
  DataExtent extent;
  if (data.size() == sizeof(extent)) std::memcpy(&extent, data.data(), sizeof(extent));
  return extent;
}

std::string FieldOf(const DataExtent& extent) {
  if (extent.bytes == 0) return std::string();
  return std::string(reinterpret_cast<const char*>(&extent), sizeof(extent));
}

absl::StatusOr<RawMessage> RawMessage::Split(grpc::ByteBuffer& buffer, const Descriptor& type,
                                             std::int64_t skeleton_bytes_max) {
  static const TypeWalks walks({v1::AttendRequest::descriptor()->file(), v1::PutTensorRequest::descriptor()->file(),
                                inference::ModelInferRequest::descriptor()->file()});
  RawMessage request;
  const auto bytes = static_cast<std::int64_t>(buffer.Length());
  if (bytes > 0 && !buffer.Dump(&request.slices_).ok()) return NoMessage(type);
  buffer.Clear();
  Splitter splitter(request.slices_, skeleton_bytes_max, request.skeleton_);
  if (!splitter.Fields(walks.Of(type), bytes)) return NoMessage(type);
  if (splitter.skeleton_bytes() > skeleton_bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("bytes of the message beside the tensors': ", splitter.skeleton_bytes(), " needed, ",
                     skeleton_bytes_max, " allowed"));
  }
  return request;
}

absl::Status RawMessage::ParseSkeleton(google::protobuf::Message& message) {
  const bool parsed = message.ParseFromString(skeleton_);
  skeleton_ = std::string();
  return parsed ? absl::OkStatus() : NoMessage(*message.GetDescriptor());
}

DataExtent RawMessage::Append(OwnedBytes data) {
  DataExtent extent{0, data.bytes};
  for (const grpc::Slice& slice : slices_) extent.offset_bytes += static_cast<std::int64_t>(slice.size());
  slices_.push_back(SliceOf(std::move(data)));
  return extent;
}

void RawMessage::Read(const DataExtent& from, std::byte* to) const {
  std::int64_t slice_start = 0;
  for (const grpc::Slice& slice : slices_) {
    const std::int64_t slice_end = slice_start + static_cast<std::int64_t>(slice.size());
    const std::int64_t first = std::max(from.offset_bytes, slice_start);
    const std::int64_t end = std::min(from.offset_bytes + from.bytes, slice_end);
    if (first < end) {
      std::memcpy(to + (first - from.offset_bytes), slice.begin() + (first - slice_start),
                  static_cast<std::size_t>(end - first));
    }
    slice_start = slice_end;
  }
}

void RawMessage::TakeOut(const std::vector<DataExtent>& extents,
                         absl::FunctionRef<void(std::size_t index, absl::string_view part)> take) {
  std::vector<std::size_t> order(extents.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return extents[a].offset_bytes < extents[b].offset_bytes; });
  auto next = order.begin();
  std::int64_t taken = 0;  // bytes of *next's extent
  std::int64_t slice_start = 0;
  for (grpc::Slice& slice : slices_) {
    const std::int64_t slice_end = slice_start + static_cast<std::int64_t>(slice.size());
    while (next != order.end() && extents[*next].offset_bytes + taken < slice_end) {
      const DataExtent& extent = extents[*next];
      const std::int64_t offset = extent.offset_bytes + taken;
      const std::int64_t bytes = std::min(extent.bytes - taken, slice_end - offset);
      const std::uint8_t* part = slice.begin() + (offset - slice_start);
      if (bytes > 0) take(*next, {reinterpret_cast<const char*>(part), static_cast<std::size_t>(bytes)});
      taken += bytes;
      if (taken == extent.bytes) {
        ++next;
        taken = 0;
      }
    }
    slice_start = slice_end;
    slice = grpc::Slice();
  }
  slices_.clear();
}

void RawMessage::CopyOut(std::vector<DataCopy> copies) {
  std::vector<DataExtent> extents;
  extents.reserve(copies.size());
  for (const DataCopy& copy : copies) extents.push_back(copy.from);
  TakeOut(extents, [&](std::size_t index, absl::string_view part) {
    std::memcpy(copies[index].to, part.data(), part.size());
    copies[index].to += part.size();
  });
}

}  // namespace attnd
