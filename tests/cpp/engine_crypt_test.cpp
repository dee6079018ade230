// Encrypted files through the engine: saved in every way and loaded in every way, they hold what
// was saved, and so do files of other programs.
#include <chrono>
#include <set>
#include <thread>

#include "encrypted_file.h"
#include "round_trip.h"

namespace tensorizer {
namespace {

using namespace testing_support;

constexpr std::size_t kMiB = 1 << 20;

// Returns samples of all sizes, some of them of several chunks.
std::vector<Sample> samples_of_all_chunks(Dice& dice) {
  std::vector<Sample> samples = samples_of_all_sizes(dice);
  std::uint32_t seed = 100;
  for (const std::size_t size : {2 * kMiB - 1, 2 * kMiB, 2 * kMiB + 1, 4 * kMiB, 5 * kMiB + 48}) {
    Sample large = sample("chunks of " + std::to_string(size), size, ++seed);
    samples.insert(samples.begin() + static_cast<std::ptrdiff_t>(dice.below(samples.size())),
                   std::move(large));
  }
  return samples;
}

LoadSettings settings_with(FileKeys* keys, Verify verify, int threads, std::uint64_t ceiling = 0) {
  LoadSettings settings;
  settings.keys = keys;
  settings.verify = verify;
  settings.threads = threads;
  settings.memory_ceiling = ceiling;
  settings.zero_incomplete = [](std::uint32_t) { ADD_FAILURE() << "a tensor was incomplete"; };
  return settings;
}

TEST(EncryptedRoundTrip, OfEverySizeInEveryWay) {
  Dice dice(71);
  const std::vector<Sample> samples = samples_of_all_chunks(dice);
  FileKeys keys = keys_of(key_of());
  for (const bool sequential : {false, true}) {
    for (const bool staged : {false, true}) {
      for (const HashKinds hashes : {HashKinds{false, true}, HashKinds{false, false}}) {
        FileKind kind = encrypted(hashes);
        kind.data_digests = dice.one_in(2);
        SaveSettings settings;
        settings.threads = static_cast<int>(1 + dice.below(4));
        settings.memory_ceiling = dice.pick(std::vector<std::uint64_t>{0, 1 << 20, 64 << 20});
        MemorySink sink(sequential);
        save(samples, sink, kind, settings, staged);
        ASSERT_TRUE(sink.finished);
        const auto source = memory_source(sink.bytes, nullptr);
        Index index = index_of(*source, &keys);
        expect_loaded(*source, index, samples, all_of(samples), Into::Mixed,
                      settings_with(&keys, Verify::None, static_cast<int>(1 + dice.below(4)),
                                    settings.memory_ceiling));
        if (!hashes.sha256) continue;
        expect_loaded(*source, index, samples, all_of(samples), Into::Memory,
                      settings_with(&keys, Verify::All, static_cast<int>(1 + dice.below(4))));
      }
    }
  }
}

TEST(EncryptedRoundTrip, LoadsInEveryWay) {
  Dice dice(72);
  const std::vector<Sample> samples = samples_of_all_chunks(dice);
  const std::vector<std::byte> file = saved_as(samples, encrypted({true, true}));
  FileKeys keys = keys_of(key_of());
  const auto source = memory_source(file, nullptr);
  Index index = index_of(*source, &keys);
  for (const Verify verify : {Verify::None, Verify::Crc32, Verify::All}) {
    for (const Into into : {Into::Memory, Into::Staged, Into::Mixed}) {
      for (const int threads : {1, 4}) {
        std::vector<std::uint32_t> chosen = all_of(samples);
        if (threads == 4) {
          for (std::size_t i = chosen.size(); i > 1; --i) {
            std::swap(chosen[i - 1], chosen[dice.below(i)]);
          }
          chosen.resize(1 + dice.below(chosen.size()));
        }
        expect_loaded(*source, index, samples, chosen, into,
                      settings_with(&keys, verify, threads,
                                    dice.pick(std::vector<std::uint64_t>{0, 1 << 20, 64 << 20})));
      }
    }
  }
}

TEST(EncryptedRoundTrip, FromASourceThatGivesItsBytesInOrder) {
  Dice dice(73);
  const std::vector<Sample> samples = samples_of_all_chunks(dice);
  const std::vector<std::byte> file = saved_as(samples, encrypted());
  FileKeys keys = keys_of(key_of());
  for (const Into into : {Into::Memory, Into::Staged}) {
    for (const int threads : {1, 3}) {
      SequentialSource source(file);
      Index index = index_of(source, &keys);
      expect_loaded(source, index, samples, all_of(samples), into,
                    settings_with(&keys, threads == 1 ? Verify::None : Verify::All, threads));
    }
  }
}

// A private mapping is decrypted in place.
TEST(EncryptedRoundTrip, InPlace) {
  Dice dice(74);
  const std::vector<Sample> samples = samples_of_all_chunks(dice);
  const std::vector<std::byte> file = saved_as(samples, encrypted());
  FileKeys keys = keys_of(key_of());
  const auto source = memory_source(file, nullptr);
  Index index = index_of(*source, &keys);
  for (const int threads : {1, 3}) {
    std::vector<std::byte> mapping = file;
    std::vector<LoadItem> items;
    for (std::uint32_t i = 0; i < samples.size(); ++i) {
      const Entry& entry = index.entries()[i];
      const Bytes stored = Bytes(mapping).subspan(entry.data_offset, entry.data_size);
      items.push_back(item_into(index, i, stored));
      items.back().in_place = true;
    }
    LoadSettings settings = settings_with(&keys, Verify::All, threads);
    settings.mapping = mapping;
    Progress progress;
    Cancel cancel;
    load(*source, index, items, settings, progress, cancel);
    for (std::uint32_t i = 0; i < samples.size(); ++i) {
      EXPECT_TRUE(same(items[i].memory, samples[i].data)) << samples[i].spec.name;
    }
  }
}

TEST(EncryptedRoundTrip, ByAPassphrase) {
  const std::vector<Sample> samples{sample("small", 100), sample("none", 0),
                                    sample("large", 5 * kMiB)};
  const std::vector<std::byte> file = saved_as(samples, encrypted("sesame", derivation_of(9)));
  for (const int threads : {1, 3}) {
    FileKeys keys = keys_of(make_passphrase(as_bytes("sesame")));
    const auto source = memory_source(file, nullptr);
    Index index = index_of(*source, &keys);
    expect_loaded(*source, index, samples, all_of(samples), Into::Mixed,
                  settings_with(&keys, Verify::All, threads));
  }
}

// A source that delays every read that starts with a header.
class LateHeaders final : public UnsizedSource {
 public:
  using UnsizedSource::UnsizedSource;

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    if (pieces.size() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    UnsizedSource::read(offset, pieces, cancel);
  }
};

// The nonce and the MACs of all strips arrive with the first strip.
TEST(EncryptedRoundTrip, WaitsForAHeaderThatIsLate) {
  const std::vector<Sample> samples{sample("large", 5 * kMiB)};
  std::vector<std::byte> file = saved_as(samples, encrypted());
  FileKeys keys = keys_of(key_of());
  {
    LateHeaders source(file);
    Index index = index_of(source, &keys);
    expect_loaded(source, index, samples, all_of(samples), Into::Memory,
                  settings_with(&keys, Verify::All, 3));
  }
  file[read_with(file, &keys).entries()[0].header_offset] ^= std::byte{1};
  LateHeaders source(file);
  LoadSettings settings;
  settings.threads = 3;
  const Loading loading = load_all(source, &keys, settings);
  ASSERT_TRUE(loading.error);
  EXPECT_EQ(loading.error->kind(), ErrorKind::Crypto);
  EXPECT_TRUE(loading.incomplete[0]);
}

// The file holds nothing of the plaintext, and no two files are equal.
TEST(EncryptedFile, HidesItsData) {
  std::vector<Sample> samples{sample("zeros", 3 * kMiB), sample("more zeros", 3 * kMiB)};
  for (Sample& each : samples) std::fill(each.data.begin(), each.data.end(), std::byte{0});
  const std::vector<std::byte> file = saved_as(samples, encrypted());
  const Index index = read_with(file, nullptr);
  std::set<std::string_view> blocks;
  for (const Entry& entry : index.entries()) {
    const std::string_view data = as_text(file).substr(entry.data_offset, entry.data_size);
    for (std::size_t at = 0; at < data.size(); at += 64) {
      EXPECT_TRUE(blocks.insert(data.substr(at, 64)).second) << at;
    }
  }
  EXPECT_FALSE(same(file, saved_as(samples, encrypted())));
}

// The digests of the data are those of the plaintext.
TEST(EncryptedFile, KeepsTheDigestsOfWhatItHides) {
  const std::vector<Sample> samples{sample("small", 100), sample("none", 0),
                                    sample("large", 5 * kMiB)};
  FileKind kind = encrypted();
  kind.data_digests = true;
  const std::vector<std::byte> file = saved_as(samples, kind);
  kind.header.encryption.reset();
  const std::vector<std::byte> plain = saved_as(samples, kind);
  EXPECT_TRUE(same(read_with(file, nullptr).data_digests(), read(plain).data_digests()));
}

// ---- files of other programs

TEST(ForeignFile, OfAnyChunkSizeIsLoaded) {
  const KeySource key = key_of();
  for (const std::uint64_t chunk_size :
       {std::uint64_t{1024}, std::uint64_t{4160}, std::uint64_t{65536}, std::uint64_t{2} << 20,
        std::uint64_t{3} << 20, std::uint64_t{1} << 30, std::uint64_t{0}}) {
    const std::vector<Sample> samples{sample("first", 700, 2), sample("large", 5 * kMiB + 5, 3),
                                      sample("last", 9000, 4)};
    std::vector<RawTensor> tensors;
    Sealing how{.key = pattern(32, 41), .chunk_size = chunk_size};
    for (const Sample& each : samples) {
      tensors.push_back(sealed_tensor(each.spec.name, each.data, how));
      ++how.nonce;
    }
    const RawFile file(tensors, 3);
    FileKeys keys = keys_of(key);
    const auto source = memory_source(file.bytes, nullptr);
    for (const Into into : {Into::Memory, Into::Staged}) {
      for (const int threads : {1, 3}) {
        Index index = index_of(*source, &keys);
        expect_loaded(*source, index, samples, all_of(samples), into,
                      settings_with(&keys, threads == 1 ? Verify::None : Verify::All, threads,
                                    threads == 1 ? 0 : 16 * kMiB));
      }
    }
    SequentialSource in_order(file.bytes);
    Index index = index_of(in_order, &keys);
    expect_loaded(in_order, index, samples, all_of(samples), Into::Staged,
                  settings_with(&keys, Verify::All, 2));
  }
}

// An empty tensor has no chunks, however much padding its header has.
TEST(ForeignFile, MayPadTheHeaderOfAnEmptyTensor) {
  std::vector<Sample> samples{sample("none", 0)};
  samples[0].spec.dtype = DType::Bits8;
  const RawFile file({{.name = "none",
                       .dtype = stored_dtype(DType::Bits8),
                       .shape = {0},
                       .data = "",
                       .index_dtype = "|V1",
                       .padding = 100000,
                       .crypt = crypt_section({})}},
                     3);
  FileKeys keys = keys_of(key_of());
  SequentialSource source(file.bytes);
  Index index = index_of(source, &keys);
  expect_loaded(source, index, samples, all_of(samples), Into::Staged,
                settings_with(&keys, Verify::None, 1));
}

TEST(ForeignFile, MayHaveAPassphraseForEachTensor) {
  std::vector<RawTensor> tensors;
  std::vector<Sample> samples;
  for (std::uint32_t i = 0; i < 4; ++i) {
    samples.push_back(sample("t" + std::to_string(i), 3000 + i, i));
    const KeyDerivation derivation = derivation_of(50 + i);
    const SharedSecret key = derive_key(as_bytes("sesame"), derivation);
    tensors.push_back(sealed_tensor(samples[i].spec.name, samples[i].data,
                                    {.key = {key->bytes().begin(), key->bytes().end()},
                                     .chunk_size = 1024,
                                     .nonce = i,
                                     .derivation = derivation}));
  }
  const RawFile file(tensors, 3);
  FileKeys keys = keys_of(make_passphrase(as_bytes("sesame")));
  const auto source = memory_source(file.bytes, nullptr);
  Index index = index_of(*source, &keys);
  expect_loaded(*source, index, samples, all_of(samples), Into::Memory,
                settings_with(&keys, Verify::All, 2));
}

}  // namespace
}  // namespace tensorizer
