// Whole files through the engine: saved in any way and loaded in any way, they come back as they
// were.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "memory_file.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

constexpr std::size_t kPage = 64 << 10;

// Tensors of every size at which something changes, in an order that mixes them.
std::vector<Sample> samples_of_all_sizes(Dice& dice) {
  std::vector<std::size_t> sizes{
      0,     1,         63,        64,     65,      511,           4096,          kPage - 1,
      kPage, kPage + 1, 3 * kPage, 300000, 1 << 20, (1 << 20) + 7, (3 << 20) + 11};
  for (int i = 0; i < 20; ++i) sizes.push_back(dice.below(3000));
  for (std::size_t i = sizes.size(); i > 1; --i) std::swap(sizes[i - 1], sizes[dice.below(i)]);
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Sample made = sample("tensor." + std::to_string(i), sizes[i], static_cast<std::uint32_t>(i));
    if (sizes[i] > 0 && sizes[i] % 16 == 0 && dice.one_in(2)) {
      made.spec.dtype = DType::Complex128;
      made.spec.shape = {static_cast<std::int64_t>(sizes[i] / 16)};
    }
    if (sizes[i] == 0 || dice.one_in(5)) {
      made.spec.dtype = DType::Float8E4M3FN;
      made.spec.shape = {static_cast<std::int64_t>(sizes[i])};
    }
    samples.push_back(std::move(made));
  }
  Sample meta = sample("meta", 0);
  meta.spec.shape = {5, 7};
  meta.spec.meta = true;
  samples.push_back(std::move(meta));
  return samples;
}

std::size_t element_size(const Sample& sample) { return dtype_info(sample.spec.dtype).size; }

void save(std::span<const Sample> samples, Sink& sink, HashKinds hashes, SaveSettings settings,
          bool staged) {
  Layout layout = layout_of(samples, hashes, sink.start());
  StagedMemories inputs;
  std::vector<SaveItem> items;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Sample& each = samples[i];
    inputs.push_back(std::make_unique<StagedMemory>(each.data, element_size(each)));
    // Every other one, so that both kinds meet in one bundle.
    const bool stage = staged && i % 2 == 0;
    items.push_back(stage ? SaveItem{{}, static_cast<std::uint32_t>(i)} : SaveItem{each.data, {}});
    total += each.data.size();
  }
  settings.make_stage = [&] { return std::make_unique<LateStage>(inputs, true); };
  Progress progress;
  Cancel cancel;
  save_file(sink, layout, items, settings, progress, cancel);
  EXPECT_EQ(progress.done, total);
  EXPECT_EQ(progress.total, total);
}

enum class Into { Memory, Staged, Mixed };

// Loads the chosen entries and expects the data of their samples.
void expect_loaded(Source& source, Index& index, std::span<const Sample> samples,
                   std::vector<std::uint32_t> chosen, Into into, LoadSettings settings) {
  std::vector<std::vector<std::byte>> memory(samples.size());
  StagedMemories outputs(samples.size());
  std::vector<LoadItem> items;
  std::uint64_t total = 0;
  for (const std::uint32_t entry : chosen) {
    const Sample& expected = samples[entry];
    total += expected.data.size();
    LoadItem item{};
    item.entry = entry;
    if (into == Into::Staged || (into == Into::Mixed && entry % 2 == 0)) {
      outputs[entry] = std::make_unique<StagedMemory>(std::vector<std::byte>(expected.data.size()),
                                                      element_size(expected));
      item.staged = entry;
    } else {
      memory[entry].resize(expected.data.size());
      item.memory = memory[entry];
    }
    items.push_back(item);
  }
  settings.make_stage = [&] { return std::make_unique<LateStage>(outputs, false); };
  Progress progress;
  Cancel cancel;
  load(source, index, items, settings, progress, cancel);
  EXPECT_EQ(progress.done, total);
  EXPECT_EQ(progress.total, total);
  for (const std::uint32_t entry : chosen) {
    const bool staged = outputs[entry] != nullptr;
    EXPECT_TRUE(same(staged ? outputs[entry]->bytes : memory[entry], samples[entry].data))
        << samples[entry].spec.name << " of " << samples[entry].data.size();
    if (staged) {
      EXPECT_EQ(outputs[entry]->passed, samples[entry].data.size());
    }
    EXPECT_EQ(index.entries()[entry].dtype, samples[entry].spec.dtype);
  }
}

