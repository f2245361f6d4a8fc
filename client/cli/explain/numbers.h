// Numbers as JSON takes them: short, and without what JSON cannot say.
// Thread rule: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

namespace attnd::client {

// The shortest decimal that is the same float32, where the number is one: 0.1f is 0.1 and not 0.10000000149011612.
// "NaN", "Infinity" and "-Infinity" are strings.
nlohmann::ordered_json JsonNumber(double value);
nlohmann::ordered_json JsonNumbers(const std::vector<double>& values);
// Rounded to six significant digits.
nlohmann::ordered_json JsonRounded(double value);

}  // namespace attnd::client
