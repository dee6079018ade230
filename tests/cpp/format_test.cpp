// Dtypes, the records behind the index, tensor headers, and the names that programs use.
#include <set>

#include "format/dtype.h"
#include "format/tensors/frame.h"
#include "format/tensors/tensor_header.h"
#include "raw_crypt.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using namespace std::string_literals;

// ---- dtypes

TEST(DType, ComesBackFromWhatIsStored) {
  std::set<std::string> stored;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string text = stored_dtype(dtype);
    const std::optional<StoredDType> back = parse_dtype(text);
    ASSERT_TRUE(back) << quote(text);
    EXPECT_EQ(back->dtype, dtype) << quote(text);
    EXPECT_EQ(back->size, dtype_info(dtype).size);
    EXPECT_TRUE(stored.insert(text).second) << quote(text);
  }
}

TEST(DType, IsStoredAsNumpyWritesIt) {
  EXPECT_EQ(stored_dtype(DType::Float32), "<f4");
  EXPECT_EQ(stored_dtype(DType::Bool), "|b1");
  EXPECT_EQ(stored_dtype(DType::UInt8), "|u1");
  EXPECT_EQ(stored_dtype(DType::Complex128), "<c16");
  EXPECT_EQ(stored_dtype(DType::BFloat16), "<V2\0torch.bfloat16"s);
  EXPECT_EQ(stored_dtype(DType::Float8E4M3FN), "|V1\0torch.float8_e4m3fn"s);
  EXPECT_EQ(stored_dtype(DType::Complex32), "<V4\0torch.complex32"s);
  EXPECT_EQ(stored_dtype(DType::Bits16), "<V2\0torch.bits16"s);
}

TEST(DType, HasTheSizeThatItsNumpyStringSays) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DTypeInfo& info = dtype_info(static_cast<DType>(i));
    EXPECT_EQ(std::to_string(info.size), info.numpy.substr(2)) << info.torch_name;
    EXPECT_EQ(info.opaque, info.numpy[1] == 'V') << info.torch_name;
    EXPECT_EQ(info.numpy[0] == '|', info.size == 1) << info.torch_name;
  }
}

TEST(DType, MayHaveAnyOrderWhereThereIsNone) {
  for (const auto& [text, dtype] :
       std::vector<std::pair<std::string, DType>>{{"<b1", DType::Bool},
                                                  {"<u1", DType::UInt8},
                                                  {"<i1", DType::Int8},
                                                  {"|V2\0torch.bfloat16"s, DType::BFloat16},
                                                  {"<V1\0torch.float8_e5m2"s, DType::Float8E5M2}}) {
    const std::optional<StoredDType> stored = parse_dtype(text);
    ASSERT_TRUE(stored) << quote(text);
    EXPECT_EQ(stored->dtype, dtype);
  }
  for (const char* text : {">f4", "|f4", "=f4", "f4", ">u1", "|i8", ">V2", "=b1"}) {
    EXPECT_FALSE(parse_dtype(text)) << text;
  }
}

TEST(DType, MayBeOnlyASize) {
  for (const auto& [text, size] : std::vector<std::pair<std::string, std::uint32_t>>{
           {"|V1", 1}, {"<V1", 1}, {"<V2", 2}, {"|V2", 2}, {"<V4", 4}, {"|V4", 4}}) {
    const std::optional<StoredDType> stored = parse_dtype(text);
    ASSERT_TRUE(stored) << text;
    EXPECT_FALSE(stored->dtype);
    EXPECT_EQ(stored->size, size);
  }
}

TEST(DType, IsNothingElse) {
  for (const std::string& text : {""s,
                                  "<"s,
                                  "<f"s,
                                  "<f16"s,
                                  "<f44"s,
                                  "<f4 "s,
                                  "<V3"s,
                                  "<V8"s,
                                  "|V0"s,
                                  "<O8"s,
                                  "|S1"s,
                                  "<U1"s,
                                  "<M8"s,
                                  "<f4\0"s,
                                  "<f4\0torch.float32"s,
                                  "<V2\0"s,
                                  "<V2\0torch."s,
                                  "<V2\0bfloat16"s,
                                  "<V2\0torch.float8_e5m2"s,
                                  "<V2\0numpy.bfloat16"s,
                                  "<V2\0torch.bfloat16 "s,
                                  "<V2\0torch.bfloat16\0"s,
                                  "<V2\0torch.qint8"s,
                                  "|V1\0torch.qint8"s,
                                  "\0torch.float32"s,
                                  "<f4\0torch."s,
                                  std::string(255, 'V')}) {
    EXPECT_FALSE(parse_dtype(text)) << quote(text);
  }
}