std::vector<std::uint32_t> all_of(std::span<const Sample> samples) {
  std::vector<std::uint32_t> all(samples.size());
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

Index index_of(Source& source) {
  Cancel cancel;
  return read_index(source, nullptr, cancel);
}

TEST(RoundTrip, OfEverySizeInEveryWay) {
  Dice dice(51);
  const std::vector<Sample> samples = samples_of_all_sizes(dice);
  for (const bool ascending : {false, true}) {
    for (const bool staged : {false, true}) {
      for (const HashKinds hashes : {HashKinds{true, true}, HashKinds{true, false},
                                     HashKinds{false, true}, HashKinds{false, false}}) {
        SaveSettings settings;
        settings.threads = static_cast<int>(1 + dice.below(4));
        settings.memory_ceiling = dice.pick(std::vector<std::uint64_t>{0, 1 << 20, 64 << 20});
        MemorySink sink(ascending);
        save(samples, sink, hashes, settings, staged);
        ASSERT_TRUE(sink.finished);
        const auto source = memory_source(sink.bytes, nullptr);
        Index index = index_of(*source);
        LoadSettings load_settings;
        load_settings.threads = static_cast<int>(1 + dice.below(4));
        load_settings.memory_ceiling = settings.memory_ceiling;
        expect_loaded(*source, index, samples, all_of(samples), Into::Memory, load_settings);
        if (!hashes.crc32 && !hashes.sha256) continue;
        load_settings.verify = Verify::All;
        expect_loaded(*source, index, samples, all_of(samples), Into::Mixed, load_settings);
      }
    }
  }
}

TEST(RoundTrip, LoadsInEveryWay) {
  Dice dice(52);
  const std::vector<Sample> samples = samples_of_all_sizes(dice);
  for (const HashKinds hashes :
       {HashKinds{true, true}, HashKinds{true, false}, HashKinds{false, true}}) {
    const std::vector<std::byte> file = saved(samples, hashes);
    const auto source = memory_source(file, nullptr);
    Index index = index_of(*source);
    for (const Verify verify : {Verify::None, Verify::Crc32, Verify::All}) {
      for (const Into into : {Into::Memory, Into::Staged, Into::Mixed}) {
        for (int threads = 1; threads <= 4; ++threads) {
          LoadSettings settings;
          settings.verify = verify;
          settings.threads = threads;
          settings.memory_ceiling = dice.pick(std::vector<std::uint64_t>{0, 1 << 20, 64 << 20});
          // All of them, or some, in any order.
          std::vector<std::uint32_t> chosen = all_of(samples);
          if (threads % 2 == 0) {
            for (std::size_t i = chosen.size(); i > 1; --i) {
              std::swap(chosen[i - 1], chosen[dice.below(i)]);
            }
            chosen.resize(dice.below(chosen.size()));
          }
          expect_loaded(*source, index, samples, chosen, into, settings);
        }
      }
    }
  }
}

TEST(RoundTrip, FromASourceThatGivesItsBytesInOrder) {
  Dice dice(53);
  const std::vector<Sample> samples = samples_of_all_sizes(dice);
  const std::vector<std::byte> file = saved(samples);
  for (const Verify verify : {Verify::None, Verify::Crc32, Verify::All}) {
    for (const Into into : {Into::Memory, Into::Mixed}) {
      for (const int threads : {1, 3}) {
        SequentialSource source(file);
        Index index = index_of(source);
        LoadSettings settings;
        settings.verify = verify;
        settings.threads = threads;
        std::vector<std::uint32_t> chosen = all_of(samples);
        if (threads == 3) std::reverse(chosen.begin(), chosen.end());
        if (into == Into::Mixed) chosen.resize(chosen.size() / 2);
        expect_loaded(source, index, samples, chosen, into, settings);
      }
    }
  }
}

TEST(RoundTrip, BehindOtherBytes) {
  Dice dice(54);
  const std::vector<Sample> samples = samples_of_all_sizes(dice);
  const std::uint64_t start = 12345;
  MemorySink sink(false, start);
  save(samples, sink, {true, true}, {}, false);
  // Offsets count from the start of the file object, so the index holds for it as it is.
  const auto source = memory_source(sink.bytes, nullptr);
  const ConstBytes file = ConstBytes(sink.bytes).subspan(start);
  const FilePlace place{"'f'", start, sink.bytes.size()};
  const FileHeader header = parse_file_header(file, place);
  const ConstBytes entries = file.subspan(kFileHeaderSize, header.index_size);
  Index index(header, {entries.begin(), entries.end()}, place);
  LoadSettings settings;
  settings.verify = Verify::All;
  expect_loaded(*source, index, samples, all_of(samples), Into::Memory, settings);
}

TEST(RoundTrip, ThroughAFile) {
  std::string folder = std::filesystem::temp_directory_path() / "engine_load_test_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/model.tensors";
  Dice dice(55);
  const std::vector<Sample> samples = samples_of_all_sizes(dice);
  for (const int threads : {1, 3}) {
    Cancel cancel;
    const auto sink = open_sink(path, {}, cancel);
    save(samples, *sink, {true, true}, {.threads = threads, .memory_ceiling = 8 << 20}, true);
    const auto source = open_source(path, {}, cancel);
    Index index = index_of(*source);
    LoadSettings settings;
    settings.threads = threads;
    settings.verify = Verify::All;
    expect_loaded(*source, index, samples, all_of(samples), Into::Mixed, settings);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  }
  std::filesystem::remove_all(folder);
}

// Items whose bytes are where they belong, as in a mapping, among others that must be read.
TEST(Load, VerifiesInPlace) {
  Dice dice(56);
  const std::vector<Sample> samples = samples_of_all_sizes(dice);
  std::vector<std::byte> file = saved(samples);
  const auto source = memory_source(file, nullptr);
  Index index = index_of(*source);
  for (const Verify verify : {Verify::None, Verify::Crc32, Verify::All}) {
    for (const int threads : {1, 3}) {
      LoadSettings settings;
      settings.verify = verify;
      settings.threads = threads;
      settings.mapping = file;
      std::vector<std::vector<std::byte>> read(samples.size());
      std::vector<LoadItem> items;
      for (std::uint32_t i = 0; i < samples.size(); ++i) {
        const Entry& entry = index.entries()[i];
        read[i].resize(entry.data_size);
        const bool in_place = i % 3 != 0;
        items.push_back(
            {i,
             in_place ? Bytes(file).subspan(entry.data_offset, entry.data_size) : Bytes(read[i]),
             in_place,
             {}});
      }
      Progress progress;
      Cancel cancel;
      load(*source, index, items, settings, progress, cancel);
      for (std::uint32_t i = 0; i < samples.size(); i += 3) {
        EXPECT_TRUE(same(read[i], samples[i].data));
      }
    }
  }
}

TEST(Load, OfNothingIsDone) {
  const std::vector<std::byte> file = saved({});
  const auto source = memory_source(file, nullptr);
  Index index = index_of(*source);
  EXPECT_TRUE(index.entries().empty());
  LoadSettings settings;
  settings.verify = Verify::All;
  expect_loaded(*source, index, {}, {}, Into::Memory, settings);
}

TEST(Load, RefusesToVerifyWithoutHashes) {
  for (const std::size_t size : {std::size_t{10}, std::size_t{2} << 20}) {
    const std::vector<Sample> samples{sample("bare", size)};
    const std::vector<std::byte> file = saved(samples, {false, false});
    const auto source = memory_source(file, nullptr);
    Index index = index_of(*source);
    LoadSettings settings;
    settings.verify = Verify::Crc32;
    std::vector<std::byte> out(size);
    Progress progress;
    Cancel cancel;
    const Error error =
        error_of([&] { load(*source, index, {{0, out, false, {}}}, settings, progress, cancel); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
    EXPECT_TRUE(contains(error.what(), "tensor 'bare' (index entry 0): there is nothing to verify"))
        << error.what();
  }
}

// A Writer saves a few tensors at a time, with the prefix last.
TEST(Save, MayComeInParts) {
  Dice dice(57);
  const std::vector<Sample> samples = samples_of_all_sizes(dice);
  Layout layout = layout_of(samples, {true, true});
  MemorySink sink;
  Progress progress;
  Cancel cancel;
  const std::uint64_t prefix_size = layout.prefix_size();
  sink.reserve(prefix_size);
  for (std::size_t first = 0; first < samples.size();) {
    const std::size_t count = std::min<std::size_t>(1 + dice.below(5), samples.size() - first);
    std::vector<SaveItem> items;
    for (std::size_t i = first; i < first + count; ++i) items.push_back({samples[i].data, {}});
    save_tensors(sink, layout, first, items, {}, progress, cancel);
    first += count;
  }
  write_terminator(sink, layout, cancel);
  sink.write_prefix(layout.prefix(0, prefix_size), cancel);
  sink.finish(layout.file_size(), cancel);
  EXPECT_TRUE(same(sink.bytes, saved(samples)));
}

}  // namespace
}  // namespace tensorizer
