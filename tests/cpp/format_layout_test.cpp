// Layouts of files to write: where everything is placed, the lowest version, and that they read
// back the same.
#include <limits>

#include "base/error.h"
#include "format/name.h"
#include "format/tensors/index.h"
#include "format/tensors/layout.h"
#include "format/tensors/tensor_header.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using namespace std::string_literals;

const FileLocation kPlace{"'f'", 0, std::nullopt};

TensorSpec spec(std::string name, DType dtype, std::vector<std::int64_t> shape) {
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
}

TensorSpec meta(std::string name, DType dtype, std::vector<std::int64_t> shape) {
  TensorSpec tensor = spec(std::move(name), dtype, std::move(shape));
  tensor.meta = true;
  return tensor;
}

TensorsLayout layout_of(std::vector<TensorSpec> specs, HashKinds hashes = {true, true}) {
  TensorsLayout layout({{hashes, {}}, false}, 0);
  for (TensorSpec& tensor : specs) layout.add(std::move(tensor));
  return layout;
}

// Returns the index in a layout's prefix, parsed as that of a file that ends where the layout says.
Index parse(const Layout& layout, std::uint64_t start, std::uint64_t prefix_size) {
  const std::vector<std::byte> prefix = layout.prefix(start, prefix_size);
  EXPECT_EQ(prefix.size(), prefix_size);
  const FileLocation location{"'f'", start, start + prefix_size + layout.file_size()};
  const FileHeader header = parse_file_header(prefix, location);
  EXPECT_EQ(header.index_size, prefix_size - kFileHeaderSize);
  Cancel cancel;
  return Index(header, {prefix.begin() + kFileHeaderSize, prefix.end()}, location, cancel);
}

std::uint32_t version_of(std::vector<TensorSpec> specs) {
  const TensorsLayout layout = layout_of(std::move(specs));
  return parse(layout, 0, layout.prefix_size()).header().version;
}

TEST(Layout, HasTheLowestVersionThatServes) {
  const TensorSpec plain = spec("plain", DType::Float32, {2});
  EXPECT_EQ(version_of({}), 1U);
  EXPECT_EQ(version_of({plain, spec("none", DType::Int8, {0})}), 1U);
  EXPECT_EQ(version_of({plain, spec("o", DType::BFloat16, {2})}), 2U);
  EXPECT_EQ(version_of({plain, spec("o", DType::BFloat16, {0})}), 2U);
  EXPECT_EQ(version_of({meta("m", DType::Float32, {2}), plain}), 4U);
  EXPECT_EQ(version_of({meta("m", DType::Float32, {2}), spec("o", DType::BFloat16, {2})}), 4U);
  EXPECT_EQ(version_of({plain, spec("l", DType::Int8, {0xffffffff, 0})}), 1U);
  EXPECT_EQ(version_of({spec("l", DType::Int8, {0x100000000, 0}), plain}), 5U);
  EXPECT_EQ(version_of({meta("l", DType::Int8, {0x100000000}), plain}), 5U);
}

TEST(Layout, SaysHowMuchDataThereIs) {
  const TensorsLayout layout =
      layout_of({spec("a", DType::Float32, {5}), meta("m", DType::Float32, {7}),
                 spec("b", DType::Int8, {3})});
  const std::vector<std::byte> prefix = layout.prefix(0, layout.prefix_size());
  Cursor cursor(ConstBytes(prefix).subspan(41));
  EXPECT_EQ(cursor.take<std::uint64_t>(), 23U);
  EXPECT_EQ(cursor.take<std::uint64_t>(), 0U);
}

TEST(Layout, LeavesTheNameOfAnOpaqueDTypeOutOfTheIndexOfAnEmptyTensor) {
  const TensorsLayout layout =
      layout_of({spec("full", DType::BFloat16, {1}), spec("empty", DType::BFloat16, {0}),
                 meta("meta", DType::Float8E5M2, {3})});
  const Index index = parse(layout, 0, layout.prefix_size());
  EXPECT_EQ(index.entries()[0].dtype, DType::BFloat16);
  EXPECT_FALSE(index.entries()[1].dtype);
  EXPECT_FALSE(index.entries()[2].dtype);
  for (const PlacedTensor& tensor : layout.tensors()) {
    const TensorHeaderImage image(tensor.spec, layout.kind().header, tensor.header_size);
    EXPECT_TRUE(contains(as_text(image.bytes()), stored_dtype(tensor.spec.dtype)));
  }
}

