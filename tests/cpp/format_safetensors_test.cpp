// The headers of safetensors files: what a valid one says, and that any other is refused.
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "engine/digest/file_keys.h"
#include "format/safetensors/digest_list.h"
#include "format/safetensors/dtype.h"
#include "memory_file.h"
#include "memory_watch.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using namespace std::string_literals;

// A file whose header claims to have `size` bytes.
std::vector<std::byte> file_claiming(std::uint64_t size, std::string_view json,
                                     std::size_t data_size) {
  std::vector<std::byte> file;
  ByteWriter out(file);
  out.put(size);
  out.put_bytes(as_bytes(json));
  out.put_bytes(pattern(data_size));
  return file;
}

std::vector<std::byte> file_of(std::string_view json, std::size_t data_size = 0) {
  return file_claiming(json.size(), json, data_size);
}

std::string tensor(std::string_view name, std::string_view dtype, std::string_view shape,
                   std::string_view offsets) {
  return '"' + std::string(name) + R"(":{"dtype":")" + std::string(dtype) + R"(","shape":[)" +
         std::string(shape) + R"(],"data_offsets":[)" + std::string(offsets) + "]}";
}

std::unique_ptr<Catalogue> parse(ConstBytes file) {
  Cancel cancel;
  return read_catalogue(*memory_source(file, nullptr), nullptr, cancel);
}

// Returns the message of the InvalidFormat error that refuses the file.
std::string refusal(ConstBytes file) {
  const MemoryWatch watch;
  const Error error = error_of([&] { parse(file); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat) << error.what();
  EXPECT_LT(watch.peak(), 10 * file.size() + (128 << 10));
  return error.what();
}

void expect_refused(ConstBytes file, std::string_view why) {
  const std::string message = refusal(file);
  EXPECT_TRUE(contains(message, why)) << message;
}

TEST(SafetensorsHeader, ListsTensorsInItsOrder) {
  const std::string json =
      R"({"__metadata__":{"format":"pt","empty":"","\u00e9\n":"\ud83d\ude00"},)" +
      tensor("b", "F32", "2,3", "8,32") + "," + tensor("a\\u00e9\\\"", "I64", "", "0,8") + "," +
      tensor("", "BF16", "0,7", "32,32") + "}";
  const auto catalogue = parse(file_of(json, 32));
  const auto entries = catalogue->entries();
  const std::uint64_t data = 8 + json.size();
  ASSERT_EQ(entries.size(), 3U);
  EXPECT_EQ(entries[0].name, "b");
  EXPECT_EQ(entries[0].dtype, DType::Float32);
  EXPECT_TRUE(std::ranges::equal(entries[0].shape, std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(entries[0].header_offset, data + 8);
  EXPECT_EQ(entries[0].data_offset, data + 8);
  EXPECT_EQ(entries[0].data_size, 24U);
  EXPECT_EQ(entries[1].name, "a\xc3\xa9\"");
  EXPECT_TRUE(entries[1].shape.empty());
  EXPECT_EQ(entries[1].data_offset, data);
  EXPECT_EQ(entries[2].name, "");
  EXPECT_TRUE(std::ranges::equal(entries[2].shape, std::vector<std::int64_t>{0, 7}));
  EXPECT_EQ(entries[2].data_size, 0U);
  EXPECT_EQ(catalogue->end(), data + 32);
  EXPECT_FALSE(catalogue->encrypted());
  EXPECT_EQ(catalogue->info().format, Format::Safetensors);
  EXPECT_EQ(catalogue->info().tensor_count, 3U);
  const auto metadata = catalogue->metadata();
  ASSERT_EQ(metadata.size(), 3U);
  EXPECT_EQ(metadata[0], MetadataPair("format", "pt"));
  EXPECT_EQ(metadata[1], MetadataPair("empty", ""));
  EXPECT_EQ(metadata[2], MetadataPair("\xc3\xa9\n", "\xf0\x9f\x98\x80"));
}

TEST(SafetensorsHeader, TellsNoMetadataFromThatWithoutText) {
  EXPECT_FALSE(parse(file_of("{}"))->has_metadata());
  EXPECT_TRUE(parse(file_of(R"({"__metadata__":{}})"))->has_metadata());
  EXPECT_TRUE(parse(file_of(R"({"__metadata__":{"a":""}})"))->has_metadata());
  const std::string digests = to_text(DigestList{});  // of other tensors than none
  const std::string key(kDigestsKey);
  const std::string json = R"({"__metadata__":{")" + key + R"(":")" + digests + R"("}})";
  EXPECT_FALSE(parse(file_of(json))->has_metadata());
}

TEST(SafetensorsHeader, MayBePaddedWithSpace) {
  for (const char* json : {"{}\r \t\n", "\t\n{}\r ", " {}", "{ }"}) {
    EXPECT_TRUE(parse(file_of(json))->entries().empty()) << json;
  }
  const std::string spread =
      "\n {\t\"x\" : { \"data_offsets\" :[ 0 ,\n2 ] ,\"shape\":[ 2 ] , "
      "\"dtype\":\"U8\" } } ";
  EXPECT_EQ(parse(file_of(spread, 2))->entries()[0].data_size, 2U);
}

TEST(SafetensorsHeader, HasEveryType) {
  int count = 0;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string_view name = safetensors_dtype(dtype);
    if (name.empty()) continue;
    ++count;
    const std::uint32_t size = dtype_info(dtype).size;
    const bool packed = dtype == DType::Float4E2M1FNx2;
    const auto file = file_of(
        "{" + tensor("x", name, packed ? "3,4" : "3,2", "0," + std::to_string(6 * size)) + "}",
        6 * size);
    const auto catalogue = parse(file);
    const Entry& entry = catalogue->entries()[0];
    EXPECT_EQ(entry.dtype, dtype);
    EXPECT_EQ(entry.element_size, size);
    EXPECT_TRUE(std::ranges::equal(entry.shape, std::vector<std::int64_t>{3, 2})) << name;
  }
  EXPECT_EQ(count, 20);
  expect_refused(file_of("{" + tensor("x", "F6_E2M3", "4", "0,3") + "}", 3),
                 "dtype 'F6_E2M3' is unknown, or torch does not have it");
  expect_refused(file_of("{" + tensor("x", "f32", "1", "0,4") + "}", 4), "dtype 'f32' is unknown");
  expect_refused(file_of("{" + tensor("x", "F4", "3", "0,1") + "}", 1),
                 "its last dimension is not a multiple of 2");
  expect_refused(file_of("{" + tensor("x", "F4", "", "0,1") + "}", 1),
                 "its last dimension is not a multiple of 2");
}

TEST(SafetensorsHeader, CoversAllBytesOnce) {
  const auto two = [](const char* first, const char* second, std::size_t size) {
    return file_of("{" + tensor("a", "U8", "4", first) + "," + tensor("b", "U8", "4", second) + "}",
                   size);
  };
  EXPECT_EQ(parse(two("0,4", "4,8", 8))->entries().size(), 2U);
  EXPECT_EQ(parse(two("4,8", "0,4", 8))->entries().size(), 2U);
  expect_refused(two("0,4", "0,4", 8), "tensor 'b' (index entry 1) at offset ");
  expect_refused(two("0,4", "0,4", 8), " overlaps tensor 'a' (index entry 0), which ends at ");
  expect_refused(two("0,4", "3,7", 8), " overlaps ");
  expect_refused(two("0,4", "5,9", 9), " leaves a gap behind tensor 'a'");
  expect_refused(two("1,5", "5,9", 9), " leaves a gap behind the header");
  expect_refused(two("0,4", "4,8", 9), "it has 1 bytes behind its last tensor");
  expect_refused(two("0,4", "4,8", 7), "its tensors end at offset ");
  expect_refused(file_of("{}", 1), "it has 1 bytes behind its last tensor");
  // Ten names for the same bytes.
  std::string many = "{";
  for (int i = 0; i < 10; ++i) {
    many += (i > 0 ? "," : "") + tensor("w" + std::to_string(i), "F32", "2,2", "0,16");
  }
  expect_refused(file_of(many + "}", 16), " overlaps ");
}

TEST(SafetensorsHeader, FitsShapeAndType) {
  const auto one = [](std::string_view shape, std::string_view offsets, std::size_t size = 16) {
    return file_of("{" + tensor("x", "I32", shape, offsets) + "}", size);
  };
  EXPECT_EQ(parse(one("2,2", "0,16"))->entries().size(), 1U);
  expect_refused(one("2,2", "0,4", 4), "its data has 4 bytes where its shape has 16");
  expect_refused(one("2,2", "4,0"), "its data begins at 4 and ends before that, at 0");
  expect_refused(one("2,18446744073709551614", "0,16"), "a dimension is too large");
  expect_refused(one("2,18446744073709551616", "0,16"), "a dimension is not a whole number");
  expect_refused(one("2,9223372036854775807", "0,16"), "its shape has too many elements");
  expect_refused(one("-1", "0,16"), "a dimension is not a whole number");
  expect_refused(one("4.0", "0,16"), "a dimension is not a whole number");
  expect_refused(one("4e0", "0,16"), "a dimension is not a whole number");
  expect_refused(one("04", "0,16"), "a dimension is not a whole number");
  expect_refused(one("\"4\"", "0,16"), "a dimension is not a whole number");
  expect_refused(one("null", "0,16"), "a dimension is not a whole number");
  expect_refused(one("[4]", "0,16"), "a dimension is not a whole number");
  expect_refused(one("4", "0,9223372036854775807"), "its data ends too far away");
  expect_refused(one("4", "0,18446744073709551616"), "an offset is not a whole number");
  expect_refused(one("4", "0"), "its data_offsets are not two numbers");
  expect_refused(one("4", "0,16,16"), "its data_offsets are not two numbers");
  expect_refused(one("4", ""), "its data_offsets are not two numbers");
  std::string ones = "1";
  for (int i = 1; i < 255; ++i) ones += ",1";
  EXPECT_EQ(parse(one(ones, "0,4", 4))->entries()[0].shape.size(), 255U);
  expect_refused(one(ones + ",1", "0,4", 4), "it has more than 255 dimensions");
}

TEST(SafetensorsHeader, IsRefusedWithoutAMemberOrWithOneTwice) {
  const std::string dtype = R"("dtype":"U8")";
  const std::string shape = R"("shape":[1])";
  const std::string offsets = R"("data_offsets":[0,1])";
  const auto with = [](const std::string& members) {
    return file_of(R"({"x":{)" + members + "}}", 1);
  };
  EXPECT_EQ(parse(with(offsets + "," + dtype + "," + shape))->entries().size(), 1U);
  EXPECT_EQ(parse(with(offsets + R"(,"\u0064type":"U\u0038",)" + shape))->entries().size(), 1U);
  expect_refused(with(shape + "," + offsets), "it has no dtype");
  expect_refused(with(dtype + "," + offsets), "it has no shape");
  expect_refused(with(dtype + "," + shape), "it has no data_offsets");
  for (const std::string& again : {dtype, shape, offsets}) {
    expect_refused(with(dtype + "," + shape + "," + offsets + "," + again), "' twice");
  }
  expect_refused(with(dtype + "," + shape + "," + offsets + R"(,"more":1)"),
                 "it has the key 'more', which the format does not have");
  expect_refused(with(R"("dtype":8,)" + shape + "," + offsets), "its dtype is not a string");
  expect_refused(with(dtype + R"(,"shape":1,)" + offsets), "its shape is not an array");
  expect_refused(with(dtype + "," + shape + R"(,"data_offsets":{})"), "are not an array");
  expect_refused(file_of(R"({"x":[]})"),
                 "tensor 'x' (index entry 0) at offset 10: it is not a JSON");
}

TEST(SafetensorsHeader, HasEveryNameOnce) {
  const auto two = [](const char* first, const char* second) {
    return file_of(
        "{" + tensor(first, "U8", "1", "0,1") + "," + tensor(second, "U8", "1", "1,2") + "}", 2);
  };
  EXPECT_EQ(parse(two("a", "a "))->entries().size(), 2U);
  // At the first byte of the name.
  expect_refused(two("a", "a"),
                 "tensor 'a' (index entry 1) at offset 62 has the same name as tensor 'a' (index "
                 "entry 0) at offset 10");
  expect_refused(two("a", "\\u0061"), "tensor 'a' (index entry 1) at offset 62 has the same name");
  expect_refused(two("", ""), "tensor '' (index entry 1) at offset 61 has the same name as");
  expect_refused(two("a", "\\u001e[0]"), "its name starts with byte 0x1E");
  expect_refused(file_of(R"({"__metadata__":{},"__metadata__":{}})"), "'__metadata__' twice");
  expect_refused(file_of(R"({"__metadata__":{"a":"1","b":"","\u0061":"2"}})"),
                 "its '__metadata__' has the key 'a' twice");
  expect_refused(file_of(R"({"__metadata__":{"a":1}})"), "the value of 'a'");
  expect_refused(file_of(R"({"__metadata__":{"a":{"b":"c"}}})"), "the value of 'a'");
  expect_refused(file_of(R"({"__metadata__":"pt"})"), "its '__metadata__' is not a JSON object");
}

TEST(SafetensorsHeader, IsJson) {
  for (const std::string& json : {"{"s,
                                  "{]"s,
                                  "{}}"s,
                                  "{} {}"s,
                                  "{},"s,
                                  R"({"a"})"s,
                                  R"({"a":})"s,
                                  R"({"a" {}})"s,
                                  R"({"__metadata__":{},})"s,
                                  R"({"__metadata__":{"a":"\q"}})"s,
                                  R"({"__metadata__":{"a":"\ud800"}})"s,
                                  R"({"__metadata__":{"a":"b"c}})"s,
                                  "{\"__metadata__\":{\"a\":\"\n\"}}"s,
                                  "{\"__metadata__\":{\"a\":\"\xff\"}}"s,
                                  "{\"__metadata__\":{\"a\":\"\xc3\"}}"s,
                                  "{\"__metadata__\":{\"a\":\"\xed\xa0\x80\"}}"s,
                                  "{}\0"s,
                                  "{\0}"s,
                                  "{/**/}"s,
                                  "{'a':1}"s,
                                  "  []"s,
                                  " 1"s,
                                  "\n\"a\""s,
                                  "    "s}) {
    refusal(file_of(json));
  }
  const std::string deep = R"({"a":)" + std::string(100'000, '[');
  refusal(file_of(deep));
  refusal(file_of(deep + std::string(100'000, ']') + "}"));
}

TEST(SafetensorsHeader, IsRefusedWhenItIsCutOrTooLong) {
  const std::string json = "{" + tensor("test", "I32", "2,2", "0,16") + "}";
  const std::vector<std::byte> good = file_of(json, 16);
  for (std::size_t size = 0; size < good.size(); ++size) refusal(ConstBytes(good).first(size));
  for (std::size_t size = 0; size < json.size(); ++size) {
    refusal(file_claiming(size, json, 16));
  }
  refusal(file_claiming(json.size() + 1, json, 16));
  expect_refused(file_claiming(100'000'001, json, 16), "at most 100000000 are allowed");
  expect_refused(file_claiming(~std::uint64_t{0}, json, 16), "at most 100000000 are allowed");
  expect_refused(file_claiming(100'000'000, json, 16), ", but the file ends at ");
  // A stream does not say where it ends.
  UnsizedSource endless(good);
  Cancel cancel;
  EXPECT_EQ(read_catalogue(endless, nullptr, cancel)->entries().size(), 1U);
  for (std::size_t size = 0; size < 8 + json.size(); ++size) {
    UnsizedSource cut(ConstBytes(good).first(size));
    EXPECT_EQ(kind_of([&] { read_catalogue(cut, nullptr, cancel); }), ErrorKind::InvalidFormat);
  }
  const auto claims_more = file_claiming(100'000'000, json, 16);
  UnsizedSource claiming(claims_more);
  const MemoryWatch watch;
  EXPECT_TRUE(contains(message_of([&] { read_catalogue(claiming, nullptr, cancel); }),
                       "inside its header of 100000000 bytes"));
  EXPECT_LT(watch.peak(), 40U << 20);
}

TEST(SafetensorsHeader, IsReadFromAStreamWithoutAByteOfTheData) {
  const std::vector<std::byte> file = file_of("{" + tensor("x", "U8", "3", "0,3") + "}", 3);
  SequentialSource source(file);
  Cancel cancel;
  const auto catalogue = read_catalogue(source, nullptr, cancel);
  std::vector<std::byte> memory(3);
  LoadItem item = whole_tensor(*catalogue, 0);
  item.memory = memory;
  Progress progress;
  load(source, *catalogue, {item}, {}, progress, cancel);
  EXPECT_TRUE(same(memory, ConstBytes(file).last(3)));
}

TEST(SafetensorsHeader, CanBeginInsideOfASource) {
  std::vector<std::byte> file = pattern(777);
  const std::vector<std::byte> inner = file_of("{" + tensor("x", "U8", "3", "0,3") + "}", 3);
  file.insert(file.end(), inner.begin(), inner.end());
  Cancel cancel;
  const auto source = memory_source(file, nullptr, "'f'", 777);
  const auto catalogue = read_catalogue(*source, nullptr, cancel);
  EXPECT_EQ(catalogue->entries()[0].data_offset, file.size() - 3);
  EXPECT_EQ(catalogue->end(), file.size());
}

TEST(SafetensorsHeader, IsNotEncrypted) {
  const std::vector<std::byte> file = file_of("{}");
  FileKeys keys({std::make_shared<SecretBytes>(std::size_t{32}), false}, {1, 8192}, "'f'");
  Cancel cancel;
  const Error error =
      error_of([&] { read_catalogue(*memory_source(file, nullptr), &keys, cancel); });
  EXPECT_EQ(error.kind(), ErrorKind::Crypto);
  EXPECT_TRUE(contains(error.what(), "a key was given, and the file is not encrypted"));
}

TEST(OtherFiles, AreNamed) {
  const auto expect_named = [](std::string_view begin, std::string_view name) {
    expect_refused(bytes_of(begin), name);
  };
  expect_named(
      "PK\3\4 and more than that",
      "it starts with 'PK\\x03\\x04 ...' at offset 0, so it is probably a PyTorch checkpoint (a "
      "zip archive, as torch.save() writes): convert it with tensorizer_ops.convert(), or "
      "`tensorizer-ops convert`");
  expect_named("PK\3\4"s + std::string(22, '\0') + "\x05\0\0\0w.npydata"s,
               "a NumPy archive (.npz)");
  expect_named("PK\3\4"s + std::string(22, '\0') + "\xff\xff\0\0w.npydata"s,
               "a PyTorch checkpoint");
  expect_named("PK\3\4"s + std::string(22, '\0'), "a PyTorch checkpoint");
  expect_named("\x80\2}q\1X", "a pickle");
  expect_named("\x80\4\x95\0\0\0\0\0\0\0"s, "a pickle");
  expect_named("\x93NUMPY\1\0v\0"s, "a NumPy array (.npy)");
  expect_named("version https://git-lfs.github.com/spec/v1", "run git lfs pull");
  expect_named("<!DOCTYPE html><html>", "an HTML page: a server sent it in place of the file");
  expect_named("\xef\xbb\xbf\r\n <HTML lang=\"en\">", "an HTML page");
  expect_named("<?xml version=\"1.0\"?><Error>", "an XML document");
  expect_named("GGUF\3\0\0\0", "a GGUF file");
  expect_named("GGUF\3\0\0\0{\0\0\0\0\0\0\0"s, "a GGUF file");  // of 123 tensors, which are a '{'
  expect_named("\x1f\x8b\x08\0\0\0\0\0\0\3"s, "a gzip file: decompress it first");
  expect_named("\x28\xb5\x2f\xfd\4X\1\0\0"s, "a Zstandard file");
  expect_named("\xfd\x37zXZ\0\0\4"s, "an xz file");
  expect_named("\x08\x07\x12\x07pytorch", "an ONNX model");
  expect_named("\x08\x0a\x12\x07pytorch", "an ONNX model");
  expect_named("m.txt"s + std::string(252, '\0') + "ustar\000"s, "a tar archive: unpack it first");
  expect_named("\x89HDF\r\n\x1a\n\0", "an HDF5 file");
  expect_named("<htm", "bytes of one: it starts with '<htm' at offset 0");
  expect_named("\1\2\3\4\5\6\7\10\11", "this is not a .tensors or safetensors file");
  expect_named("<\0\0\0\0\0\0\0"s, "or safetensors file, or only the first 8 bytes of one");
  expect_named("<", "this is not a .tensors or safetensors file, or only the first 1 bytes of one");
  expect_named("", "the file is empty");
  expect_named("\1\0\0\0\0\0\0\0\xff"s, "this is not a .tensors or safetensors file");
}

}  // namespace
}  // namespace tensorizer
