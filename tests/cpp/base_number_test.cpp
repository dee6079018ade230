// Numbers of bytes and of seconds, with units.
#include <limits>

#include "base/number.h"
#include "support.h"

namespace tensorizer {
namespace {

TEST(Bytes, HaveUnits) {
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("7B"), 7u);
  EXPECT_EQ(parse_bytes("10MB"), 10'000'000u);
  EXPECT_EQ(parse_bytes("5 gb"), 5'000'000'000u);
  EXPECT_EQ(parse_bytes("64MiB"), 64u << 20);
  EXPECT_EQ(parse_bytes("1.5GiB"), std::uint64_t{3} << 29);
  EXPECT_EQ(parse_bytes("0.001KB"), 1u);
  EXPECT_EQ(parse_bytes("8.0"), 8u) << "as Python writes a float";
  EXPECT_EQ(parse_bytes("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
}

TEST(Bytes, AreWholeAndFit) {
  for (const char* text : {"", "B", "MB", "-1", "1.5", "1.", ".5KB", "0.0001KB", "1.2.3MB", "1G",
                           "1e6", "0x10", "1MB/s", "18446744073709551616", "18446744073709552KB",
                           "18446744073709551.9KB", "0.1234567890123TB", "1 M B"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(Seconds, HaveUnits) {
  EXPECT_EQ(parse_seconds("0.5"), 0.5);
  EXPECT_EQ(parse_seconds("30s"), 30);
  EXPECT_EQ(parse_seconds("250ms"), 0.25);
  EXPECT_EQ(parse_seconds("1 min"), 60);
  EXPECT_EQ(parse_seconds("2M"), 120);
  EXPECT_EQ(parse_seconds("1h"), 3600);
  EXPECT_EQ(parse_seconds("2d"), 172800);
  for (const char* text : {"", "s", "m", "1y", "1m30s", "+1", "one"}) {
    EXPECT_EQ(parse_seconds(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace tensorizer
