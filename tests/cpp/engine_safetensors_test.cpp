// Saves of safetensors files: every setting gives the same bytes, which load as what was saved.
#include "chunked_file.h"
#include "codec/hmac.h"
#include "engine/save/new_layout.h"
#include "format/safetensors/dtype.h"
#include "format/safetensors/layout.h"
#include "round_trip.h"

namespace tensorizer {
namespace {

using namespace testing_support;

std::vector<Sample> safetensors_samples(Dice& dice) {
  std::vector<Sample> samples = samples_of_all_sizes(dice);
  std::erase_if(samples, [](const Sample& each) {
    return each.spec.meta || safetensors_dtype(each.spec.dtype).empty();
  });
  samples.push_back(sample("quote \" slash \\ tab \t nul ", 3));
  samples.back().spec.name += '\0';
  return samples;
}

SafetensorsLayout layout_in(std::span<const Sample> samples, FileKind kind) {
  SafetensorsLayout layout(std::move(kind));
  for (const Sample& each : samples) layout.add(each.spec);
  return layout;
}

// Returns kinds of files: without digests, with those of tensors, of chunks, and both.
std::vector<FileKind> kinds() {
  return {FileKind{}, FileKind{{{Hash::Sha256}, {}}, false}, chunked(kChunk, {}),
          chunked(kChunk, {false, true})};
}

std::vector<std::byte> saved_in(std::span<const Sample> samples, const FileKind& kind,
                                const SaveSettings& settings, bool staged, bool sequential) {
  MemorySink sink(sequential);
  SafetensorsLayout layout = layout_in(samples, kind);
  save(samples, sink, layout, settings, staged);
  EXPECT_TRUE(sink.finished);
  return std::move(sink.bytes);
}

TEST(SafetensorsSave, GivesTheSameBytesInEveryWay) {
  Dice dice(2001);
  const std::vector<Sample> samples = safetensors_samples(dice);
  for (FileKind kind : kinds()) {
    const bool hashed = kind.header.hashes.has(Hash::Sha256);
    kind.metadata = {{"format", "pt"}, {"\"", "\x1f"}};
    const std::vector<std::byte> expected = saved_in(samples, kind, {}, false, false);
    for (const bool sequential : {false, true}) {
      for (const bool staged : {false, true}) {
        for (const int threads : {1, 3}) {
          for (const std::uint64_t ceiling : {std::uint64_t{0}, std::uint64_t{64} << 20}) {
            SaveSettings settings;
            settings.threads = threads;
            settings.memory_ceiling = ceiling;
            EXPECT_TRUE(same(saved_in(samples, kind, settings, staged, sequential), expected));
          }
        }
      }
    }
    const auto source = memory_source(expected, nullptr);
    Cancel cancel;
    const auto catalogue = read_catalogue(*source, nullptr, cancel);
    ASSERT_EQ(catalogue->entries().size(), samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const Entry& entry = catalogue->entries()[i];
      EXPECT_EQ(entry.name, samples[i].spec.name);
      EXPECT_EQ(entry.dtype, samples[i].spec.dtype);
      EXPECT_TRUE(std::ranges::equal(entry.shape, samples[i].spec.shape));
    }
    ASSERT_EQ(catalogue->metadata().size(), 2U);
    EXPECT_EQ(catalogue->metadata()[1], MetadataPair("\"", "\x1f"));
    LoadSettings settings;
    expect_loaded(*source, *catalogue, samples, all_of(samples), Into::Mixed, settings);
    EXPECT_EQ(catalogue->data_digests().empty(), !hashed);
    EXPECT_EQ(catalogue->chunk_digests().chunk_size(), kind.chunk_size);
    if (!hashed && kind.chunk_size == 0) continue;
    settings.threads = 2;
    for (const Verify verify : {Verify::Crc32, Verify::All}) {
      settings.verify = verify;
      expect_loaded(*source, *catalogue, samples, all_of(samples), Into::Mixed, settings);
    }
    for (std::size_t i = 0; hashed && i < samples.size(); ++i) {
      EXPECT_TRUE(same(catalogue->data_digests().subspan(i * kSha256Size, kSha256Size),
                       sha256(samples[i].data)));
    }
  }
}

TEST(SafetensorsSave, WritesTheHeaderOfTheFormat) {
  std::vector<Sample> samples{sample("w", 6), sample("none", 0)};
  const std::vector<std::byte> file = saved_in(samples, {}, {}, false, false);
  const std::string json = R"({"w":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},)"
                           R"("none":{"dtype":"U8","shape":[0],"data_offsets":[6,6]}})";
  const std::uint64_t padded = align_up(8 + json.size(), 8) - 8;
  ASSERT_EQ(file.size(), 8 + padded + 6);
  EXPECT_EQ(Cursor(file).take<std::uint64_t>(), padded);
  EXPECT_EQ(as_text(file).substr(8, json.size()), json);
  EXPECT_EQ(as_text(file).substr(8 + json.size(), padded - json.size()),
            std::string(padded - json.size(), ' '));
  EXPECT_EQ(as_text(saved_in({}, {}, {}, false, false)).substr(8), "{}      ");
}

class SafetensorsDigests : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(OfTensorsAndChunks, SafetensorsDigests, testing::Bool());

TEST_P(SafetensorsDigests, FindDamagedData) {
  Dice dice(2002);
  const std::vector<Sample> samples = safetensors_samples(dice);
  const bool in_chunks = GetParam();
  const FileKind kind = kinds()[in_chunks ? 2 : 1];
  std::vector<std::byte> file = saved_in(samples, kind, {}, false, false);
  const auto source = memory_source(file, nullptr);
  Cancel cancel;
  const auto catalogue = read_catalogue(*source, nullptr, cancel);
  const std::uint64_t begin = catalogue->entries().front().data_offset;
  LoadSettings settings;
  settings.threads = 2;
  for (int i = 0; i < 50; ++i) {
    settings.verify = i % 2 == 0 ? Verify::All : Verify::Crc32;
    const std::uint64_t at = begin + dice.below(file.size() - begin);
    file[at] ^= std::byte{1};
    std::vector<LoadItem> items;
    for (std::uint32_t entry = 0; entry < samples.size(); ++entry) {
      items.push_back(whole_tensor(*catalogue, entry));
    }
    Progress progress;
    Cancel fresh;
    const Error error =
        error_of([&] { load(*source, *catalogue, items, settings, progress, fresh); });
    file[at] ^= std::byte{1};
    EXPECT_EQ(error.kind(), ErrorKind::HashMismatch);
  }
}

// A file of two tensors with one list of digests.
struct ListedFile {
  explicit ListedFile(bool in_chunks) {
    const std::vector<Sample> samples{sample("a", 3), sample("b", 3, 2)};
    bytes = saved_in(samples, kinds()[in_chunks ? 2 : 1], {}, false, false);
    json = as_text(bytes).substr(8, Cursor(bytes).take<std::uint64_t>());
    const std::string before =
        in_chunks ? R"("tensorizer_ops.sha256.chunks":"65536:)" : R"("tensorizer_ops.sha256":")";
    key = json.find(before);
    digest = key + before.size();
  }