// ---- records behind the last index entry

std::string record(std::uint16_t kind, std::string_view body) {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  out.put(kind);
  out.put_text<std::uint32_t>(body);
  return std::string(as_text(bytes));
}

struct Walk {
  std::vector<std::pair<std::uint16_t, std::string>> records;
  bool ok;
};

Walk walk(const std::string& text) {
  FrameCursor cursor(as_bytes(text));
  Walk seen{{}, false};
  while (const std::optional<Record> record = cursor.next()) {
    seen.records.emplace_back(record->kind, as_text(record->body));
  }
  EXPECT_FALSE(cursor.next());
  EXPECT_LE(cursor.position(), text.size());
  seen.ok = cursor.ok();
  return seen;
}

const std::string kMagic(kFrameMagic);
using Records = std::vector<std::pair<std::uint16_t, std::string>>;

TEST(Frame, IsNotThereWithoutItsMagic) {
  for (const std::string& text :
       {""s, std::string(100, '\0'), "|TZ"s, "|TZY|"s + record(1, "a"), " "s + kMagic}) {
    const Walk seen = walk(text);
    EXPECT_TRUE(seen.ok);
    EXPECT_TRUE(seen.records.empty());
  }
}

TEST(Frame, HoldsRecordsUpToKindZero) {
  const Records expected{{7, "seven"}, {65535, ""}, {7, "again"}};
  const std::string records = kMagic + record(7, "seven") + record(65535, "") + record(7, "again");
  for (const std::string& tail :
       {""s, std::string(1, '\0'), std::string(5, '\0'), std::string(500, '\0'),
        record(0, "not looked at") + record(3, "neither"), "\1\0\0\0\0"s}) {
    const Walk seen = walk(records + tail);
    EXPECT_TRUE(seen.ok);
    EXPECT_EQ(seen.records, expected) << quote(tail);
  }
}

TEST(Frame, SaysWhenARecordIsCut) {
  const std::string whole = kMagic + record(1, "first") + record(2, "second");
  for (std::size_t size = kMagic.size() + 11 + 6; size < whole.size(); ++size) {
    const Walk seen = walk(whole.substr(0, size));
    EXPECT_FALSE(seen.ok);
    EXPECT_EQ(seen.records, (Records{{1, "first"}}));
  }
  EXPECT_FALSE(walk(kMagic + "\1\0\xff\xff\xff\xff"s).ok);
}

// ---- tensor headers

TensorDetails parse(RawFile& file, std::size_t number = 0) {
  const FileLocation location{"'f'", 0, file.bytes.size()};
  const FileHeader header = parse_file_header(file.bytes, location);
  const auto index_bytes = ConstBytes(file.bytes).subspan(kFileHeaderSize, header.index_size);
  Cancel cancel;
  const Index index(header, {index_bytes.begin(), index_bytes.end()}, location, cancel);
  const Entry& entry = index.entries()[number];
  return index.details(number, Bytes(file.bytes).subspan(entry.header_offset, entry.header_size()),
                       location);
}