TEST(Layout, RefusesWhatTheFormatCannotHold) {
  const auto refusal = [](const TensorSpec& tensor) {
    TensorsLayout layout({}, 0);
    const Error error = error_of([&] { layout.add(tensor); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    EXPECT_TRUE(layout.tensors().empty());
    return std::string(error.message());
  };
  EXPECT_TRUE(contains(refusal(spec("", DType::Int8, {1})), "its name is empty"));
  EXPECT_TRUE(contains(refusal(spec("\xff", DType::Int8, {1})), "tensor '\\xff' cannot be saved"));
  EXPECT_TRUE(contains(refusal(spec("\x1e[", DType::Int8, {1})), "not a JSON array"));
  EXPECT_TRUE(contains(refusal(spec(std::string(65536, 'n'), DType::Int8, {1})), "65536 bytes"));
  EXPECT_TRUE(
      contains(refusal(spec("n", DType::Int8, std::vector<std::int64_t>(256, 1))), "256 dim"));
  TensorSpec parameter = spec("\x1e[\"a\",0]", DType::Int8, {1});
  parameter.type = TensorType::Parameter;
  EXPECT_TRUE(contains(refusal(parameter), "only a state-dict entry"));

  TensorsLayout most({}, 0);
  most.add(spec(std::string(65535, 'n'), DType::Int8, std::vector<std::int64_t>(255, 1)));
  EXPECT_NO_THROW(parse(most, 0, most.prefix_size()));
}

void check_names(const Layout& layout) {
  Cancel cancel;
  layout.check_names(cancel);
}

TEST(Layout, RefusesNamesThatExcludeEachOther) {
  const auto refusal = [](const char* first, const char* second) {
    const TensorsLayout layout =
        layout_of({spec(first, DType::Int8, {1}), spec(second, DType::Int8, {1})});
    const Error error = error_of([&] { check_names(layout); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    return std::string(error.message());
  };
  EXPECT_EQ(refusal("a", "a"), "tensor 'a' has the same name as 'a'");
  EXPECT_TRUE(contains(refusal("a", "\x1e[\"a\",\"b\"]"), "is inside"));
  EXPECT_TRUE(contains(refusal("a", "\x1e[0]"), "mixes keys and indices"));
  EXPECT_NO_THROW(
      check_names(layout_of({spec("a", DType::Int8, {1}), spec("b", DType::Int8, {1})})));
}

TEST(Layout, PrefixMayBeLongerThanItMust) {
  const TensorsLayout layout = layout_of({spec("a", DType::Int8, {100000})});
  ASSERT_EQ(layout.prefix_size(), kPrefixAlignment);
  const Index index = parse(layout, 0, 5 * kPrefixAlignment);
  EXPECT_EQ(index.entries()[0].data_offset % kPrefixAlignment, 0U);
}

TEST(Layout, AlignsWhereBigStarts) {
  for (const std::int64_t size : {65535, 65536}) {
    const TensorsLayout layout =
        layout_of({spec("x", DType::Int8, {1}), spec("a", DType::Int8, {size})});
    const std::uint64_t offset = layout.tensors()[1].data_offset();
    EXPECT_EQ(offset % 64, 0U);
    EXPECT_EQ(offset % 4096 == 0, size == 65536) << offset;
  }
}

TEST(TensorHeaderImage, HoldsTheHashesWhereReadersFindThem) {
  for (const HashKinds hashes : {HashKinds{false, false}, HashKinds{true, false},
                                 HashKinds{false, true}, HashKinds{true, true}}) {
    const TensorsLayout layout = layout_of({spec("weight", DType::Float8E8M0FNU, {3, 5})}, hashes);
    const PlacedTensor& tensor = layout.tensors()[0];
    TensorHeaderImage image(tensor.spec, {hashes, {}}, tensor.header_size);
    const std::vector<std::byte> hashed(image.bytes().begin(), image.bytes().end());
    Digests digests;
    if (hashes.crc32) digests[Hash::Crc32] = digest_of(pattern(kCrc32Size));
    if (hashes.sha256) digests[Hash::Sha256] = digest_of(pattern(kSha256Size));
    image.set_digests(digests);

    const Index index = parse(layout, 0, layout.prefix_size());
    std::vector<std::byte> bytes(image.bytes().begin(), image.bytes().end());
    const TensorDetails header = index.details(0, bytes, kPlace);
    EXPECT_TRUE(header.digests == digests);
    // A reader hashes the same bytes: the header with its hash values zeroed.
    EXPECT_EQ(bytes, hashed);
  }
}

TensorSpec random_spec(Dice& dice, const std::string& name) {
  TensorSpec tensor;
  tensor.name = dice.one_in(4) ? "\x1e[\"" + name + "\",0]" : name;
  if (!tensor.name.starts_with(kNestedMark)) tensor.type = static_cast<TensorType>(dice.below(3));
  tensor.module_index = static_cast<std::uint16_t>(dice.below(65536));
  tensor.dtype = static_cast<DType>(dice.below(static_cast<std::uint64_t>(kDTypeCount)));
  for (std::uint64_t left = dice.below(5); left > 0; --left) {
    tensor.shape.push_back(static_cast<std::int64_t>(dice.below(20)));
  }
  if (dice.one_in(4)) tensor.shape.push_back(static_cast<std::int64_t>(dice.below(100000)));
  if (dice.one_in(8)) tensor.shape = {std::int64_t{1} << (32 + dice.below(20)), 0};
  tensor.meta = dice.one_in(8) && !tensor.shape.empty() && tensor.data_size() > 0;
  return tensor;
}

TEST(Layout, ReadsBackAsItWas) {
  Dice dice(11);
  for (int round = 0; round < 300; ++round) {
    const HashKinds hashes{dice.one_in(2), dice.one_in(2)};
    const std::uint64_t start = dice.one_in(2) ? 0 : dice.below(10000);
    TensorsLayout layout({{hashes, {}}, false}, start);
    for (std::uint64_t i = dice.below(12); i > 0; --i) {
      layout.add(random_spec(dice, "tensor" + std::to_string(i)));
    }
    EXPECT_NO_THROW(check_names(layout));
    const std::uint64_t prefix_size = layout.prefix_size();
    EXPECT_EQ(prefix_size % kPrefixAlignment, 0U);
    EXPECT_EQ(layout.file_size(), layout.end() + 8);
    const Index index = parse(layout, start, prefix_size);
    ASSERT_EQ(index.entries().size(), layout.tensors().size());
    std::uint64_t end = start + prefix_size;
    bool long_dimensions = false;
    for (std::size_t i = 0; i < index.entries().size(); ++i) {
      const Entry& entry = index.entries()[i];
      const PlacedTensor& tensor = layout.tensors()[i];
      const TensorSpec& given = tensor.spec;
      EXPECT_EQ(entry.name, given.name);
      EXPECT_EQ(entry.type, given.type);
      EXPECT_EQ(entry.element_size, dtype_info(given.dtype).size);
      EXPECT_EQ(entry.meta, given.meta);
      EXPECT_EQ(entry.data_size, given.data_size());
      EXPECT_TRUE(std::equal(entry.shape.begin(), entry.shape.end(), given.shape.begin(),
                             given.shape.end()));
      // Blocks are adjacent, and data is aligned.
      EXPECT_EQ(entry.header_offset, end);
      EXPECT_EQ(entry.data_offset % (entry.data_size >= 65536 ? 4096 : 64), 0U);
      EXPECT_LT(entry.header_size(), 4096 + 512U);
      end = entry.end();
      long_dimensions |= given.long_dimensions();

      TensorHeaderImage image(given, {hashes, {}}, tensor.header_size);
      std::vector<std::byte> bytes(image.bytes().begin(), image.bytes().end());
      ASSERT_EQ(bytes.size(), entry.header_size());
      const TensorDetails header = index.details(i, bytes, kPlace);
      EXPECT_EQ(header.dtype, given.dtype);
      EXPECT_EQ(header.module_index, given.module_index);
      EXPECT_EQ(hashes_of(header.digests), HashSet(hashes));
    }
    EXPECT_EQ(end, start + prefix_size + layout.end());
    EXPECT_EQ(index.header().long_dimensions(), long_dimensions);
  }
}

}  // namespace
}  // namespace tensorizer
