// Slices of tensors: which bytes they are, and how they are read.
#include "engine/move/runs.h"

#include <cstring>

#include "counting_source.h"
#include "encrypted_file.h"
#include "round_trip.h"

namespace tensorizer {
namespace {

using namespace testing_support;

constexpr std::size_t kMiB = 1 << 20;

struct Slice {
  std::vector<std::int64_t> shape;
  std::uint64_t element;
  std::vector<DimensionPart> parts;

  Runs runs() const { return {shape, element, parts}; }
  std::uint64_t tensor_size() const {
    std::uint64_t size = element;
    for (const std::int64_t length : shape) size *= static_cast<std::uint64_t>(length);
    return size;
  }
};

// Returns the positions of the slice's elements, computed one by one.
std::vector<std::uint64_t> elements_of(const Slice& slice) {
  std::vector<std::uint64_t> elements{0};
  for (std::size_t i = 0; i < slice.shape.size(); ++i) {
    const DimensionPart part = slice.parts[i];
    const auto length = static_cast<std::uint64_t>(slice.shape[i]);
    std::vector<std::uint64_t> next(elements.size() * part.length);
    // Plain pointers, as in pattern().
    std::uint64_t* out = next.data();
    for (const std::uint64_t outer : elements) {
      for (std::uint64_t k = 0; k < part.length; ++k)
        *out++ = outer * length + part.start + k * part.step;
    }
    elements = std::move(next);
  }
  return elements;
}

// Returns the positions of the slice's bytes.
std::vector<std::uint64_t> positions_of(const Slice& slice) {
  std::vector<std::uint64_t> bytes;
  for (const std::uint64_t at : elements_of(slice)) {
    for (std::uint64_t k = 0; k < slice.element; ++k) bytes.push_back(at * slice.element + k);
  }
  return bytes;
}

// Returns the bytes that a slice has in the data of its tensor.
std::vector<std::byte> bytes_of(const Slice& slice, ConstBytes data) {
  const std::vector<std::uint64_t> elements = elements_of(slice);
  std::vector<std::byte> bytes(elements.size() * slice.element);
  std::byte* out = bytes.data();
  const std::byte* const in = data.data();
  const std::size_t size = slice.element;
  for (const std::uint64_t at : elements) {
    std::memcpy(out, in + at * size, size);
    out += size;
  }
  return bytes;
}

DimensionPart part_of(std::uint64_t length, Dice& dice) {
  if (dice.one_in(3)) return {0, length};
  const std::uint64_t start = dice.below(length + 1);
  const std::uint64_t step = dice.one_in(2) ? 1 : 1 + dice.below(length + 2);
  const std::uint64_t most = start < length ? (length - start + step - 1) / step : 0;
  return {start, dice.one_in(2) ? most : dice.below(most + 1), step};
}

Slice random_slice(Dice& dice) {
  Slice slice;
  slice.element = dice.pick(std::vector<std::uint64_t>{1, 2, 4, 8, 16});
  const std::uint64_t dimensions = dice.below(5);
  for (std::uint64_t i = 0; i < dimensions; ++i) {
    const std::uint64_t length = dice.one_in(20) ? 0 : 1 + dice.below(dice.one_in(3) ? 60 : 6);
    slice.shape.push_back(static_cast<std::int64_t>(length));
    slice.parts.push_back(part_of(length, dice));
  }
  return slice;
}

TEST(Runs, AreTheBytesOfASlice) {
  Dice dice(301);
  for (int round = 0; round < 1500; ++round) {
    const Slice slice = random_slice(dice);
    const Runs runs = slice.runs();
    const std::vector<std::uint64_t> expected = positions_of(slice);
    ASSERT_EQ(runs.size(), expected.size());
    if (expected.empty()) continue;
    EXPECT_EQ(runs.range().position, expected.front());
    EXPECT_EQ(runs.range().size, expected.back() + 1 - expected.front());
    EXPECT_EQ(runs.is_one_run(), runs.range().size == expected.size());
    std::vector<std::uint64_t> found;
    while (found.size() < expected.size()) {
      const std::uint64_t most = 1 + dice.below(expected.size() - found.size());
      const RunSeries series = runs.series_at(found.size(), most);
      ASSERT_GT(series.count * series.run, 0U);
      ASSERT_LE(series.count * series.run, most);
      for (std::uint64_t i = 0; i < series.count; ++i) {
        for (std::uint64_t k = 0; k < series.run; ++k) {
          found.push_back(series.position + i * series.stride + k);
        }
      }
    }
    ASSERT_EQ(found, expected);
  }
}

TEST(Runs, AreGathered) {
  Dice dice(302);
  const std::vector<std::byte> data = sample("data", 4 * kMiB).data;
  Scratch scratch;
  for (int round = 0; round < 300; ++round) {
    Slice slice = random_slice(dice);
    if (dice.one_in(3)) {  // runs that are read into place
      slice = {{9, 2, 9000}, 4, {part_of(9, dice), part_of(2, dice), {0, 2000 + dice.below(7001)}}};
    }
    if (slice.tensor_size() > data.size()) continue;
    const Runs runs = slice.runs();
    if (runs.size() == 0) continue;
    const std::vector<std::byte> expected = bytes_of(slice, data);
    const GatherLimits limits{dice.pick(std::vector<std::uint64_t>{0, 5, 100, 100'000}),
                              1 + dice.below(100'000), 1 + dice.below(5000)};
    std::uint64_t last = 0;
    const ReadData read = [&](std::uint64_t position, std::span<const Bytes> pieces) {
      EXPECT_GE(position, last);
      const std::uint64_t begin = position;
      for (const Bytes piece : pieces) {
        ASSERT_LE(position + piece.size(), runs.range().position + runs.range().size);
        std::memcpy(piece.data(), data.data() + position, piece.size());
        position += piece.size();
      }
      last = position;
      const std::uint64_t most = runs.run() < 4096 ? limits.scratch_size : limits.read_size;
      EXPECT_LE(position - begin, std::max(most, runs.run()));
    };
    std::vector<std::byte> out(expected.size());
    for (std::uint64_t at = 0; at < out.size();) {
      const std::uint64_t size = dice.one_in(2) ? out.size() - at : 1 + dice.below(out.size() - at);
      gather(runs, at, Bytes(out).subspan(at, size), limits, scratch, read);
      at += size;
    }
    ASSERT_TRUE(same(out, expected));
  }
}

TEST(Runs, CostTheirBytesAndTheCheaperOfGapsAndReads) {
  const Runs columns = Slice{{1000, 256}, 4, {{0, 1000}, {8, 16}}}.runs();
  EXPECT_EQ(columns.cost(0), 1000U * 64);
  EXPECT_EQ(columns.cost(100), 1000U * 64 + 999 * 100);
  EXPECT_EQ(columns.cost(1 << 20), 999U * 1024 + 64);
}

// Loads slices of all samples in one job, half of them staged.
void expect_slices(Source& source, Catalogue& catalogue, std::span<const Sample> samples,
                   Dice& dice, const LoadSettings& settings) {
  std::vector<std::vector<std::byte>> memory(samples.size());
  std::vector<std::vector<std::byte>> expected(samples.size());
  std::vector<Runs> runs;
  runs.reserve(samples.size());
  StagedMemories outputs(samples.size());
  std::vector<LoadItem> items;
  std::uint64_t total = 0;
  for (std::uint32_t i = 0; i < samples.size(); ++i) {
    const std::uint64_t element = element_size(samples[i]);
    const std::uint64_t elements = samples[i].data.size() / element;
    const std::uint64_t row = 1 + dice.below(dice.one_in(2) ? 50 : 20'000);
    if (elements < row) continue;
    const Slice slice{{static_cast<std::int64_t>(elements / row), static_cast<std::int64_t>(row)},
                      element,
                      {part_of(elements / row, dice), part_of(row, dice)}};
    runs.push_back(slice.runs());
    if (runs.back().size() == 0) continue;
    expected[i] = bytes_of(slice, samples[i].data);
    memory[i].resize(expected[i].size());
    total += memory[i].size();
    LoadItem item{i, runs.back().range()};
    item.runs = &runs.back();
    if (dice.one_in(2)) {
      outputs[i] = std::make_unique<StagedMemory>(memory[i], element);
      item.staged = StagedRange{i};
    } else {
      item.memory = memory[i];
    }
    items.push_back(item);
  }
  load_items(source, catalogue, items, outputs, total, settings);
  for (std::uint32_t i = 0; i < samples.size(); ++i) {
    expect_bytes(samples[i], outputs[i], memory[i], expected[i]);
  }
}

TEST(Runs, OfPlainTensorsAreLoaded) {
  Dice dice(303);
  const std::vector<Sample> samples = samples_with_chunks(dice);
  load_often(saved(samples), samples, nullptr, 2, dice, expect_slices);
}

TEST(Runs, OfEncryptedTensorsAreLoaded) {
  Dice dice(304);
  const std::vector<Sample> samples = samples_with_chunks(dice);
  FileKeys keys = keys_of(key_of());
  load_often(saved_as(samples, encrypted()), samples, &keys, 2, dice, expect_slices);
}

// Loads columns of the only tensor of a file.
void load_columns(Source& source, Index& index, const Slice& columns, FileKeys* keys,
                  std::span<const Sample> samples) {
  const Runs runs = columns.runs();
  std::vector<std::byte> memory(runs.size());
  LoadItem item{0, runs.range()};
  item.memory = memory;
  item.runs = &runs;
  LoadSettings settings;
  settings.keys = keys;
  settings.threads = 3;
  settings.memory_ceiling = 64 * kMiB;
  Progress progress;
  Cancel cancel;
  load(source, index, {item}, settings, progress, cancel);
  EXPECT_TRUE(same(memory, bytes_of(columns, samples[0].data)));
}

TEST(Runs, ReadNothingTwiceAndNoLongGap) {
  const std::vector<Sample> samples{sample("t", 8 * kMiB)};
  const std::vector<std::byte> file = saved(samples);
  CountingSource source(file);
  Index index = index_of(source);
  const std::uint64_t data = index.entries()[0].data_offset;
  for (const std::uint64_t run : {std::uint64_t{8}, std::uint64_t{5000}, std::uint64_t{60'000}}) {
    source.forget();
    const Slice columns{{128, 8192}, 8, {{0, 128}, {13, run / 8}}};
    load_columns(source, index, columns, nullptr, samples);
    const bool joined = run == 60'000;  // gaps of 5,536 bytes
    if (joined) {
      // All but those between two pieces.
      EXPECT_LE(source.total(), columns.runs().range().size);
      EXPECT_GT(source.total(), columns.runs().range().size - 5 * 5536);
    } else {
      EXPECT_EQ(source.total(), 128 * run);
    }
    EXPECT_EQ(source.times_read(data + 103), 0);
    EXPECT_EQ(source.times_read(data + 104), 1);
    EXPECT_EQ(source.times_read(data + 104 + 127 * 65'536 + run - 1), 1);
  }
}

TEST(Runs, DecryptEachChunkOnce) {
  const std::vector<Sample> samples{sample("t", 9 * kMiB)};
  const std::vector<std::byte> file = saved_as(samples, encrypted());
  FileKeys keys = keys_of(key_of());
  CountingSource source(file);
  Index index = index_of(source, &keys);
  const Entry& entry = index.entries()[0];
  source.forget();
  // Runs in the second and third chunk, some of which cross their border.
  load_columns(source, index, {{9 * 1024, 1024}, 1, {{3000, 2000}, {1000, 24}}}, &keys, samples);
  EXPECT_EQ(source.times_read(entry.header_offset), 1);
  EXPECT_EQ(source.total(), entry.header_size() + 4 * kMiB);
  for (const std::uint64_t at : {2 * kMiB, 4 * kMiB, 6 * kMiB - 1}) {
    EXPECT_EQ(source.times_read(entry.data_offset + at), 1);
  }
}

// Also if the first and the last byte of the tensor are among them.
TEST(Runs, AreNotVerifiedByDigestsOfTheWhole) {
  const std::vector<std::byte> file = saved(std::vector<Sample>{sample("t", 100)});
  const auto source = memory_source(file, nullptr);
  Index index = index_of(*source);
  const Runs runs = Slice{{10, 10}, 1, {{0, 10}, {0, 2, 9}}}.runs();
  ASSERT_EQ(runs.range().size, 100U);
  std::vector<std::byte> memory(20);
  LoadItem item{0, runs.range()};
  item.memory = memory;
  item.runs = &runs;
  LoadSettings settings;
  settings.verify = Verify::All;
  Progress progress;
  Cancel cancel;
  const Error error = error_of([&] { load(*source, index, {item}, settings, progress, cancel); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
  EXPECT_TRUE(contains(error.what(), "a part of it cannot be verified")) << error.what();
  EXPECT_TRUE(contains(error.what(), "verify=\"none\"")) << error.what();
}

}  // namespace
}  // namespace tensorizer