std::string refusal(RawFile file) {
  const Error error = error_of([&] { parse(file); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
  EXPECT_TRUE(contains(error.what(), "'f': tensor 'weight' (index entry 0): its header at offset " +
                                         std::to_string(file.get("0.header_offset"))))
      << error.what();
  return error.what();
}

TEST(TensorHeader, IsRead) {
  RawFile file({RawTensor{.padding = 30}});
  const auto crc = static_cast<std::uint32_t>(file.get("0.h.crc32"));
  const TensorDetails header = parse(file);
  EXPECT_EQ(header.module_index, 7);
  EXPECT_EQ(header.dtype, DType::Float32);
  ASSERT_EQ(hashes_of(header.digests), (HashSet{Hash::Crc32, Hash::Sha256}));
  EXPECT_EQ(crc32_of(*header.digests[Hash::Crc32]), crc);
  EXPECT_NE(header.digests[Hash::Sha256]->at(0), std::byte{0});
  // The hashes cover the whole header, with the hash values zeroed.
  EXPECT_EQ(header.hashed[0].size() + header.hashed[1].size(), file.get("0.h.length"));
  EXPECT_EQ(file.get("0.h.crc32"), 0U);
  EXPECT_EQ(file.get("0.h.sha256"), 0U);
}

TEST(TensorHeader, MayHaveAnyHashes) {
  RawFile none({RawTensor{.crc32 = false, .sha256 = false}});
  EXPECT_EQ(hashes_of(parse(none).digests), HashSet());
  RawFile crc({RawTensor{.sha256 = false}});
  EXPECT_EQ(hashes_of(parse(crc).digests), HashSet{Hash::Crc32});
  RawFile sha({RawTensor{.crc32 = false}});
  EXPECT_EQ(hashes_of(parse(sha).digests), HashSet{Hash::Sha256});
}

TEST(TensorHeader, OfAnEncryptedFileLeavesItsCryptInfoOutOfTheHashes) {
  const std::string data(8, '\x5a');
  RawTensor sealed = sealed_tensor("weight", as_bytes(data), {.key = pattern(32)});
  sealed.dtype = "<f4";
  sealed.shape = {2};
  RawFile file({sealed}, 3);
  const std::uint64_t length = file.get("0.h.length");
  const std::uint64_t size = file.get("0.h.crypt_size");
  const TensorDetails header = parse(file);
  EXPECT_EQ(header.hashed[0].size() + header.hashed[1].size(), length - 8 - size);
  EXPECT_EQ(header.hashed[1].size(), 8U);
  EXPECT_EQ(header.crypt.nonce, nonce_of(1));
  EXPECT_EQ(header.crypt.chunk_size, 8U);
  file.set("0.h.crypt_size", size + 1);
  EXPECT_TRUE(contains(refusal(file), "is cut short"));
  file.set("0.h.crypt_size", ~std::uint64_t{0});
  EXPECT_TRUE(contains(refusal(file), "is cut short"));
}

TEST(TensorHeader, MustAgreeWithItsIndexEntry) {
  const RawFile good({RawTensor{.shape = {2, 1}}});
  const auto with = [&](const std::string& field, std::uint64_t value) {
    RawFile file = good;
    file.set(field, value);
    return refusal(file);
  };
  EXPECT_TRUE(contains(with("0.h.length", good.get("0.h.length") + 1), "does not have the length"));
  EXPECT_TRUE(contains(with("0.h.length", 0), "does not have the length"));
  EXPECT_TRUE(contains(with("0.h.type", 1), "another tensor type"));
  EXPECT_TRUE(contains(with("0.h.name", 'W'), "another name, 'W\\x00"));
  EXPECT_TRUE(contains(with("0.h.dimension1", 2), "another shape"));
  EXPECT_TRUE(contains(with("0.h.data_size", 4), "another data length"));
  EXPECT_TRUE(contains(with("0.h.data_size", ~std::uint64_t{0}), "another data length"));
  RawFile dtype = good;
  dtype.set_text("0.h.dtype", "<i4");
  EXPECT_TRUE(contains(refusal(dtype), "another dtype than its index entry, '<i4'"));
  dtype.set_text("0.h.dtype", ">f4");
  EXPECT_TRUE(contains(refusal(dtype), "unknown dtype, '>f4'"));
}

TEST(TensorHeader, HoldsNoFieldThatRunsPastItsEnd) {
  const RawFile good({RawTensor{}});
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, std::uint64_t>>{{"0.h.name_size", 0xffff},
                                                          {"0.h.dtype_size", 0xff},
                                                          {"0.h.dimensions", 0xff},
                                                          {"0.h.hash_section", 0xffff},
                                                          {"0.h.hashes", 3},
                                                          {"0.h.hashes", 0xff},
                                                          {"0.h.crc32_size", 0xff},
                                                          {"0.h.crc32_size", 3},
                                                          {"0.h.crc32_type", 2},
                                                          {"0.h.sha256_type", 0},
                                                          {"0.h.sha256_size", 31},
                                                          {"0.h.hash_section", 0},
                                                          {"0.h.hash_section", 40}}) {
    RawFile file = good;
    file.set(field, value);
    refusal(file);
  }
}

TEST(TensorHeader, TellsTheDTypeThatTheIndexLeavesOut) {
  RawFile file({RawTensor{.dtype = "<V4\0torch.complex32"s, .index_dtype = "<V4"}});
  EXPECT_EQ(parse(file).dtype, DType::Complex32);
  RawFile other_size({RawTensor{.dtype = "<V2\0torch.bfloat16"s, .index_dtype = "<V4"}});
  EXPECT_TRUE(contains(refusal(other_size), "another dtype than its index entry"));
  RawFile nowhere({RawTensor{.dtype = "<V4"}});
  EXPECT_TRUE(contains(refusal(nowhere), "unknown dtype, '<V4'"));
}

TEST(TensorHeader, NeverBreaksTheParser) {
  const RawFile good({RawTensor{.shape = {2, 1}, .padding = 3}});
  const std::size_t begin = good.get("0.header_offset");
  const std::size_t size = good.get("0.h.length");
  Dice dice(9);
  for (int round = 0; round < 20000; ++round) {
    RawFile file = good;
    for (std::uint64_t changes = 1 + dice.below(3); changes > 0; --changes) {
      file.bytes[begin + 8 + dice.below(size - 8)] = static_cast<std::byte>(dice.below(256));
    }
    try {
      const TensorDetails header = parse(file);
      EXPECT_LE(header.hashed[0].size() + header.hashed[1].size(), size);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
    }
  }
}

// ---- the names that programs use

std::vector<std::string> cleaned(const std::vector<std::pair<std::string, TensorType>>& stored) {
  std::vector<NamedEntry> entries;
  for (const auto& [name, type] : stored) {
    entries.push_back({name, type, static_cast<std::uint32_t>(entries.size())});
  }
  const std::vector<std::string_view> names = clean_names(entries);
  return {names.begin(), names.end()};
}

TEST(CleanNames, DropTheDotOfARootModule) {
  using enum TensorType;
  using Names = std::vector<std::string>;
  EXPECT_EQ(cleaned({}), Names{});
  EXPECT_EQ(cleaned({{"a.w", Parameter}, {"b", StateDictEntry}}), (Names{"a.w", "b"}));
  EXPECT_EQ(cleaned({{".w", Parameter}, {".mean", Buffer}, {"a.w", Parameter}}),
            (Names{"w", "mean", "a.w"}));
  EXPECT_EQ(cleaned({{".w", StateDictEntry}, {".v", Parameter}}), (Names{".w", "v"}));
  EXPECT_EQ(cleaned({{".", Parameter}}), (Names{"."}));
  EXPECT_EQ(cleaned({{"..w", Parameter}}), (Names{".w"}));
}

TEST(CleanNames, NeverMakeTwoNamesEqual) {
  using enum TensorType;
  using Names = std::vector<std::string>;
  EXPECT_EQ(cleaned({{".w", Parameter}, {"w", Buffer}}), (Names{".w", "w"}));
  EXPECT_EQ(cleaned({{"..w", Parameter}, {".w", Parameter}}), (Names{"..w", "w"}));
  Dice dice(5);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::pair<std::string, TensorType>> stored;
    std::set<std::string> names;
    for (int i = 0; i < 6; ++i) {
      std::string name(dice.below(4), '.');
      name += dice.one_in(2) ? "w" : "v";
      if (!names.insert(name).second) continue;
      stored.emplace_back(name, static_cast<TensorType>(dice.below(3)));
    }
    const std::vector<std::string> clean = cleaned(stored);
    EXPECT_EQ(std::set(clean.begin(), clean.end()).size(), stored.size());
  }
}

}  // namespace
}  // namespace tensorizer