  std::unique_ptr<Catalogue> read(const std::string& other) const {
    std::vector<std::byte> changed;
    ByteWriter out(changed);
    out.put(static_cast<std::uint64_t>(other.size()));
    out.put_bytes(as_bytes(other));
    out.put_bytes(ConstBytes(bytes).last(6));
    Cancel cancel;
    return read_catalogue(*memory_source(changed, nullptr), nullptr, cancel);
  }

  std::vector<std::byte> bytes;
  std::string json;
  std::size_t key;     // where it begins in the JSON
  std::size_t digest;  // where the first one begins
};

TEST_P(SafetensorsDigests, OfOtherTensorsCountAsNone) {
  const ListedFile file(GetParam());
  const auto replaced = [&](std::string_view old, const char* by) {
    std::string other = file.json;
    return other.replace(other.find(old), old.size(), by);
  };
  for (const std::string& other : {replaced("\"b\":", "\"c\":"), replaced("\"U8\"", "\"I8\""),
                                   replaced("\"shape\":[3]", "\"shape\":[3,1]")}) {
    const auto catalogue = file.read(other);
    EXPECT_TRUE(catalogue->data_digests().empty());
    EXPECT_TRUE(catalogue->chunk_digests().empty()) << other;
    EXPECT_TRUE(catalogue->metadata().empty());
  }
}

TEST_P(SafetensorsDigests, ThatAreDamagedAreAnError) {
  const bool in_chunks = GetParam();
  const ListedFile file(in_chunks);
  const std::string& json = file.json;
  const std::size_t digest = file.digest;
  std::vector<std::string> damaged{json.substr(0, digest) + json.substr(digest + 64),
                                   json.substr(0, digest) + json.substr(digest + 2),
                                   json.substr(0, digest) + "zz" + json.substr(digest + 2),
                                   json.substr(0, digest) + json.substr(digest + 64, 64) +
                                       json.substr(digest, 64) + json.substr(digest + 128),
                                   json.substr(0, digest) + json.substr(json.find('"', digest))};
  for (std::size_t at = digest; json[at] != '"'; ++at) {
    damaged.push_back(json);
    damaged.back()[at] = json[at] == '0' ? '1' : '0';
  }
  if (in_chunks) {
    const std::size_t size = digest - std::string_view("65536:").size();
    for (const char* const begin : {"131072:", "65537:", "0:", ":", "x:", "65536", ""}) {
      damaged.push_back(json.substr(0, size) + begin + json.substr(digest));
    }
  }
  const std::string place = "digests of its data in its '__metadata__' are damaged at offset " +
                            std::to_string(9 + file.key);
  for (const std::string& other : damaged) {
    const Error error = error_of([&] { file.read(other); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
    EXPECT_TRUE(contains(error.what(), place)) << error.what();
  }
  const std::string list = json.substr(file.key, json.find('"', digest) + 1 - file.key);
  const std::string twice = json.substr(0, file.key) + list + "," + json.substr(file.key);
  const Error error = error_of([&] { file.read(twice); });
  EXPECT_TRUE(contains(error.what(), "twice")) << error.what();
}

TEST(Metadata, IsTextWithoutRepetition) {
  const auto refused = [](const Metadata& metadata, const char* why) {
    for (const Format format : {Format::Tensors, Format::Safetensors}) {
      FileKind kind;
      kind.metadata = metadata;
      Cancel cancel;
      const Error error = error_of([&] { kind_in(format, kind, cancel); });
      EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
      EXPECT_TRUE(contains(error.what(), why)) << error.what();
    }
  };
  refused({{"a", "1"}, {"b", "2"}, {"a", "3"}}, "the key 'a' appears twice");
  refused({{"\xff", ""}}, "the key '\\xff' is not UTF-8");
  refused({{"a", "\xff"}}, "the value of 'a' is not UTF-8");
  refused({{"a", std::string(100'000'000, 'x')}}, "at most 100000000 are allowed");
}

}  // namespace
}  // namespace tensorizer
