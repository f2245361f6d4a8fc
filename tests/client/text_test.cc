#include "client/cli/text.h"

#include <gtest/gtest.h>

namespace attnd::client {
namespace {

TEST(TextTest, ColumnsAlignByCharactersAndNotBytes) {
  Table table;
  table.Row({"key", "score", "weight"});
  table.Row({"√d_k", "2.40"});
  table.Row({"a·b", "-12.5", "0.5871"});
  EXPECT_EQ(table.Text(2),
            "  key   score  weight\n"
            "  √d_k   2.40\n"
            "  a·b   -12.5  0.5871\n");
  EXPECT_EQ(Width("√d·…"), 4u);
}

TEST(TextTest, LeftColumnsStayLeft) {
  Table table({true, true});
  table.Row({"a", "long text"});
  table.Row({"bb", "b"});
  EXPECT_EQ(table.Text(), "a   long text\nbb  b\n");
}

TEST(TextTest, NumbersAsPeopleReadThem) {
  EXPECT_EQ(HumanCount(4096), "4096");
  EXPECT_EQ(HumanCount(2147483648.0), "2.15e9");
  EXPECT_EQ(HumanCount(1.64e10), "1.64e10");
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(67108864), "64 MiB");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(1010.0 * 1024), "1010 KiB");
  EXPECT_EQ(HumanBytes(68719476736.0), "64 GiB");
  EXPECT_EQ(HumanMicroseconds(0), "0 us");
  EXPECT_EQ(HumanMicroseconds(85300), "85.3 ms");
  EXPECT_EQ(HumanMicroseconds(2.5e6), "2.5 s");
  EXPECT_EQ(HumanMicroseconds(1.2e8), "2 min");
  EXPECT_EQ(HumanMicroseconds(7.2e9), "2 h");
  EXPECT_EQ(Fixed(2.4, 2), "2.40");
  EXPECT_EQ(Fixed(-0.00001, 4), "0.0000");
  EXPECT_EQ(Fixed(-0.5, 1), "-0.5");
  EXPECT_EQ(Short(0.5), "0.5");
}

}  // namespace
}  // namespace attnd::client
