#include "client/cli/explain/numbers.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>

namespace attnd::client {

namespace {

// The number that the text of to_chars stands for.
template <typename... Format>
double AsPrinted(Format... format) {
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text) - 1, format...);
  *end.ptr = '\0';
  return std::strtod(text, nullptr);
}

}  // namespace

nlohmann::ordered_json JsonNumber(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  const auto narrow = static_cast<float>(value);
  return static_cast<double>(narrow) == value ? AsPrinted(narrow) : value;
}

nlohmann::ordered_json JsonNumbers(const std::vector<double>& values) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const double value : values) list.push_back(JsonNumber(value));
  return list;
}

nlohmann::ordered_json JsonRounded(double value) {
  if (!std::isfinite(value)) return JsonNumber(value);
  return AsPrinted(value, std::chars_format::scientific, 5);
}

}  // namespace attnd::client
