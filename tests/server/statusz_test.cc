// The page shows what runs and how the server is set, and nothing on it can be more than text.
#include "server/statusz.h"

#include <gtest/gtest.h>

#include <string>

namespace attnd::server {
namespace {

constexpr char kHostile[] = "<script>alert('x')</script>\" onload=\"y\n\x1b[31m&\xff";

std::size_t CountOf(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(StatuszTest, EscapedTextIsTextWhereverItStands) {
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every.push_back(static_cast<char>(byte));
  const std::string escaped = EscapeHtml(every);
  for (const char c : escaped) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
  EXPECT_EQ(escaped.find_first_of("<>\"'"), std::string::npos);
  EXPECT_EQ(EscapeHtml("a<b & \"c\""), "a&lt;b &amp; \\&quot;c\\&quot;");
}

TEST(StatuszTest, WhatRunsAndWhatWasSlow) {
  ServerConfig config;
  config.threads = 1;
  config.memory_bytes_max = 256 << 20;
  config.drain_ms = 4321;
  Engine engine(Resolve(config));
  const std::string idle = StatusPage(engine, absl::Now());
  EXPECT_EQ(CountOf(idle, "<p>none</p>"), 4u);
  EXPECT_NE(idle.find("<td>drain_ms</td><td class=\"n\">4321</td><td class=\"n\">10000</td>"), std::string::npos);
  EXPECT_NE(idle.find(ATTND_VERSION), std::string::npos);

  RequestTable::Row row(engine.requests, "Attend", kHostile, kHostile);
  row.SetShape("B1 Hq8 Hkv8 Nq2048 Nk2048 dk64 dv64");
  row.SetStage(Stage::kComputing);
  RequestRecord record;
  record.method = "Plan";
  record.peer = record.identity = record.request_id = kHostile;
  record.status = absl::InvalidArgumentError(kHostile);
  record.total = absl::Milliseconds(1234);
  engine.Done(record);
  const std::string page = StatusPage(engine, absl::Now());
  EXPECT_NE(page.find("B1 Hq8 Hkv8 Nq2048 Nk2048 dk64 dv64</td><td>waits or computes"), std::string::npos);
  EXPECT_NE(page.find("1234.00"), std::string::npos);
  EXPECT_NE(page.find("<h3>Plan</h3>"), std::string::npos);
  EXPECT_EQ(CountOf(page, "&lt;script&gt;"), 6u);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("onload=\""), std::string::npos);
  for (const char c : page) EXPECT_TRUE((c >= 0x20 && c < 0x7f) || c == '\n');

  const absl::StatusOr<StoreBytes> anyones = engine.store_budget.Take("", "tensor k", 70000),
                                   someones = engine.store_budget.Take("a<b", "tensor k", 123456);
  ASSERT_TRUE(anyones.ok() && someones.ok());
  const std::string kept = StatusPage(engine, absl::Now());
  EXPECT_NE(kept.find("<tr><td>a&lt;b</td><td class=\"n\">123456</td></tr>\n"
                      "<tr><td>anonymous</td><td class=\"n\">70000</td></tr>\n"),
            std::string::npos);
  EXPECT_NE(kept.find("<td>named tensors and weight sets, bytes</td><td>193456 of "), std::string::npos);

  engine.lifecycle.BeginDrain();
  EXPECT_NE(StatusPage(engine, absl::Now()).find("(draining)"), std::string::npos);
}

}  // namespace
}  // namespace attnd::server
