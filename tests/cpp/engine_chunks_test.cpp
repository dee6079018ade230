// Digests of chunks: they are written and compared, and all damage is found and named.
#include "engine/digest/chunks.h"

#include <sodium.h>

#include "chunked_file.h"
#include "encrypted_file.h"
#include "round_trip.h"

namespace tensorizer {
namespace {

using namespace testing_support;

Sha256Digest sha256_by_libsodium(ConstBytes bytes) {
  Sha256Digest digest;
  crypto_hash_sha256(reinterpret_cast<unsigned char*>(digest.data()),
                     reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  return digest;
}

// The digests of all chunks of all samples, one behind the other.
std::vector<std::byte> digests_of(std::span<const Sample> samples, std::uint64_t chunk_size) {
  std::vector<std::byte> all;
  for (const Sample& each : samples) {
    for (std::size_t at = 0; at < each.data.size(); at += chunk_size) {
      const Sha256Digest digest = sha256_by_libsodium(ConstBytes(each.data).subspan(
          at, std::min<std::size_t>(chunk_size, each.data.size() - at)));
      all.insert(all.end(), digest.begin(), digest.end());
    }
  }
  return all;
}

TEST(Chunks, AreDigestedAlikeAtOnceAndPieceByPiece) {
  Dice dice(121);
  for (int round = 0; round < 50; ++round) {
    const Sample data = sample("t", dice.below(20 * 1000), static_cast<std::uint32_t>(round));
    const std::uint64_t chunk_size = 1 + dice.below(3000);
    const std::vector<std::byte> expected = digests_of({&data, 1}, chunk_size);
    std::vector<Sha256Digest> found(chunk_count(data.data.size(), chunk_size));
    const ChunkedBytes chunks{data.data, found};
    digest_chunks({&chunks, 1}, Hash::Sha256, chunk_size);
    EXPECT_TRUE(same(std::as_bytes(std::span(found)), expected));
    std::ranges::fill(found, Sha256Digest{});
    RunningChunks running(Hash::Sha256, chunk_size, found);
    for (ConstBytes left = data.data; !left.empty();) {
      const std::size_t size = std::min<std::size_t>(left.size(), dice.below(9000));
      running.update(left.first(size));
      left = left.subspan(size);
    }
    running.finish();
    EXPECT_TRUE(same(std::as_bytes(std::span(found)), expected));
  }
}

TEST(Chunks, RoundTripInEveryWay) {
  Dice dice(122);
  const std::vector<Sample> samples = samples_of_all_sizes(dice);
  for (const std::uint64_t chunk_size : {kChunk, std::uint64_t{1} << 20, std::uint64_t{16} << 20}) {
    const std::vector<std::byte> expected = digests_of(samples, chunk_size);
    for (const HashKinds hashes : {HashKinds{true, false}, HashKinds{true, true}, HashKinds{}}) {
      for (const bool sequential : {false, true}) {
        for (const bool staged : {false, true}) {
          SaveSettings settings;
          settings.threads = static_cast<int>(1 + dice.below(4));
          settings.memory_ceiling = dice.pick(std::vector<std::uint64_t>{0, 1 << 20, 64 << 20});
          MemorySink sink(sequential);
          save(samples, sink, chunked(chunk_size, hashes), settings, staged);
          const auto source = memory_source(sink.bytes, nullptr);
          Index index = index_of(*source);
          EXPECT_EQ(index.chunk_digests().chunk_size(), chunk_size);
          EXPECT_TRUE(same(index.chunk_digests().all(), expected));
          LoadSettings load_settings;
          load_settings.verify = Verify::All;
          for (const Into into : {Into::Memory, Into::Staged, Into::Mixed}) {
            load_settings.threads = static_cast<int>(1 + dice.below(4));
            load_settings.memory_ceiling =
                dice.pick(std::vector<std::uint64_t>{0, 1 << 20, 64 << 20});
            expect_loaded(*source, index, samples, all_of(samples), into, load_settings);
          }
          SequentialSource once(sink.bytes);
          Index index_once = index_of(once);
          expect_loaded(once, index_once, samples, all_of(samples), Into::Mixed, load_settings);
        }
      }
    }
  }
}

// Loads all tensors in each way that there is, in place and without a destination too.
enum class Way { Memory, Staged, InPlace, OnlyChecked };

void load_in(Way way, Bytes file, const LoadSettings& given) {
  const auto source = memory_source(file, nullptr);
  Index index = index_of(*source);
  LoadSettings settings = given;
  std::vector<std::vector<std::byte>> memory;
  StagedMemories outputs;
  std::vector<LoadItem> items;
  for (std::uint32_t i = 0; i < index.entries().size(); ++i) {
    const Entry& entry = index.entries()[i];
    LoadItem item = whole_tensor(index, i);
    memory.emplace_back(entry.data_size);
    outputs.push_back(std::make_unique<StagedMemory>(memory.back(), entry.element_size));
    if (way == Way::Memory) item.memory = memory.back();
    if (way == Way::Staged) item.staged = StagedRange{i};
    if (way == Way::InPlace) {
      item.memory = file.subspan(entry.data_offset, entry.data_size);
      item.in_place = true;
    }
    items.push_back(item);
  }
  settings.mapping = file;
  settings.open_access = [&] { return TensorAccess{.port = std::make_unique<LatePort>(outputs)}; };
  Progress progress;
  Cancel cancel;
  load(*source, index, items, settings, progress, cancel);
  EXPECT_EQ(progress.done, progress.total);
}

TEST(Chunks, ShowDamageWhereverItIs) {
  Dice dice(123);
  const std::vector<Sample> samples{sample("small", 100), sample("large", 40 * kChunk + 17),
                                    sample("even", 3 * kChunk)};
  std::vector<std::byte> file = saved_as(samples, chunked(kChunk, {}));
  const Index index = read(file);
  for (const Way way : {Way::Memory, Way::Staged, Way::InPlace, Way::OnlyChecked}) {
    for (const std::uint64_t ceiling : {std::uint64_t{0}, std::uint64_t{64} << 20}) {
      LoadSettings settings;
      settings.verify = Verify::All;
      settings.threads = static_cast<int>(1 + dice.below(3));
      settings.memory_ceiling = ceiling;
      load_in(way, file, settings);
      for (const Entry& entry : index.entries()) {
        const std::uint64_t position = dice.below(entry.data_size);
        file[entry.data_offset + position] ^= std::byte{4};
        const Error error = error_of([&] { load_in(way, file, settings); });
        file[entry.data_offset + position] ^= std::byte{4};
        EXPECT_EQ(error.kind(), ErrorKind::HashMismatch);
        const std::uint64_t chunk = position / kChunk * kChunk;
        const std::string place =
            "its " + std::to_string(std::min(kChunk, entry.data_size - chunk)) +
            " bytes from offset " + std::to_string(entry.data_offset + chunk) + " on";
        EXPECT_TRUE(contains(error.what(), quote(entry.name))) << error.what();
        EXPECT_TRUE(contains(error.what(), place)) << error.what();
      }
    }
  }
}

TEST(Chunks, AreHashedOnTheHostAtTheEnd) {
  const std::vector<Sample> samples{sample("t", 64 * kChunk)};
  std::vector<std::byte> file = saved_as(samples, chunked(kChunk, {}));
  const std::uint64_t begin = read(file).entries()[0].data_offset;
  for (const std::uint64_t last : {0, 16, 1000}) {
    std::uint64_t hashed = 0;
    const auto load_all = [&] {
      const auto source = memory_source(file, nullptr);
      Index index = index_of(*source);
      StagedMemories outputs;
      outputs.push_back(std::make_unique<StagedMemory>(pattern(64 * kChunk, 9), 1));
      LoadSettings settings;
      settings.verify = Verify::All;
      settings.last_chunks = last;
      settings.memory_ceiling = 2 * kChunk;  // strips of one chunk
      settings.open_access = [&] {
        return TensorAccess{.port = std::make_unique<HashingPort>(outputs, hashed)};
      };
      LoadItem item = staged_item(index, 0, 0);
      item.staged->checked_there = true;
      Progress progress;
      Cancel cancel;
      load(*source, index, {item}, settings, progress, cancel);
      EXPECT_TRUE(same(outputs[0]->bytes, samples[0].data));
    };
    load_all();
    EXPECT_EQ(hashed, last == 16 ? 48 * kChunk : last == 0 ? 64 * kChunk : 0);
    for (const std::uint64_t damaged : {std::uint64_t{5}, 60 * kChunk}) {
      file[begin + damaged] ^= std::byte{1};
      EXPECT_EQ(error_of(load_all).kind(), ErrorKind::HashMismatch);
      file[begin + damaged] ^= std::byte{1};
    }
  }
}

// Whether a byte need not be damaged because it is one of many zeros. Most of a prefix is such
// padding, of which one byte in 64 is tried.
bool is_like_its_neighbours(ConstBytes file, std::uint64_t at) {
  if (at % 64 == 0 || at < 16 || at + 16 > file.size()) return false;
  const ConstBytes around = file.subspan(at - 16, 32);
  return std::ranges::count(around, std::byte{0}) == 32;
}

TEST(Chunks, ComeWithTheDigestsOfHeaders) {
  const std::vector<Sample> samples{sample("t", 3 * kChunk)};
  for (const HashKinds hashes : {HashKinds{}, HashKinds{true, true}}) {
    std::vector<std::byte> file = saved_as(samples, chunked(kChunk, hashes));
    const Entry entry = read(file).entries()[0];
    for (std::uint64_t at = entry.header_offset; at < entry.data_offset; ++at) {
      if (is_like_its_neighbours(file, at)) continue;
      file[at] ^= std::byte{1};
      LoadSettings settings;
      settings.verify = Verify::All;
      const Error error = error_of([&] { load_in(Way::Memory, file, settings); });
      file[at] ^= std::byte{1};
      EXPECT_EQ(error.kind(), ErrorKind::HashMismatch) << at;
      EXPECT_TRUE(contains(error.what(), "its header at offset")) << error.what();
    }
  }
}

TEST(Chunks, NameAllDamage) {
  const std::vector<Sample> samples{sample("a", 5 * kChunk), sample("b", 200 * kChunk)};
  std::vector<std::byte> file = saved_as(samples, chunked());
  const Index index = read(file);
  LoadSettings settings;
  settings.verify = Verify::All;
  settings.threads = 3;
  settings.names_all_damage = true;
  const auto damage = [&](std::uint32_t entry, std::uint64_t chunk) {
    const std::uint64_t at = index.entries()[entry].data_offset + chunk * kChunk;
    file[at + 5] ^= std::byte{1};
    return "bytes from offset " + std::to_string(at) + " on";
  };
  const std::string first = damage(0, 1);
  const std::string second = damage(0, 4);
  const std::string third = damage(1, 7);
  const Error error = error_of([&] { load_in(Way::OnlyChecked, file, settings); });
  EXPECT_EQ(error.kind(), ErrorKind::HashMismatch);
  const std::string_view message = error.what();
  EXPECT_LT(message.find(first), message.find(second)) << message;
  EXPECT_LT(message.find(second), message.find(third)) << message;
  EXPECT_EQ(std::ranges::count(message, '\n'), 2) << message;
  for (std::uint64_t chunk = 10; chunk < 200; ++chunk) damage(1, chunk);
  const Error more = error_of([&] { load_in(Way::OnlyChecked, file, settings); });
  EXPECT_TRUE(contains(more.what(), "and 93 more")) << more.what();
}

TEST(Chunks, NameAllWrongMacs) {
  const std::vector<Sample> samples{sample("a", 5 << 20), sample("b", 1000)};
  std::vector<std::byte> file = saved_as(samples, encrypted());
  FileKeys keys = keys_of(key_of());
  const auto source = memory_source(file, nullptr);
  Index index = index_of(*source, &keys);
  file[index.entries()[0].data_offset + (4 << 20) + 9] ^= std::byte{1};
  file[index.entries()[1].data_offset] ^= std::byte{1};
  LoadSettings settings;
  settings.verify = Verify::All;
  settings.names_all_damage = true;
  settings.keys = &keys;
  Progress progress;
  Cancel cancel;
  const Error error = error_of([&] {
    load(*source, index, {staged_item(index, 0, 0), staged_item(index, 1, 0)}, settings, progress,
         cancel);
  });
  EXPECT_EQ(error.kind(), ErrorKind::Crypto);
  EXPECT_TRUE(contains(error.what(), "tensor 'a' (index entry 0)")) << error.what();
  EXPECT_TRUE(contains(error.what(), "tensor 'b' (index entry 1)")) << error.what();
  EXPECT_EQ(std::ranges::count(std::string_view(error.what()), '\n'), 1) << error.what();
}

TEST(Chunks, CoverEachBitOfAFile) {
  FileKind kind = chunked(kChunk, {true, true});
  kind.metadata = {{"key", "value"}};
  std::vector<std::byte> file =
      saved_as(std::vector<Sample>{sample("a", 9), sample("b", 0), sample("c", 100)}, kind);
  LoadSettings settings;
  settings.verify = Verify::All;
  load_in(Way::Memory, file, settings);
  for (std::uint64_t bit = 0; bit < 8 * file.size(); ++bit) {
    if (is_like_its_neighbours(file, bit / 8)) continue;
    file[bit / 8] ^= std::byte{1} << (bit % 8);
    const ErrorKind kind_of_error = error_of([&] { load_in(Way::Memory, file, settings); }).kind();
    EXPECT_TRUE(kind_of_error == ErrorKind::InvalidFormat ||
                kind_of_error == ErrorKind::HashMismatch)
        << bit;
    file[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(Chunks, MustNotBeTooMany) {
  FileKind kind = chunked();
  TensorsLayout layout(kind, 0);
  TensorSpec large;
  large.name = "large";
  large.shape = {static_cast<std::int64_t>(kMostChunks * kChunk)};
  layout.add(large);
  large.name = "more";
  large.shape = {1};
  const Error error = error_of([&] { layout.add(large); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
  EXPECT_TRUE(contains(error.what(), "digest_chunk")) << error.what();
}

}  // namespace
}  // namespace tensorizer
