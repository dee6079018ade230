// Ties: names that share the data of a tensor, in files that are written, read, and made by an
// attacker.
#include <limits>

#include "codec/hmac.h"
#include "encrypted_file.h"
#include "format/model_digest.h"
#include "format/tensors/frame.h"
#include "memory_watch.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using namespace std::string_literals;

const std::string kMagic(kFrameMagic);
constexpr std::uint8_t kEntryType = 2;

std::string tie(std::uint32_t number, std::uint32_t entry, std::string_view name,
                std::uint8_t type = kEntryType, std::uint16_t module_index = 0) {
  return RawFields()
      .put(number)
      .put(entry)
      .put(module_index)
      .put(type)
      .put(static_cast<std::uint16_t>(name.size()))
      .put(name);
}

std::string record(std::string_view body) {
  return RawFields().put(kTiesRecord).put(static_cast<std::uint32_t>(body.size())).put(body);
}

// Tensors 'a' and 'b' with data, and 'none' without.
std::vector<RawTensor> three() {
  return {RawTensor{.name = "a"}, RawTensor{.name = "b"},
          RawTensor{.name = "none", .shape = {0}, .data = ""}};
}

RawFile file_with(std::string_view ties) { return RawFile(three(), 1, kMagic + record(ties)); }

std::string refusal(std::string_view ties) {
  const MemoryWatch watch;
  const RawFile file = file_with(ties);
  const Error error = error_of([&] { read(file.bytes); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
  EXPECT_LT(watch.peak(), 1U << 20);
  return error.what();
}

std::vector<std::string> names_of(const Catalogue& catalogue) {
  std::vector<std::string> names;
  for (const NamedEntry& named : all_names(catalogue)) names.emplace_back(named.name);
  return names;
}

using Names = std::vector<std::string>;

TensorSpec named(std::string name, TensorType type = TensorType::StateDictEntry,
                 std::uint16_t module_index = 0) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.type = type;
  spec.module_index = module_index;
  return spec;
}

// ---- what is written is read

// A file of first, tied, second, nested and .dotted, of which the middle ones are tied.
std::vector<std::byte> saved_with_ties(FileKind kind) {
  const std::vector<Sample> samples{sample("first", 3), sample("second", 300, 2)};
  kind.share = true;
  TensorsLayout layout(kind, 0);
  layout.add(samples[0].spec);
  layout.tie(named("tied", TensorType::StateDictEntry, 7), 0);
  layout.add(samples[1].spec);
  layout.tie(named("\x1e[\"nested\",0]"), 1);
  layout.tie(named(".dotted", TensorType::Buffer), 0);
  Cancel cancel;
  layout.check_names(cancel);
  MemorySink sink;
  Progress progress;
  save_file(sink, layout, std::vector<SaveItem>{{samples[0].data, {}}, {samples[1].data, {}}}, {},
            progress, cancel);
  return std::move(sink.bytes);
}

TEST(Ties, AreReadAsTheyWereWritten) {
  for (const FileKind& kind : {FileKind{}, FileKind{{}, false, {{"key", "value"}}},
                               FileKind{{{Hash::Crc32, Hash::Sha256}, {}}, true}, encrypted()}) {
    const std::vector<std::byte> file = saved_with_ties(kind);
    FileKeys keys = keys_of(key_of());
    const Index index = read_with(file, kind.header.encryption ? &keys : nullptr);
    EXPECT_EQ(names_of(index), Names({"first", "tied", "second", "\x1e[\"nested\",0]", ".dotted"}));
    ASSERT_EQ(index.ties().size(), 3U);
    EXPECT_EQ(index.ties()[0].module_index, 7);
    EXPECT_EQ(index.ties()[2].type, TensorType::Buffer);
    EXPECT_EQ(index.entries().size(), 2U);
    EXPECT_EQ(clean_names(all_names(index)).back(), "dotted");
    const std::vector<std::uint32_t> entries{0, 0, 1, 1, 0};
    for (std::uint32_t number = 0; number < 5; ++number) {
      EXPECT_EQ(index.named(number).name, all_names(index)[number].name);
      EXPECT_EQ(index.named(number).type, all_names(index)[number].type);
      EXPECT_EQ(index.named(number).entry, entries[number]);
      EXPECT_EQ(index.tie(number) == nullptr, number == 0 || number == 2);
    }
    EXPECT_EQ(index.number_of(0), 0U);
    EXPECT_EQ(index.number_of(1), 2U);
    EXPECT_EQ(index.metadata().size(), kind.metadata.size());
    EXPECT_EQ(load_all(file, kind.header.encryption ? &keys : nullptr).tensors[1], pattern(300, 2));
  }
}

TEST(Ties, MayComeBeforeTheirTensors) {
  const RawFile file = file_with(tie(0, 1, "x") + tie(1, 0, "y") + tie(4, 1, "z"));
  const Index index = read(file.bytes);
  EXPECT_EQ(names_of(index), Names({"x", "y", "a", "b", "z", "none"}));
  for (std::uint32_t number = 0; number < 6; ++number) {
    EXPECT_EQ(index.named(number).name, names_of(index)[number]);
  }
  for (std::uint32_t entry = 0; entry < 3; ++entry) {
    EXPECT_EQ(index.named(index.number_of(entry)).name, index.entries()[entry].name);
  }
}

TEST(Ties, AreNotInFilesWithoutAny) {
  FileKind kind;
  kind.share = true;
  const std::vector<Sample> samples{sample("first", 3)};
  EXPECT_EQ(saved_as(samples, kind), saved_as(samples, {}));
}

TEST(Ties, FindRoomInThePrefix) {
  FileKind kind;
  kind.share = true;
  // The prefix ends on a multiple of 4 KiB, which the record reaches with one of these names.
  for (std::size_t size = 3800; size < 4096; ++size) {
    TensorsLayout layout(kind, 0);
    layout.add(sample("first", 3).spec);
    layout.tie(named(std::string(size, 'n')), 0);
    std::vector<std::byte> file = layout.prefix(0, layout.prefix_size());
    file.resize(file.size() + layout.file_size());
    ASSERT_EQ(read(file).named(1).name.size(), size);
  }
}

TEST(Ties, HaveTheNamesOfTensors) {
  FileKind kind;
  kind.share = true;
  TensorsLayout layout(kind, 0);
  layout.add(sample("first", 3).spec);
  for (const TensorSpec& spec :
       {named(""), named("\xff"), named("\x1e[]"), named(std::string(65536, 'n')),
        named("\x1e[\"a\",1]", TensorType::Buffer)}) {
    EXPECT_EQ(kind_of([&] { layout.tie(spec, 0); }), ErrorKind::InvalidArgument) << spec.name;
  }
  layout.tie(named("first"), 0);
  Cancel cancel;
  EXPECT_TRUE(contains(message_of([&] { layout.check_names(cancel); }), "'first'"));
}

TEST(Ties, CountAsTensorsInTheDigestOfTheModel) {
  const std::vector<Sample> expanded{sample("b", 6, 2), sample("a", 6, 1), sample("c", 6, 1)};
  const std::vector<Sample> stored{expanded[0], expanded[1]};
  const auto digests_of = [](std::span<const Sample> samples) {
    std::vector<std::byte> digests;
    for (const Sample& each : samples) ByteWriter(digests).put_bytes(sha256(each.data));
    return digests;
  };
  Cancel cancel;
  const auto digest_of = [&](const Layout& layout, std::span<const Sample> samples) {
    std::vector<std::byte> file = layout.prefix(0, layout.prefix_size());
    file.resize(file.size() + layout.file_size());
    return model_digest(read(file), digests_of(samples), cancel);
  };
  const TensorsLayout one_by_one = layout_as(expanded, {});
  FileKind kind;
  kind.share = true;
  TensorsLayout shared = layout_as(stored, kind);
  shared.tie(named("c"), 1);
  EXPECT_EQ(digest_of(shared, stored), digest_of(one_by_one, expanded));
  TensorsLayout other = layout_as(stored, kind);
  other.tie(named("c"), 0);
  EXPECT_NE(digest_of(other, stored), digest_of(one_by_one, expanded));
}

TEST(Ties, AreAuthenticatedInEncryptedFiles) {
  std::vector<std::byte> file = saved_with_ties(encrypted());
  FileKeys keys = keys_of(key_of());
  const std::size_t body = as_text(file).find("tied") - 13;
  for (std::size_t at = body; at < body + 17; ++at) {
    file[at] ^= std::byte{1};
    const Error error = error_of([&] { read_with(file, &keys); });
    EXPECT_TRUE(error.kind() == ErrorKind::Crypto || error.kind() == ErrorKind::InvalidFormat);
    file[at] ^= std::byte{1};
  }
  read_with(file, &keys);
}

// ---- what an attacker writes

TEST(HostileTies, HaveATensorWithData) {
  EXPECT_EQ(read(file_with(tie(3, 1, "x")).bytes).named(3).entry, 1U);
  EXPECT_TRUE(contains(refusal(tie(3, 3, "x")), "a tie, 'x', to index entry 3 of 3"));
  EXPECT_TRUE(contains(refusal(tie(3, 0xffffffff, "x")), "to index entry 4294967295 of 3"));
  EXPECT_TRUE(contains(refusal(tie(3, 2, "x")), "'none' (index entry 2), which has no data"));
  // A tie to itself or to another tie is one to an index entry that does not exist.
  EXPECT_TRUE(contains(refusal(tie(3, 0, "x") + tie(4, 3, "y")), "to index entry 3 of 3"));
  const RawTensor deep{.name = "deep", .shape = std::vector<std::uint64_t>(17, 1), .data = "data"};
  const RawFile file({deep}, 1, kMagic + record(tie(1, 0, "x")));
  EXPECT_TRUE(contains(message_of([&] { read(file.bytes); }), "which has 17 dimensions"));
  // Of a dtype that only the tensor's header has, a stream could not say what the tie is.
  const RawTensor bare{
      .name = "bare", .dtype = "<V2\0torch.bfloat16"s, .data = "data", .index_dtype = "<V2"};
  const RawFile second({bare}, 2, kMagic + record(tie(1, 0, "x")));
  EXPECT_TRUE(contains(message_of([&] { read(second.bytes); }), "whose dtype is not in the index"));
}

TEST(HostileTies, AreNumberedInOrderAndWithoutGaps) {
  const std::string order = "does not list its ties in the order of their numbers";
  EXPECT_TRUE(contains(refusal(tie(3, 0, "x") + tie(3, 0, "y")), order));
  EXPECT_TRUE(contains(refusal(tie(3, 0, "x") + tie(2, 0, "y")), order));
  EXPECT_TRUE(contains(refusal(tie(4, 0, "x")), "numbers a tie 4, and there are 4 names"));
  EXPECT_TRUE(contains(refusal(tie(0, 0, "x") + tie(0xffffffff, 0, "y")), "and there are 5 names"));
  read(file_with(tie(3, 0, "x") + tie(4, 0, "y")).bytes);
}

TEST(HostileTies, HaveValidNamesOfTheirOwn) {
  EXPECT_TRUE(contains(refusal(tie(3, 0, "")), "whose name "));
  EXPECT_TRUE(contains(refusal(tie(3, 0, "\xff")), "whose name is not UTF-8"));
  EXPECT_TRUE(contains(refusal(tie(3, 0, "\x1e[")), "whose name "));
  EXPECT_TRUE(contains(refusal(tie(3, 0, "x", 3)), "with the unknown tensor type 3"));
  EXPECT_TRUE(contains(refusal(tie(3, 0, "\x1e[\"l\",1]", 1)), "nested name"));
  for (const char* name : {"a", "b", "none"}) {
    EXPECT_TRUE(contains(refusal(tie(3, 0, name)),
                         "tie "s + quote(name) + " (to index entry 0) has the same name as"));
  }
  EXPECT_TRUE(contains(refusal(tie(3, 0, "x") + tie(4, 1, "x")),
                       "tie 'x' (to index entry 1) has the same name as tie 'x' (to index entry"));
  EXPECT_TRUE(contains(refusal(tie(3, 0, "\x1e[\"a\",1]")), "tie "));
  EXPECT_TRUE(
      contains(refusal(tie(3, 0, "\x1e[\"x\",1]") + tie(4, 0, "\x1e[\"x\",\"y\"]")), "tie "));
}

TEST(HostileTies, AreNeitherLongerNorShorter) {
  const std::string two = tie(3, 0, "x") + tie(4, 1, "second");
  for (std::size_t size = 1; size < two.size(); ++size) {
    if (size == tie(3, 0, "x").size()) continue;
    EXPECT_TRUE(contains(refusal(two.substr(0, size)), "is cut short")) << size;
  }
  EXPECT_TRUE(contains(refusal(two + "x"), "is cut short"));
  std::string longer = two;
  longer[11] = '\xff';  // the length of the first name
  EXPECT_TRUE(contains(refusal(longer), "is cut short"));
  const RawFile twice(three(), 1, kMagic + record(tie(3, 0, "x")) + record(tie(4, 0, "y")));
  EXPECT_TRUE(contains(message_of([&] { read(twice.bytes); }), "appears twice"));
}

TEST(HostileTies, AreRefusedOrConsistentAfterAnyChange) {
  const std::vector<std::byte> good = saved_with_ties({});
  Dice dice(5);
  const std::size_t begin = as_text(good).find(kFrameMagic);
  std::size_t read_anyway = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::byte> file = good;
    for (std::uint64_t changes = 1 + dice.below(3); changes > 0; --changes) {
      file[begin + dice.below(90)] = static_cast<std::byte>(dice.below(256));
    }
    try {
      const Index index = read(file);
      ++read_anyway;
      for (std::uint32_t number = 0; number < index.name_count(); ++number) {
        EXPECT_LT(index.named(number).entry, index.entries().size());
        EXPECT_GT(index.entries()[index.named(number).entry].data_size, 0U);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
    }
  }
  EXPECT_GT(read_anyway, 0U);
}

// A file of one tensor can have as many names as its size justifies, and no more memory is taken.
TEST(HostileTies, TakeMemoryAsTensorsDo) {
  constexpr std::uint32_t kCount = 100'000;
  std::string ties;
  for (std::uint32_t i = 0; i < kCount; ++i) ties += tie(i + 3, 0, std::to_string(i));
  const RawFile file = file_with(ties);
  const MemoryWatch watch;
  const Index index = read(file.bytes);
  EXPECT_LT(watch.peak(), 400U * kCount);
  EXPECT_EQ(index.named(kCount).name, std::to_string(kCount - 3));
  Cancel cancel;
  const std::vector<std::byte> digests(3 * kSha256Size);
  const MemoryWatch second;
  model_digest(index, digests, cancel);
  EXPECT_LT(second.peak(), 100U * kCount);
}

}  // namespace
}  // namespace tensorizer
