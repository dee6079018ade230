// Digests of chunks where data is not loaded in whole, or comes from a server that has better
// bytes, or goes into another file.
#include "chunked_file.h"
#include "counting_source.h"
#include "encrypted_file.h"
#include "engine/load/tensor_source.h"
#include "round_trip.h"

namespace tensorizer {
namespace {

using namespace testing_support;

// A source on a server behind a cache that damages bytes.
class CachedSource final : public UnsizedSource {
 public:
  CachedSource(ConstBytes damaged, ConstBytes right) : UnsizedSource(damaged), right_(right) {}

  bool read_anew(std::uint64_t offset, Bytes out, Cancel&) override {
    const std::lock_guard lock(mutex_);
    std::ranges::copy(right_.subspan(offset, out.size()), out.begin());
    read_anew_.emplace_back(offset, out.size());
    return true;
  }

  // Returns the offsets and sizes of what was read anew.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> read_anew() const { return read_anew_; }

 private:
  const ConstBytes right_;
  std::mutex mutex_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> read_anew_;
};

// Parts: the chunks that they touch are read in whole and compared, and no others.
TEST(ChunkParts, CheckPartsOfTensors) {
  const std::vector<Sample> samples{sample("before", 100), sample("t", 60 * kChunk + 77)};
  std::vector<std::byte> file = saved_as(samples, chunked());
  const Entry entry = read(file).entries()[1];
  Dice dice(124);
  for (int round = 0; round < 15; ++round) {
    const std::uint64_t begin = dice.below(entry.data_size);
    const std::uint64_t most = entry.data_size - begin;
    const std::uint64_t size =
        1 + dice.below(dice.one_in(2) ? most : std::min<std::uint64_t>(most, 3 * kChunk));
    const std::uint64_t first = begin / kChunk * kChunk;
    const std::uint64_t end = std::min(chunk_count(begin + size, kChunk) * kChunk, entry.data_size);
    for (const bool in_place : {false, true}) {
      CountingSource source(file);
      Index index = index_of(source);
      source.forget();
      std::vector<std::byte> memory(size);
      LoadItem item{1, {begin, size}};
      item.memory = in_place ? Bytes(file).subspan(entry.data_offset + begin, size) : Bytes(memory);
      item.in_place = in_place;
      LoadSettings settings;
      settings.verify = Verify::All;
      settings.threads = static_cast<int>(1 + dice.below(3));
      settings.memory_ceiling = 8 << 20;
      settings.mapping = file;
      const auto run = [&] {
        Progress progress;
        Cancel cancel;
        load(source, index, {item}, settings, progress, cancel);
        EXPECT_EQ(progress.done, size);
      };
      run();
      EXPECT_TRUE(same(item.memory, ConstBytes(samples[1].data).subspan(begin, size)));
      // A cut part reads no chunk twice.
      EXPECT_EQ(source.total(), in_place ? 0 : end - first);
      const std::uint64_t touched = first + dice.below(end - first);
      file[entry.data_offset + touched] ^= std::byte{2};
      const Error error = error_of(run);
      file[entry.data_offset + touched] ^= std::byte{2};
      EXPECT_EQ(error.kind(), ErrorKind::HashMismatch) << error.what();
      const std::uint64_t other = dice.below(entry.data_size);
      if (other >= first && other < end) continue;
      file[entry.data_offset + other] ^= std::byte{2};
      run();
      file[entry.data_offset + other] ^= std::byte{2};
    }
  }
}

TEST(ChunkParts, OfAPipeMayShareAChunk) {
  const std::vector<Sample> samples{sample("t", 10 * kChunk + 5)};
  const std::vector<std::byte> file = saved_as(samples, chunked());
  for (const int threads : {1, 3}) {
    SequentialSource source(file);
    Index index = index_of(source);
    const std::vector<ByteRange> ranges{{100, 50}, {200, 5 * kChunk}, {5 * kChunk + 200, 10}};
    std::vector<std::vector<std::byte>> memory;
    std::vector<LoadItem> items;
    for (const ByteRange& range : ranges)
      items.push_back({0, range, memory.emplace_back(range.size)});
    LoadSettings settings;
    settings.verify = Verify::All;
    settings.threads = threads;
    Progress progress;
    Cancel cancel;
    load(source, index, items, settings, progress, cancel);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      EXPECT_TRUE(
          same(memory[i], ConstBytes(samples[0].data).subspan(ranges[i].position, ranges[i].size)));
    }
  }
}

TEST(ChunkParts, CheckRuns) {
  // Columns of a matrix of bytes.
  const std::vector<std::int64_t> shape{300, 5000};
  Sample matrix = sample("m", 300 * 5000);
  matrix.spec.shape = shape;
  std::vector<std::byte> file = saved_as(std::vector<Sample>{matrix}, chunked());
  const std::uint64_t data = read(file).entries()[0].data_offset;
  const std::vector<DimensionPart> parts{{20, 200}, {1000, 700}};
  const Runs runs(shape, 1, parts);
  std::vector<std::byte> memory(runs.size());
  const auto run = [&] {
    const auto source = memory_source(file, nullptr);
    Index index = index_of(*source);
    LoadItem item{0, runs.range(), memory};
    item.runs = &runs;
    LoadSettings settings;
    settings.verify = Verify::All;
    settings.threads = 2;
    Progress progress;
    Cancel cancel;
    load(*source, index, {item}, settings, progress, cancel);
  };
  run();
  for (std::size_t row = 0; row < 200; ++row) {
    EXPECT_TRUE(same(ConstBytes(memory).subspan(row * 700, 700),
                     ConstBytes(matrix.data).subspan((20 + row) * 5000 + 1000, 700)));
  }
  // In the same chunk as the first run, and not in it.
  file[data + 20 * 5000 - 1] ^= std::byte{1};
  EXPECT_EQ(error_of(run).kind(), ErrorKind::HashMismatch);
}

TEST(ChunkParts, OfAServerAreReadAnewIfTheyAreDamaged) {
  const std::vector<Sample> samples{sample("a", 50), sample("b", 20 * kChunk), sample("c", kChunk)};
  for (const bool encrypts : {false, true}) {
    const std::vector<std::byte> right = saved_as(samples, encrypts ? encrypted() : chunked());
    FileKeys keys = keys_of(key_of());
    FileKeys* const given = encrypts ? &keys : nullptr;
    const Index index = read_with(right, given);
    std::vector<std::byte> damaged = right;
    for (const Entry& entry : index.entries()) damaged[entry.data_offset + 9] ^= std::byte{1};
    for (const int threads : {1, 3}) {
      LoadSettings settings;
      settings.verify = Verify::All;
      settings.threads = threads;
      CachedSource source(damaged, right);
      const Loading loading = load_all(source, given, settings);
      ASSERT_FALSE(loading.error) << loading.error->what();
      for (std::size_t i = 0; i < samples.size(); ++i) {
        EXPECT_TRUE(same(loading.tensors[i], samples[i].data));
      }
      auto read_anew = source.read_anew();
      std::ranges::sort(read_anew);
      ASSERT_EQ(read_anew.size(), samples.size());
      for (std::size_t i = 0; i < samples.size(); ++i) {
        EXPECT_EQ(read_anew[i].first, index.entries()[i].data_offset);
      }
      // The server has the same damage.
      CachedSource hopeless(damaged, damaged);
      const Loading failed = load_all(hopeless, given, settings);
      ASSERT_TRUE(failed.error);
      EXPECT_EQ(failed.error->kind(), encrypts ? ErrorKind::Crypto : ErrorKind::HashMismatch);
    }
  }
}

// A source of a rewrite gives no byte of a damaged chunk, and asks a server for it once more.
TEST(ChunkParts, AreCheckedWhenAFileIsRewritten) {
  const std::vector<Sample> samples{sample("t", 5 * kChunk + 3)};
  const std::vector<std::byte> right = saved_as(samples, chunked(kChunk, {}));
  const Index index = read(right);
  const Entry& entry = index.entries()[0];
  for (const std::uint64_t piece :
       {std::uint64_t{777}, kChunk - 1, kChunk, 2 * kChunk + 5, 6 * kChunk}) {
    std::uint64_t given = 0;
    const auto read_all = [&](Source& source) {
      const TensorFile of{source, index, nullptr, nullptr, true};
      TensorSource tensors(of);
      Cancel cancel;
      std::vector<std::byte> data(samples[0].data.size());
      for (given = 0; given < data.size();) {
        const std::uint64_t size = std::min(piece, data.size() - given);
        tensors.read(0, given, Bytes(data).subspan(given, size), cancel);
        given += size;
      }
      EXPECT_TRUE(same(data, samples[0].data)) << piece;
    };
    SequentialSource once(right);
    index_of(once);
    read_all(once);
    for (const std::uint64_t damaged : {std::uint64_t{9}, 3 * kChunk + 1, 5 * kChunk + 2}) {
      std::vector<std::byte> file = right;
      file[entry.data_offset + damaged] ^= std::byte{1};
      const std::uint64_t chunk = damaged / kChunk * kChunk;
      const std::uint64_t size = std::min(kChunk, entry.data_size - chunk);
      CachedSource cached(file, right);
      read_all(cached);
      EXPECT_EQ(cached.read_anew(), (std::vector<std::pair<std::uint64_t, std::uint64_t>>{
                                        {entry.data_offset + chunk, size}}));
      const auto source = memory_source(file, nullptr);
      const Error error = error_of([&] { read_all(*source); });
      EXPECT_EQ(error.kind(), ErrorKind::HashMismatch);
      EXPECT_TRUE(contains(error.what(), "its " + std::to_string(size) + " bytes from offset"))
          << error.what();
      EXPECT_LE(given, chunk);
    }
  }
}

}  // namespace
}  // namespace tensorizer
