#include "server/trace.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

// The example of W3C's Trace Context.
constexpr char kExample[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceTest, ARequestIdIsKeptWhenItFitsALineAndMadeOtherwise) {
  EXPECT_EQ(RequestIdFrom("7b1f-3"), "7b1f-3");
  EXPECT_EQ(RequestIdFrom(std::string(128, 'x')), std::string(128, 'x'));
  std::set<std::string> made;
  for (const std::string& came : {std::string(), std::string("two words"), std::string("line\nbreak"),
                                  std::string("\x1b[31m"), std::string("\xc3\xa4"), std::string(129, 'x')}) {
    const std::string id = RequestIdFrom(came);
    EXPECT_EQ(id.size(), 16u);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
    made.insert(id);
  }
  EXPECT_EQ(made.size(), 6u);
}

TEST(TraceTest, Traceparents) {
  EXPECT_TRUE(IsTraceparent(kExample));
  EXPECT_TRUE(IsTraceparent(absl::StrCat("cc", std::string(kExample).substr(2), "-what-the-future-brings")));
  for (const std::string& wrong : {std::string(), std::string(kExample).substr(1), absl::StrCat(kExample, "-more"),
                                   std::string("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
                                   std::string("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"),
                                   std::string("00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
                                   std::string("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"),
                                   std::string("00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01"),
                                   absl::StrCat("cc", std::string(kExample).substr(2), "-line\nbreak")}) {
    EXPECT_FALSE(IsTraceparent(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace attnd::server
