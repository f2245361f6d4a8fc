#include "client/npy.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/file.h"

namespace attnd::client {

namespace {

constexpr absl::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kHeaderBytesMax = 64 * 1024;
constexpr std::size_t kRankMax = 8;

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

// What the bytes of one element are in the file, and what they become.
struct Element {
  DType dtype;
  std::int64_t file_bytes;
  bool swap;
  char kind;  // of the descr: f, i, u, b, V
};

// Reads the one dict that a header holds. Every method leaves the text after what it took.
class HeaderParser {
 public:
  explicit HeaderParser(absl::string_view text) : text_(text) {}

  absl::StatusOr<Header> Parse() {
    std::optional<std::string> descr;
    std::optional<bool> fortran_order;
    std::optional<std::vector<std::int64_t>> shape;
    if (!Take('{')) return Bad("expected '{'");
    while (!Take('}')) {
      std::string key;
      if (!TakeString(&key) || !Take(':')) return Bad("expected a quoted key and ':'");
      if (key == "descr" && !descr) {
        descr.emplace();
        if (!TakeString(&*descr)) return Bad("descr is not a string (structured dtypes are not taken)");
      } else if (key == "fortran_order" && !fortran_order) {
        const bool yes = TakeWord("True");
        if (!yes && !TakeWord("False")) return Bad("fortran_order is neither True nor False");
        fortran_order = yes;
      } else if (key == "shape" && !shape) {
        shape.emplace();
        const absl::Status status = TakeShape(&*shape);
        if (!status.ok()) return status;
      } else {
        return Bad(absl::StrCat("key '", absl::CEscape(key), "' is unknown or there twice"));
      }
      if (!Take(',') && !AtEnd('}')) return Bad("expected ',' or '}'");
    }
    if (!descr || !fortran_order || !shape) return Bad("one of descr, fortran_order and shape is missing");
    SkipSpace();
    if (!text_.empty()) return Bad("more text after the dict");
    return Header{*descr, *fortran_order, *shape};
  }

