// Reading the file header and the index.
#include "format/tensors/frame.h"
#include "memory_file.h"
#include "raw_file.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using namespace std::string_literals;

// Returns the message of the InvalidFormat error that refuses the file.
std::string refusal(const RawFile& file) {
  const Error error = error_of([&] { read(file.bytes); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
  return error.what();
}

RawFile two_tensors() {
  return RawFile({RawTensor{}, RawTensor{.name = "bias", .dtype = "<i8", .shape = {1}}});
}

TEST(Index, IsRead) {
  const RawFile file(
      {RawTensor{.name = "a.weight",
                 .dtype = "<f2",
                 .shape = {2, 3},
                 .data = std::string(12, 'x'),
                 .type = 0},
       RawTensor{.name = ".scalar", .dtype = "|b1", .shape = {}, .data = "\1", .type = 1},
       RawTensor{.name = "\x1e[\"é\",0]", .dtype = "<c16", .shape = {0, 7}, .data = ""}});
  const Index index = read(file.bytes);
  EXPECT_EQ(index.header().version, 1U);
  EXPECT_FALSE(index.header().encrypted);
  ASSERT_EQ(index.entries().size(), 3U);
  const Entry& first = index.entries()[0];
  EXPECT_EQ(first.name, "a.weight");
  EXPECT_EQ(first.type, TensorType::Parameter);
  EXPECT_EQ(first.dtype, DType::Float16);
  EXPECT_EQ(first.element_size, 2U);
  EXPECT_EQ(std::vector(first.shape.begin(), first.shape.end()), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(first.header_offset, file.get("0.header_offset"));
  EXPECT_EQ(first.header_size(), file.get("0.h.length"));
  EXPECT_EQ(first.data_size, 12U);
  EXPECT_EQ(first.memory_size(), 12U);
  EXPECT_FALSE(first.meta);
  const Entry& second = index.entries()[1];
  EXPECT_TRUE(second.shape.empty());
  EXPECT_EQ(second.memory_size(), 1U);
  const Entry& third = index.entries()[2];
  EXPECT_EQ(third.name, "\x1e[\"é\",0]");
  EXPECT_EQ(third.memory_size(), 0U);
  EXPECT_FALSE(third.meta);
  EXPECT_EQ(third.end(), file.data_end);
}

TEST(Index, IsNotReadAnyFurtherAfterACancel) {
  std::vector<RawTensor> tensors;
  for (int i = 0; i < 3000; ++i) tensors.push_back(RawTensor{.name = std::to_string(i)});
  const RawFile file(tensors);
  const FileLocation location{"'f'", 0, file.bytes.size()};
  const FileHeader header = parse_file_header(file.bytes, location);
  const ConstBytes entries = ConstBytes(file.bytes).subspan(kFileHeaderSize, header.index_size);
  Cancel cancel;
  EXPECT_EQ(Index(header, {entries.begin(), entries.end()}, location, cancel).entries().size(),
            3000U);
  cancel.request();
  EXPECT_EQ(kind_of([&] { Index(header, {entries.begin(), entries.end()}, location, cancel); }),
            ErrorKind::Cancelled);
}

TEST(Index, MayBeEmpty) {
  EXPECT_TRUE(read(RawFile({}).bytes).entries().empty());
  EXPECT_TRUE(read_unsized(RawFile({}, 1, std::string(100, '\0')).bytes).entries().empty());
}

TEST(Index, HasMetaTensorsFromVersion4On) {
  const std::vector<RawTensor> tensors{RawTensor{.data = ""},
                                       RawTensor{.name = "scalar", .shape = {}, .data = ""}};
  for (const std::uint32_t version : {4U, 5U}) {
    const RawFile file(tensors, version);
    const Index index = read(file.bytes);
    EXPECT_TRUE(index.entries()[0].meta);
    EXPECT_EQ(index.entries()[0].memory_size(), 8U);
    EXPECT_TRUE(index.entries()[1].meta);
  }
  for (const std::uint32_t version : {1U, 2U, 3U}) {
    EXPECT_TRUE(contains(refusal(RawFile(tensors, version)), "its data has 0 bytes"));
  }
}

TEST(Index, HasLongDimensionsInVersion5) {
  const RawFile file(
      {RawTensor{.shape = {std::uint64_t{1} << 40, 0}, .data = "", .long_dimensions = true},
       RawTensor{.name = "short"}},
      5);
  const Index index = read(file.bytes);
  EXPECT_TRUE(index.header().long_dimensions());
  EXPECT_EQ(index.entries()[0].shape[0], std::int64_t{1} << 40);
  EXPECT_EQ(index.entries()[1].shape[0], 2);

  for (const std::uint32_t version : {0U, 2U, 4U, 6U, 0xffffffffU}) {
    RawFile broken = file;
    broken.set("1.version", version);
    EXPECT_TRUE(contains(refusal(broken), "index entry 1 at offset")) << version;
  }
}

TEST(Index, KnowsItsFlags) {
  RawFile encrypted({RawTensor{.crypt = "x"}}, 4);
  encrypted.set("flags", 1);
  EXPECT_TRUE(read(encrypted.bytes).header().encrypted);
  EXPECT_TRUE(read(RawFile({RawTensor{.crypt = "x"}}, 3).bytes).header().encrypted);
  for (const auto& [version, flags] : std::vector<std::pair<std::uint32_t, std::uint8_t>>{
           {1, 1}, {1, 2}, {2, 1}, {3, 1}, {3, 2}, {4, 2}, {4, 3}, {4, 4}, {4, 0x80}, {5, 4}}) {
    RawFile file({}, version);
    file.set("flags", flags);
    EXPECT_TRUE(contains(refusal(file), "unknown feature flags")) << version << " " << int{flags};
  }
  for (std::size_t at = 0; at < 31; ++at) {
    RawFile file({}, 5);
    file.bytes[file.fields["more_flags"].at + at] = std::byte{1};
    EXPECT_TRUE(contains(refusal(file), "unknown feature flags"));
  }
}

TEST(Index, TakesItsDTypesFromTheHeadersWhereItMust) {
  const std::vector<RawTensor> tensors{
      RawTensor{.dtype = "<V2\0torch.bfloat16"s, .shape = {0}, .data = "", .index_dtype = "<V2"},
      RawTensor{.name = "plain"}};
  const RawFile file(tensors, 2);
  EXPECT_EQ(read(file.bytes).entries()[0].dtype, DType::BFloat16);
  EXPECT_EQ(read_unsized(file.bytes).entries()[0].dtype, DType::BFloat16);
  Cancel cancel;
  SequentialSource sequential(file.bytes);
  EXPECT_FALSE(read_index(sequential, nullptr, cancel).entries()[0].dtype);
  EXPECT_EQ(sequential.position(), file.index_end);

  RawFile broken = file;
  broken.set("0.h.type", 1);
  EXPECT_TRUE(contains(refusal(broken), "tensor 'weight' (index entry 0): its header at offset"));
  const RawFile nowhere({RawTensor{.dtype = "<V4", .shape = {2}}}, 2);
  EXPECT_TRUE(contains(refusal(nowhere), "unknown dtype, '<V4'"));
}

TEST(Index, MayHaveRecordsBehindItsEntries) {
  const std::string records = std::string(kFrameMagic) + "\7\0\5\0\0\0seven"s + "\4\0\0\0\0\0"s;
  for (const std::string& tail : {records, records + std::string(50, '\0')}) {
    EXPECT_EQ(read(RawFile({RawTensor{}}, 1, tail).bytes).entries().size(), 1U);
  }
  for (const std::string& tail : {"anything else"s, records + std::string(50, '\0') + "x"}) {
    EXPECT_TRUE(contains(refusal(RawFile({RawTensor{}}, 1, tail)),
                         "bytes other than zero behind the 1 index entries"));
  }
  RawFile cut({RawTensor{}}, 1, records.substr(0, kFrameMagic.size() + 10));
  EXPECT_TRUE(contains(refusal(cut), "a record behind the last index entry at offset"));
}

TEST(Index, MayLieAnywhereInItsFile) {
  // As with a descriptor that is passed mid-file: offsets count from the start of the file.
  RawFile file = two_tensors();
  constexpr std::uint64_t kBefore = 1000;
  for (const char* entry : {"0.", "1."}) {
    for (const char* field : {"header_offset", "data_offset"}) {
      const std::string name = std::string(entry) + field;
      file.set(name, file.get(name) + kBefore);
    }
  }
  const auto parse = [&](const FileLocation& location) {
    const FileHeader header = parse_file_header(file.bytes, location);
    const auto bytes = ConstBytes(file.bytes).subspan(kFileHeaderSize, header.index_size);
    Cancel cancel;
    return Index(header, {bytes.begin(), bytes.end()}, location, cancel);
  };
  const std::uint64_t end = kBefore + file.data_end;
  EXPECT_EQ(parse({"'f'", kBefore, end}).entries()[1].end(), end);
  EXPECT_EQ(kind_of([&] { parse({"'f'", kBefore, end - 1}); }), ErrorKind::InvalidFormat);
  EXPECT_EQ(kind_of([&] { parse({"'f'", kBefore + 1, end}); }), ErrorKind::InvalidFormat);
}

TEST(Index, OfManyTensorsIsReadWhole) {
  std::vector<RawTensor> tensors(5000);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = "layers." + std::to_string(i) + ".weight";
  }
  const RawFile file(tensors);
  for (const Index& index : {read(file.bytes), read_unsized(file.bytes)}) {
    ASSERT_EQ(index.entries().size(), tensors.size());
    EXPECT_EQ(index.entries().back().name, tensors.back().name);
    EXPECT_EQ(index.entries().back().shape[0], 2);
  }
}

}  // namespace
}  // namespace tensorizer
