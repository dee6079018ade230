// Loads of byte ranges of tensors.
#include "counting_source.h"
#include "encrypted_file.h"
#include "round_trip.h"

namespace tensorizer {
namespace {

using namespace testing_support;

constexpr std::size_t kMiB = 1 << 20;

// Ranges of elements that do not overlap, of every size from nothing to all of the tensor.
std::vector<ByteRange> ranges_of(std::uint64_t size, std::uint64_t element, Dice& dice) {
  std::vector<ByteRange> ranges;
  const std::uint64_t elements = size / element;
  for (std::uint64_t at = dice.below(elements + 1); at < elements;) {
    const std::uint64_t most = dice.one_in(3) ? 10 : elements - at;
    const std::uint64_t count = std::min(dice.below(most + 1), elements - at);
    ranges.push_back({at * element, count * element});
    at += count + dice.below(dice.one_in(2) ? 3 : elements / 2 + 1) + 1;
  }
  return ranges;
}

// Loads ranges of all tensors in one job, half of them staged, and expects their bytes where they
// belong and all other bytes of the destinations unchanged.
void expect_ranges(Source& source, Catalogue& catalogue, std::span<const Sample> samples,
                   Dice& dice, const LoadSettings& settings) {
  constexpr std::byte kUntouched{0xA7};
  std::vector<std::vector<std::byte>> memory(samples.size());
  std::vector<std::vector<std::byte>> expected(samples.size());
  StagedMemories outputs(samples.size());
  std::vector<LoadItem> items;
  std::uint64_t total = 0;
  for (std::uint32_t i = 0; i < samples.size(); ++i) {
    const std::size_t size = samples[i].data.size();
    expected[i].assign(size, kUntouched);
    memory[i] = expected[i];
    const bool staged = dice.one_in(2);
    if (staged) {
      outputs[i] = std::make_unique<StagedMemory>(memory[i], element_size(samples[i]));
    }
    for (const ByteRange range : ranges_of(size, element_size(samples[i]), dice)) {
      LoadItem item{i, range};
      if (staged) {
        item.staged = StagedRange{i, range.position};
      } else {
        item.memory = Bytes(memory[i]).subspan(range.position, range.size);
      }
      std::copy_n(samples[i].data.begin() + static_cast<std::ptrdiff_t>(range.position), range.size,
                  expected[i].begin() + static_cast<std::ptrdiff_t>(range.position));
      total += range.size;
      items.insert(items.begin() + static_cast<std::ptrdiff_t>(dice.below(items.size() + 1)), item);
    }
  }
  load_items(source, catalogue, items, outputs, total, settings);
  for (std::uint32_t i = 0; i < samples.size(); ++i) {
    expect_bytes(samples[i], outputs[i], memory[i], expected[i]);
  }
}

TEST(Ranges, OfPlainTensorsAreLoaded) {
  Dice dice(91);
  const std::vector<Sample> samples = samples_with_chunks(dice);
  load_often(saved(samples), samples, nullptr, 20, dice, expect_ranges);
}

TEST(Ranges, OfEncryptedTensorsAreLoaded) {
  Dice dice(92);
  const std::vector<Sample> samples = samples_with_chunks(dice);
  FileKeys keys = keys_of(key_of());
  load_often(saved_as(samples, encrypted()), samples, &keys, 20, dice, expect_ranges);
}

TEST(Ranges, AreViewsOfAMapping) {
  const std::vector<Sample> samples{sample("a", 9000), sample("b", 70'000)};
  std::vector<std::byte> file = saved(samples);
  const auto source = memory_source(file, nullptr);
  Index index = index_of(*source);
  LoadItem item{1, {60'000, 10'000}};
  item.memory = Bytes(file).subspan(index.entries()[1].data_offset + 60'000, 10'000);
  item.in_place = true;
  LoadSettings settings;
  settings.mapping = file;
  Progress progress;
  Cancel cancel;
  load(*source, index, {item}, settings, progress, cancel);
  EXPECT_TRUE(same(item.memory, ConstBytes(samples[1].data).subspan(60'000)));
}

// Rows of a matrix: bytes between them are skipped, or read along if that is cheaper.
TEST(Ranges, ReadNothingElse) {
  constexpr std::uint64_t kRow = 100'000;
  const std::vector<Sample> samples{sample("before", 5000), sample("matrix", 20 * kRow),
                                    sample("behind", 5000)};
  const std::vector<std::byte> file = saved(samples);
  CountingSource source(file);
  Index index = index_of(source);
  const Entry& entry = index.entries()[1];
  LoadSettings settings;
  settings.memory_ceiling = 64 * kMiB;  // room for all of it in one read
  for (const std::uint64_t size : {std::uint64_t{1000}, kRow - 1000}) {
    source.forget();
    std::vector<std::byte> memory(20 * size);
    std::vector<LoadItem> items;
    for (std::uint64_t row = 0; row < 20; ++row) {
      items.push_back({1, {row * kRow + 500, size}});
      items.back().memory = Bytes(memory).subspan(row * size, size);
    }
    Progress progress;
    Cancel cancel;
    load(source, index, items, settings, progress, cancel);
    for (std::uint64_t row = 0; row < 20; ++row) {
      const std::uint64_t at = row * kRow + 500;
      EXPECT_TRUE(same(items[row].memory, ConstBytes(samples[1].data).subspan(at, size)));
      EXPECT_EQ(source.times_read(entry.data_offset + at), 1);
      EXPECT_EQ(source.times_read(entry.data_offset + at + size - 1), 1);
    }
    // Gaps of 2,000 bytes are read, those of 99,000 are not.
    EXPECT_EQ(source.total(), size == 1000 ? 20 * size : 19 * kRow + size);
    EXPECT_EQ(source.times_read(entry.header_offset), 0);
  }
}

TEST(Ranges, OfAnEncryptedTensorReadItsHeaderOnce) {
  const std::vector<Sample> samples{sample("t", 9 * kMiB)};
  const std::vector<std::byte> file = saved_as(samples, encrypted());
  FileKeys keys = keys_of(key_of());
  CountingSource source(file);
  Index index = index_of(source, &keys);
  const Entry& entry = index.entries()[0];
  source.forget();
  std::vector<std::byte> memory(50 * 100);
  std::vector<LoadItem> items;
  for (std::uint64_t i = 0; i < 50; ++i) {
    items.push_back({0, {5 * kMiB + i * 1000, 100}});
    items.back().memory = Bytes(memory).subspan(i * 100, 100);
  }
  LoadSettings settings;
  settings.keys = &keys;
  Progress progress;
  Cancel cancel;
  load(source, index, items, settings, progress, cancel);
  EXPECT_EQ(source.times_read(entry.header_offset), 1);
  // The third chunk, and no other.
  EXPECT_EQ(source.total(), entry.header_size() + 2 * kMiB);
  EXPECT_EQ(source.times_read(entry.data_offset + 4 * kMiB), 1);
}

TEST(Ranges, MustBeInsideTheirTensor) {
  const std::vector<std::byte> file = saved(std::vector<Sample>{sample("t", 100)});
  const auto source = memory_source(file, nullptr);
  Index index = index_of(*source);
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  for (const ByteRange range : {ByteRange{0, 101}, ByteRange{1, 100}, ByteRange{101, 0},
                                ByteRange{kMost, 2}, ByteRange{2, kMost}}) {
    Progress progress;
    Cancel cancel;
    const Error error = error_of([&] { load(*source, index, {{0, range}}, {}, progress, cancel); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    EXPECT_TRUE(contains(error.what(), "tensor 't' (index entry 0)")) << error.what();
    EXPECT_TRUE(contains(error.what(), "100 bytes of data")) << error.what();
  }
}

TEST(Ranges, OverlapOnlyIfTheSourceCanBeReadTwice) {
  const std::vector<Sample> samples{sample("t", 100)};
  const std::vector<std::byte> file = saved(samples);
  const auto again = memory_source(file, nullptr);
  SequentialSource once(file);
  for (Source* const source : {again.get(), static_cast<Source*>(&once)}) {
    Index index = index_of(*source);
    std::vector<std::byte> memory(61);
    std::vector<LoadItem> items{{0, {40, 30}}, {0, {10, 31}}};
    items[0].memory = Bytes(memory).first(30);
    items[1].memory = Bytes(memory).subspan(30);
    Progress progress;
    Cancel cancel;
    const auto run = [&] { load(*source, index, items, {}, progress, cancel); };
    if (source->sequential()) {
      const Error error = error_of(run);
      EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
      EXPECT_TRUE(contains(error.what(), "'t' (index entry 0): it is to be loaded twice"));
    } else {
      run();
      EXPECT_TRUE(same(items[0].memory, ConstBytes(samples[0].data).subspan(40, 30)));
      EXPECT_TRUE(same(items[1].memory, ConstBytes(samples[0].data).subspan(10, 31)));
    }
  }
}

TEST(Ranges, AreNotVerifiedByDigestsOfTheWhole) {
  const std::vector<std::byte> file = saved(std::vector<Sample>{sample("t", 100)});
  const auto source = memory_source(file, nullptr);
  Index index = index_of(*source);
  DataDigests digests(index, DigestVersion::Tensors, false, source->label());
  LoadSettings verified;
  verified.verify = Verify::All;
  LoadSettings pinned;
  pinned.data_digests = &digests;
  for (const LoadSettings& settings : {verified, pinned}) {
    Progress progress;
    Cancel cancel;
    const Error error =
        error_of([&] { load(*source, index, {{0, {0, 99}}}, settings, progress, cancel); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    EXPECT_TRUE(contains(error.what(), "a part of it cannot be verified")) << error.what();
    load(*source, index, {{0, {0, 100}}}, settings, progress, cancel);
  }
}

// A damaged chunk fails the ranges that touch it, and no other.
TEST(Ranges, CheckTheChunksThatTheyTouch) {
  const std::vector<Sample> samples{sample("t", 5 * kMiB)};
  std::vector<std::byte> file = saved_as(samples, encrypted());
  FileKeys keys = keys_of(key_of());
  const auto source = memory_source(file, nullptr);
  Index index = index_of(*source, &keys);
  file[index.entries()[0].data_offset + 3 * kMiB] ^= std::byte{1};  // in the second chunk
  for (const bool staged : {false, true}) {
    for (const ByteRange range : {ByteRange{0, 2 * kMiB}, ByteRange{4 * kMiB, kMiB},
                                  ByteRange{2 * kMiB - 1, 2}, ByteRange{4 * kMiB - 1, 1}}) {
      const bool touches = range.position < 4 * kMiB && range.position + range.size > 2 * kMiB;
      std::vector<std::byte> memory(range.size);
      StagedMemories outputs;
      outputs.push_back(std::make_unique<StagedMemory>(std::vector<std::byte>(5 * kMiB), 1));
      LoadItem item{0, range};
      if (staged) {
        item.staged = StagedRange{0, range.position};
      } else {
        item.memory = memory;
      }
      LoadSettings settings;
      settings.keys = &keys;
      bool incomplete = false;
      settings.zero_incomplete = [&](std::uint32_t entry) { incomplete = entry == 0; };
      settings.open_access = [&] {
        return TensorAccess{.port = std::make_unique<LatePort>(outputs)};
      };
      Progress progress;
      Cancel cancel;
      const auto run = [&] { load(*source, index, {item}, settings, progress, cancel); };
      if (touches) {
        const Error error = error_of(run);
        EXPECT_EQ(error.kind(), ErrorKind::Crypto);
        EXPECT_TRUE(contains(error.what(), "tensor 't' (index entry 0): its 2097152 bytes"));
      } else {
        run();
      }
      EXPECT_EQ(incomplete, touches);
    }
  }
}

}  // namespace
}  // namespace tensorizer
