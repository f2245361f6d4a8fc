// Nothing that a peer says can look like a line of the log.
#include "server/log.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace attnd::server {
namespace {

TEST(LogTest, TextStaysOnOneLineOfPrintableAscii) {
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every.push_back(static_cast<char>(byte));
  for (const char c : EscapeText(every)) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
  EXPECT_EQ(EscapeText("a\n2026-01-01 info forged\x1b[31m"), "a\\n2026-01-01 info forged\\033[31m");
  const std::string line = FormatLine(LogFormat::kText, "Attend", {{"peer", absl::string_view("x\" status=\"OK")}});
  EXPECT_EQ(line, "Attend peer=\"x\\\" status=\\\"OK\"");
}

TEST(LogTest, JsonReadsBackWhateverCame) {
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every.push_back(static_cast<char>(byte));
  const std::string line =
      "{" +
      FormatLine(LogFormat::kJson, every,
                 {{"text", every}, {"count", std::int64_t{-7}}, {"ms", absl::Microseconds(1500)}}) +
      "}";
  for (const char c : line) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
  const nlohmann::json json = nlohmann::json::parse(line);
  EXPECT_EQ(json["count"], -7);
  EXPECT_EQ(json["ms"], 1.5);
  // Each byte comes back as the code point of the same number.
  const std::string text = json["text"];
  std::string meant;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte < 0x80) {
      meant.push_back(static_cast<char>(byte));
    } else {
      meant.push_back(static_cast<char>(0xc0 | byte >> 6));
      meant.push_back(static_cast<char>(0x80 | (byte & 0x3f)));
    }
  }
  EXPECT_EQ(text, meant);
}

TEST(LogTest, TheLevelChangesToWhatItIsCalledAndToNothingElse) {
  const std::string before(GetLogLevel());
  for (const absl::string_view level : kLogLevels) {
    EXPECT_TRUE(SetLogLevel(level));
    EXPECT_EQ(GetLogLevel(), level);
  }
  for (const absl::string_view level : {"", "INFO", "warn", "critical", "info "})
    EXPECT_FALSE(SetLogLevel(level)) << level;
  EXPECT_EQ(GetLogLevel(), "off");
  SetLogLevel(before);
}

TEST(LogTest, ALongValueIsCut) { EXPECT_EQ(EscapeText(std::string(1 << 20, 'x')).size(), 1024u); }

}  // namespace
}  // namespace attnd::server
