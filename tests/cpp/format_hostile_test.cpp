// Files made by an attacker: whatever their header and index say, they are refused or consistent.
#include <algorithm>
#include <limits>

#include "format/tensors/frame.h"
#include "memory_file.h"
#include "memory_watch.h"
#include "raw_file.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using namespace std::string_literals;

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kHalf = std::uint64_t{1} << 63;
constexpr std::uint64_t kQuarter = std::uint64_t{1} << 62;
constexpr std::size_t kSmallAllocation = 1 << 20;

// Returns the message of the InvalidFormat error that refuses the file.
std::string refusal(ConstBytes bytes) {
  const MemoryWatch watch;
  const Error error = error_of([&] { read(bytes); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
  EXPECT_LT(watch.peak(), kSmallAllocation);
  return error.what();
}

std::string refusal(const RawFile& file) { return refusal(file.bytes); }

RawFile two_tensors() {
  return RawFile({RawTensor{}, RawTensor{.name = "bias", .dtype = "<i8", .shape = {1}}});
}

TEST(HostileFile, CutAnywhereIsRefused) {
  const RawFile file = two_tensors();
  for (std::size_t size = 1; size < file.data_end; ++size) {
    const std::vector<std::byte> cut(file.bytes.begin(),
                                     file.bytes.begin() + static_cast<std::ptrdiff_t>(size));
    const std::string message = refusal(cut);
    EXPECT_TRUE(contains(message, "truncated") || contains(message, "only the first")) << message;
    if (size >= file.index_end) continue;
    EXPECT_EQ(kind_of([&] { read_unsized(cut); }), ErrorKind::InvalidFormat) << size;
  }
  EXPECT_NO_THROW(read(ConstBytes(file.bytes).first(file.data_end)));
}

TEST(HostileFile, WithAnIndexThatIsCutIsRefused) {
  const RawFile good = two_tensors();
  for (std::size_t left = 0; left < good.entries_end - kFileHeaderSize; ++left) {
    RawFile file = good;
    file.set("index_size", left);
    refusal(file);
  }
}

TEST(HostileFile, IsNotBelievedWhatItDeclares) {
  for (const std::uint64_t count :
       {std::uint64_t{1} << 30, std::uint64_t{1000000000}, std::uint64_t{1} << 32, kHalf, kMost}) {
    RawFile file = two_tensors();
    file.bytes.resize(1024);
    file.set("count", count);
    EXPECT_TRUE(contains(refusal(file), "tensors are declared in an index of")) << count;
    for (const std::uint64_t size :
         {std::uint64_t{1} << 31, std::uint64_t{1} << 40, kQuarter, kHalf, kMost}) {
      file.set("index_size", size);
      EXPECT_TRUE(contains(refusal(file), "the index at offset 73 claims")) << size;
      const MemoryWatch watch;
      EXPECT_EQ(kind_of([&] { read_unsized(file.bytes); }), ErrorKind::InvalidFormat);
      EXPECT_LT(watch.peak(), 40U << 20);
    }
  }
  RawFile file({RawTensor{.name = std::string(100, 'n')}, RawTensor{}});
  file.set("count", 3);
  EXPECT_TRUE(contains(
      refusal(file), "index entry 2 at offset " + std::to_string(file.entries_end) + " runs past"));
}

TEST(HostileFile, IsNotBelievedTheLengthOfAHeader) {
  // An encrypted tensor of 2^60 bytes may have a header of 2^54, and the size of the file is
  // unknown.
  RawFile file(
      {RawTensor{
          .dtype = "<V2", .shape = {std::uint64_t{1} << 59}, .data = "", .long_dimensions = true}},
      5);
  file.set("0.data_size", std::uint64_t{1} << 60);
  file.set("0.data_offset", file.index_end + (std::uint64_t{1} << 53));
  file.set("flags", 3);
  const MemoryWatch watch;
  const Error error = error_of([&] { read_unsized(file.bytes); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
  EXPECT_TRUE(contains(
      error.what(), "tensor 'weight' (index entry 0): the file is truncated: it ends at offset " +
                        std::to_string(file.bytes.size())))
      << error.what();
  EXPECT_LT(watch.peak(), 40U << 20);
  file.set("0.data_offset", file.index_end + (std::uint64_t{1} << 55));
  EXPECT_TRUE(contains(error_of([&] { read_unsized(file.bytes); }).what(), "which is too long"));
  file.set("0.data_offset", file.index_end + (1 << 18));
  file.set("flags", 2);
  EXPECT_TRUE(contains(error_of([&] { read_unsized(file.bytes); }).what(), "which is too long"));
}

// A source with the size that a server claims, which may belong to the author of the file.
class BoastingSource final : public UnsizedSource {
 public:
  using UnsizedSource::UnsizedSource;
  std::optional<std::uint64_t> size() const override { return kQuarter; }
};

TEST(HostileFile, IsNotBelievedTheLengthOfItsIndexByAServer) {
  for (const std::uint64_t size : {std::uint64_t{1} << 30, std::uint64_t{1} << 50}) {
    RawFile file = two_tensors();
    file.set("index_size", size);
    const auto refused = [&file](const char* why) {
      BoastingSource source(file.bytes);
      Cancel cancel;
      const MemoryWatch watch;
      const Error error = error_of([&] { read_index(source, nullptr, cancel); });
      EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
      EXPECT_TRUE(contains(error.what(), why)) << error.what();
      EXPECT_LT(watch.peak(), 40U << 20);
    };
    refused("far more than 2 tensors can take");
    file.set("count", size / 1000);
    refused("inside its index of ");
  }
}

TEST(HostileFile, IsRefusedWithItsTensorAndOffset) {
  const RawFile good({RawTensor{.name = "first"}, RawTensor{.name = "w", .shape = {1, 2}}});
  const std::uint64_t end = good.bytes.size();
  const auto with = [&](const std::string& field, std::uint64_t value) {
    RawFile file = good;
    file.set(field, value);
    const std::string message = refusal(file);
    EXPECT_TRUE(contains(message, "tensor 'w' (index entry 1) at offset ")) << message;
    return message;
  };
  EXPECT_TRUE(contains(with("1.type", 3), "unknown tensor type 3"));
  EXPECT_TRUE(contains(with("1.dimension0", 3), "its data has 8 bytes where its shape has 24"));
  EXPECT_TRUE(contains(with("1.dimension0", 0), "its data has 8 bytes where its shape has 0"));
  EXPECT_TRUE(contains(with("1.dimension0", 0xffffffff), "where its shape has 34359738360"));
  EXPECT_TRUE(contains(with("1.data_size", 9), "its data has 9 bytes"));
  EXPECT_TRUE(contains(with("1.data_size", kMost), "its data has 18446744073709551615 bytes"));
  for (const std::uint64_t offset : {std::uint64_t{0}, good.index_end - 1}) {
    EXPECT_TRUE(contains(with("1.header_offset", offset), "inside the file's header or index"));
  }
  for (const std::uint64_t offset : {end, kHalf, kMost}) {
    EXPECT_TRUE(contains(with("1.header_offset", offset), "leaves no room for a header"));
  }
  const std::uint64_t header = good.get("1.header_offset");
  for (const std::uint64_t offset : {std::uint64_t{0}, header - 1, header, header + 24}) {
    EXPECT_TRUE(contains(with("1.data_offset", offset), "leaves no room for a header"));
  }
  for (const std::uint64_t offset : {end - 7, end, kQuarter, kHalf - 1, kMost - 3}) {
    EXPECT_TRUE(contains(with("1.data_offset", offset), "go past the end of the file"));
  }
  EXPECT_TRUE(contains(with("1.header_offset", header - 1), "overlaps tensor 'first'"));
  RawFile same = good;
  same.set("1.header_offset", good.get("0.header_offset"));
  same.set("1.data_offset", good.get("0.data_offset"));
  EXPECT_TRUE(contains(refusal(same), "overlaps"));
  RawFile dtype = good;
  dtype.set_text("1.dtype", "<f3");
  EXPECT_TRUE(contains(refusal(dtype), "tensor 'w' (index entry 1) at offset "));
  EXPECT_TRUE(contains(refusal(dtype), "unknown dtype '<f3'"));
}

TEST(HostileFile, HasNoShapeThatOverflows) {
  const auto shaped = [](std::vector<std::uint64_t> shape) {
    RawFile file({RawTensor{.shape = std::move(shape), .data = "", .long_dimensions = true}}, 5);
    return refusal(file);
  };
  EXPECT_TRUE(contains(shaped({kHalf}), "a dimension is too large"));
  EXPECT_TRUE(contains(shaped({kMost}), "a dimension is too large"));
  EXPECT_TRUE(contains(shaped({0, kMost}), "a dimension is too large"));
  EXPECT_TRUE(contains(shaped({std::uint64_t{1} << 61}), "its shape has too many elements"));
  EXPECT_TRUE(contains(shaped({std::uint64_t{1} << 32, std::uint64_t{1} << 32}),
                       "its shape has too many elements"));
  EXPECT_TRUE(contains(shaped({kQuarter, 4}), "its shape has too many elements"));
  EXPECT_TRUE(
      contains(shaped(std::vector<std::uint64_t>(255, 2)), "its shape has too many elements"));
}

TEST(HostileFile, HasNoBadNames) {
  const auto refusal_of = [](const std::vector<std::string>& names, std::uint8_t type = 2) {
    std::vector<RawTensor> tensors;
    for (const std::string& name : names) tensors.push_back({.name = name, .type = type});
    const std::string message = refusal(RawFile(tensors));
    EXPECT_TRUE(contains(message, "index entry")) << message;
    return message;
  };
  EXPECT_TRUE(contains(refusal_of({""}), "its name is empty"));
  EXPECT_TRUE(contains(refusal_of({"a\xff"}), "tensor 'a\\xff' (index entry 0)"));
  EXPECT_TRUE(contains(refusal_of({"\x1e[1"}), "is not a JSON array"));
  EXPECT_TRUE(contains(refusal_of({"a", "b", "a"}), "tensor 'a' (index entry 2) at offset "));
  EXPECT_TRUE(contains(refusal_of({"a", "b", "a"}), "has the same name as tensor 'a' (index"));
  EXPECT_TRUE(contains(refusal_of({"\x1e[\"a\",1]", "a"}), "is inside, or holds"));
  EXPECT_TRUE(contains(refusal_of({"\x1e[1]", "a"}), "mixes keys and indices"));
  EXPECT_TRUE(contains(refusal_of({"\x1e[1]"}, 0), "a nested name on a tensor that is no"));
}

TEST(HostileFile, MayHaveItsBlocksInAnyOrderButNoneTwice) {
  RawFile file = two_tensors();
  for (const char* field : {"header_offset", "data_offset"}) {
    const std::uint64_t first = file.get("0."s + field);
    file.set("0."s + field, file.get("1."s + field));
    file.set("1."s + field, first);
  }
  EXPECT_EQ(read(file.bytes).entries()[1].header_offset, file.index_end);
  file.set("0.header_offset", file.get("1.header_offset"));
  file.set("0.data_offset", file.get("1.data_offset"));
  EXPECT_TRUE(contains(refusal(file), "overlaps"));
}

// Expects entries inside the file that do not overlap and are as large as they say.
void check_sanity(const Index& index, std::uint64_t size) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> blocks;
  for (const Entry& entry : index.entries()) {
    ASSERT_LE(entry.header_offset, entry.data_offset);
    ASSERT_LE(entry.data_offset, entry.end());
    ASSERT_LE(entry.end(), size);
    ASSERT_EQ(entry.data_size, entry.meta ? 0 : entry.memory_size());
    blocks.emplace_back(entry.header_offset, entry.end());
  }
  std::sort(blocks.begin(), blocks.end());
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    ASSERT_LE(blocks[i - 1].second, blocks[i].first);
  }
}

TEST(HostileFile, WithAnyFieldChangedIsRefusedOrSane) {
  const std::vector<RawFile> files{
      two_tensors(),
      RawFile({RawTensor{.data = ""},
               RawTensor{.name = "b", .shape = {0, 3}, .data = "", .long_dimensions = true}},
              5),
      RawFile({RawTensor{.dtype = "|V1\0torch.bits8"s, .shape = {8}, .index_dtype = "|V1"},
               RawTensor{.name = "\x1e[\"a\",0]"}},
              2, std::string(kFrameMagic) + "\1\0\0\0\0\0"s)};
  for (const RawFile& good : files) {
    for (const auto& [field, place] : good.fields) {
      const std::uint64_t right = good.get(field);
      std::vector<std::uint64_t> values{0,     1,      right + 1,  right - 1,  right ^ 64, 0x7f,
                                        0xff,  0x7fff, 0xffff,     0x7fffffff, 0xffffffff, kQuarter,
                                        kHalf, kMost,  kMost >> 1, 0 - right};
      for (const std::uint64_t value : values) {
        RawFile file = good;
        file.set(field, value);
        const MemoryWatch watch;
        try {
          check_sanity(read(file.bytes), file.bytes.size());
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat) << field << " " << value;
        }
        EXPECT_LT(watch.peak(), kSmallAllocation) << field << " " << value;
        try {
          check_sanity(read_unsized(file.bytes), kMost >> 1);
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat) << field << " " << value;
        }
      }
    }
  }
}

TEST(HostileFile, StartsWithTheMagicAndAVersion) {
  RawFile file({});
  file.set_text("magic", "|TZQ|");
  EXPECT_TRUE(contains(refusal(file),
                       "this is not a .tensors or safetensors file: it starts with '|TZQ|...'"));
  EXPECT_TRUE(contains(refusal(bytes_of("")), "the file is empty"));
  EXPECT_TRUE(contains(refusal(bytes_of("|TZ")), "it ends inside its header, 3 of 73"));
  for (const std::uint32_t version : {0U, 6U, 0xffffffffU}) {
    RawFile other({});
    other.set("version", version);
    EXPECT_TRUE(contains(refusal(other), "format version " + std::to_string(version)));
  }
}

}  // namespace
}  // namespace tensorizer
