// Shapes at the limits of torch: what a layout takes, a parser reads, in both formats.
#include "format/shape.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "base/error.h"
#include "engine/save/new_layout.h"
#include "memory_file.h"
#include "raw_file.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

using Shape = std::vector<std::int64_t>;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kRoot = std::int64_t{1} << 32;  // of 2^64

struct Case {
  Shape shape;
  bool fits;
};

// Whether torch.empty() accepts the shape, for elements of 8 bytes.
const Case kCases[] = {
    {{}, true},
    {{kMost / 8}, true},
    {{kMost / 8 + 1}, false},
    {{kMost / 8 + 1, 0}, true},
    {{0, kMost}, true},
    {{kMost, 0}, true},
    {{2, kMost, 0}, true},
    {{kRoot / 2, 0, kRoot / 2}, true},
    // Their elements would be 2^64 before the dimension of 0.
    {{kRoot, kRoot, 0}, false},
    {{kMost, 3, 0}, false},
    // Their strides would be 2^63 or more.
    {{0, kMost, 2}, false},
    {{0, kRoot, kRoot / 2}, false},
    {{kMost, 0, kMost}, true},
    {{1, kMost, 0, 2}, false},
};

std::unique_ptr<Layout> layout_with(Format format, const Case& each, bool meta) {
  std::unique_ptr<Layout> layout = new_layout(format, {}, 0);
  layout->add({.name = "x", .dtype = DType::Float64, .shape = each.shape, .meta = meta});
  return layout;
}

TEST(Shape, HasTheLimitsOfTorch) {
  for (const Case& each : kCases) {
    EXPECT_EQ(byte_size(each.shape, 8).has_value(), each.fits)
        << testing::PrintToString(each.shape);
  }
  EXPECT_EQ(byte_size(Shape{}, 8), 8U);
  EXPECT_EQ(byte_size(Shape{kMost / 8}, 8), kMost / 8 * 8);
  EXPECT_EQ(byte_size(Shape{0, kMost}, 8), 0U);
}

TEST(Shape, IsSavedOnlyIfItCanBeLoaded) {
  for (const Format format : {Format::Tensors, Format::Safetensors}) {
    for (const Case& each : kCases) {
      const bool meta = format == Format::Tensors && byte_size(each.shape, 8) != 0U;
      if (!each.fits) {
        const Error error = error_of([&] { layout_with(format, each, meta); });
        EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
        EXPECT_TRUE(contains(error.what(), "its shape has too many elements")) << error.what();
        continue;
      }
      if (format == Format::Safetensors && byte_size(each.shape, 8) != 0U) continue;
      const std::unique_ptr<Layout> layout = layout_with(format, each, meta);
      std::vector<std::byte> file = layout->prefix(0, layout->prefix_size());
      file.resize(file.size() + layout->file_size());
      Cancel cancel;
      const auto read = read_catalogue(*memory_source(file, nullptr), nullptr, cancel);
      EXPECT_TRUE(std::ranges::equal(read->entries()[0].shape, each.shape));
      EXPECT_EQ(read->entries()[0].data_size, 0U);
    }
  }
}

TEST(Shape, IsRefusedInAFileOfAnother) {
  for (const Case& each : kCases) {
    if (each.fits) continue;
    const std::vector<std::uint64_t> shape(each.shape.begin(), each.shape.end());
    const RawFile file(
        {RawTensor{.dtype = "<f8", .shape = shape, .data = "", .long_dimensions = true}}, 5);
    const Error error = error_of([&] {
      Cancel cancel;
      read_catalogue(*memory_source(file.bytes, nullptr), nullptr, cancel);
    });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
    EXPECT_TRUE(contains(error.what(), "its shape has too many elements")) << error.what();
  }
}

}  // namespace
}  // namespace tensorizer