 private:
  static absl::Status Bad(absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("malformed .npy header: ", why));
  }
  void SkipSpace() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\n' || text_[0] == '\t')) text_.remove_prefix(1);
  }
  bool AtEnd(char c) {
    SkipSpace();
    return !text_.empty() && text_[0] == c;
  }
  bool Take(char c) {
    if (!AtEnd(c)) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool TakeWord(absl::string_view word) {
    SkipSpace();
    if (text_.substr(0, word.size()) != word) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  bool TakeString(std::string* value) {
    SkipSpace();
    if (text_.empty() || (text_[0] != '\'' && text_[0] != '"')) return false;
    const std::size_t end = text_.find(text_[0], 1);
    if (end == absl::string_view::npos) return false;
    *value = std::string(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return true;
  }
  absl::Status TakeShape(std::vector<std::int64_t>* shape) {
    if (!Take('(')) return Bad("shape is not a tuple");
    while (!Take(')')) {
      SkipSpace();
      const std::size_t digits = std::min(text_.find_first_not_of("0123456789"), text_.size());
      std::int64_t size = 0;
      if (digits == 0 || !absl::SimpleAtoi(text_.substr(0, digits), &size)) {
        return Bad("a size in shape is not a whole number from 0 to 2^63 - 1");
      }
      text_.remove_prefix(digits);
      shape->push_back(size);
      if (shape->size() > kRankMax) return Bad(absl::StrCat("shape has more than ", kRankMax, " dimensions"));
      if (!Take(',') && !AtEnd(')')) return Bad("expected ',' or ')' in shape");
    }
    return absl::OkStatus();
  }

  absl::string_view text_;
};

absl::StatusOr<Element> ElementOf(const std::string& descr) {
  absl::string_view type = descr;
  bool big_endian = false;
  if (!type.empty() && (type[0] == '<' || type[0] == '>' || type[0] == '|' || type[0] == '=')) {
    big_endian = type[0] == '>';
    type.remove_prefix(1);
  }
  if (type == "f4") return Element{DType::kFloat32, 4, big_endian, 'f'};
  if (type == "f2") return Element{DType::kFloat16, 2, big_endian, 'f'};
  if (type == "f8") return Element{DType::kFloat64, 8, big_endian, 'f'};
  if (type == "V2" || type == "bfloat16") return Element{DType::kBFloat16, 2, big_endian, 'V'};
  if (type == "b1") return Element{DType::kBool, 1, false, 'b'};
  if (type == "u1") return Element{DType::kBool, 1, false, 'u'};
  if (type == "i8") return Element{DType::kInt64, 8, big_endian, 'i'};
  if (type == "i4") return Element{DType::kInt64, 4, big_endian, 'i'};
  return absl::InvalidArgumentError(
      absl::StrCat("dtype '", absl::CEscape(descr), "', expected one of f4, f2, f8, V2 (bfloat16), b1, u1, i8, i4"));
}

void SwapBytes(std::string* bytes, std::int64_t element_bytes) {
  for (std::size_t i = 0; i < bytes->size(); i += static_cast<std::size_t>(element_bytes)) {
    std::reverse(bytes->begin() + static_cast<std::ptrdiff_t>(i),
                 bytes->begin() + static_cast<std::ptrdiff_t>(i) + element_bytes);
  }
}

// Fortran order (first index fastest) to row-major.
std::string Transpose(absl::string_view bytes, const std::vector<std::int64_t>& shape, std::int64_t element_bytes) {
  std::string transposed(bytes.size(), '\0');
  std::vector<std::int64_t> index(shape.size(), 0);
  std::vector<std::int64_t> stride(shape.size(), 0);  // row-major, in elements
  std::int64_t step = 1;
  for (std::size_t d = shape.size(); d-- > 0; step *= shape[d]) stride[d] = step;
  std::int64_t to = 0;
  for (std::size_t from = 0; from < bytes.size(); from += static_cast<std::size_t>(element_bytes)) {
    std::memcpy(transposed.data() + to * element_bytes, bytes.data() + from, static_cast<std::size_t>(element_bytes));
    for (std::size_t d = 0; d < shape.size(); ++d) {
      to += stride[d];
      if (++index[d] < shape[d]) break;
      to -= stride[d] * shape[d];
      index[d] = 0;
    }
  }
  return transposed;
}

// The header's text; `*data_offset` is where the data begins.
absl::StatusOr<absl::string_view> HeaderText(absl::string_view bytes, std::size_t* data_offset) {
  if (bytes.substr(0, kMagic.size()) != kMagic)
    return absl::InvalidArgumentError("is not a .npy file (no \\x93NUMPY at its start)");
  if (bytes.size() < 10) return absl::InvalidArgumentError("ends inside its .npy header");
  const int major = static_cast<unsigned char>(bytes[6]);
  if (major < 1 || major > 3 || bytes[7] != 0) {
    return absl::InvalidArgumentError(absl::StrCat("has .npy version ", major, ".",
                                                   static_cast<unsigned char>(bytes[7]), ", expected 1.0, 2.0 or 3.0"));
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  std::uint32_t header_bytes = 0;
  if (bytes.size() < 8 + length_bytes) return absl::InvalidArgumentError("ends inside its .npy header");
  std::memcpy(&header_bytes, bytes.data() + 8, length_bytes);
  if (header_bytes > kHeaderBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("has a .npy header of ", header_bytes, " bytes, at most ", kHeaderBytesMax, " are read"));
  }
  *data_offset = 8 + length_bytes + header_bytes;
  if (*data_offset > bytes.size()) return absl::InvalidArgumentError("ends inside its .npy header");
  return bytes.substr(8 + length_bytes, header_bytes);
}

// Takes the bytes.
absl::StatusOr<Array> Parse(std::string& bytes) {
  std::size_t data_offset = 0;
  const absl::StatusOr<absl::string_view> text = HeaderText(bytes, &data_offset);
  if (!text.ok()) return text.status();
  absl::StatusOr<Header> header = HeaderParser(*text).Parse();
  if (!header.ok()) return header.status();
  const absl::StatusOr<Element> element = ElementOf(header->descr);
  if (!element.ok()) return element.status();
  const absl::StatusOr<std::int64_t> count = ElementCount(header->shape);
  if (!count.ok()) return count.status();
  const std::size_t data_bytes = bytes.size() - data_offset;
  const auto element_bytes = static_cast<std::size_t>(element->file_bytes);
  // Divided, not multiplied: the count comes from the file and may be anything.
  if (data_bytes % element_bytes != 0 || data_bytes / element_bytes != static_cast<std::size_t>(*count)) {
    return absl::InvalidArgumentError(absl::StrCat("holds ", data_bytes, " bytes of data, but shape ",
                                                   ShapeText(header->shape), " of ", header->descr, " needs ", *count,
                                                   " elements of ", element_bytes));
  }
  bytes.erase(0, data_offset);
  if (element->swap) SwapBytes(&bytes, element->file_bytes);
  if (element->kind == 'u' && bytes.find_first_not_of(std::string("\0\1", 2)) != std::string::npos) {
    return absl::InvalidArgumentError("has dtype u1 with values other than 0 and 1; as a mask only 0 and 1 are taken");
  }
  if (element->dtype == DType::kInt64 && element->file_bytes == 4) bytes = WidenToInt64(bytes);
  if (header->fortran_order && header->shape.size() > 1) {
    bytes = Transpose(bytes, header->shape, ElementBytes(element->dtype));
  }
  return Array{element->dtype, std::move(header->shape), std::move(bytes)};
}

}  // namespace

absl::StatusOr<Array> ParseNpy(absl::string_view name, std::string bytes) {
  absl::StatusOr<Array> array = Parse(bytes);
  if (!array.ok()) return absl::Status(array.status().code(), absl::StrCat(name, ": ", array.status().message()));
  return array;
}

absl::StatusOr<Array> ReadNpy(const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  return ParseNpy(path, *std::move(bytes));
}

std::string NpyHeader(DType dtype, const std::vector<std::int64_t>& shape) {
  absl::string_view descr = "<f4";
  switch (dtype) {
    case DType::kFloat32: break;
    case DType::kFloat16: descr = "<f2"; break;
    case DType::kBFloat16: descr = "<V2"; break;
    case DType::kFloat64: descr = "<f8"; break;
    case DType::kBool: descr = "|b1"; break;
    case DType::kInt64: descr = "<i8"; break;
  }
  std::string dict = absl::StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (",
                                  absl::StrJoin(shape, ", "), shape.size() == 1 ? ",), }" : "), }");
  // Spaces until data begins at a multiple of 64 bytes, as NumPy aligns it.
  dict.append(63 - (10 + dict.size()) % 64, ' ');
  dict.push_back('\n');
  const auto size = static_cast<std::uint16_t>(dict.size());
  return absl::StrCat(kMagic, std::string("\1\0", 2), std::string(reinterpret_cast<const char*>(&size), 2), dict);
}

absl::Status WriteNpy(const std::string& path, const Array& array) {
  absl::StatusOr<FileWriter> file = FileWriter::Create(path);
  if (!file.ok()) return file.status();
  const std::string header = NpyHeader(array.dtype, array.shape);
  absl::Status status = file->WriteAt(0, header);
  if (status.ok()) status = file->WriteAt(static_cast<std::int64_t>(header.size()), array.bytes);
  const absl::Status closed = file->Close();
  return status.ok() ? closed : status;
}

}  // namespace attnd::client
