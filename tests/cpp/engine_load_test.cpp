// Whole files through the engine: saved in every way and loaded in every way, they hold what was
// saved.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "io/places/open.h"
#include "round_trip.h"

namespace tensorizer {
namespace {

using namespace testing_support;

TEST(RoundTrip, OfEverySizeInEveryWay) {
  Dice dice(51);
  const std::vector<Sample> samples = samples_of_all_sizes(dice);
  for (const bool sequential : {false, true}) {
    for (const bool staged : {false, true}) {
      for (const HashKinds hashes : {HashKinds{true, true}, HashKinds{true, false},
                                     HashKinds{false, true}, HashKinds{false, false}}) {
        SaveSettings settings;
        settings.threads = static_cast<int>(1 + dice.below(4));
        settings.memory_ceiling = dice.pick(std::vector<std::uint64_t>{0, 1 << 20, 64 << 20});
        MemorySink sink(sequential);
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
          // All entries in order, or some of them in random order.
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
  save(samples, sink, HashKinds{true, true}, {}, false);
  // Offsets count from the start of the file object, so the index is valid for it as it is.
  const auto source = memory_source(sink.bytes, nullptr);
  const ConstBytes file = ConstBytes(sink.bytes).subspan(start);
  const FileLocation location{"'f'", start, sink.bytes.size()};
  const FileHeader header = parse_file_header(file, location);
  const ConstBytes entries = file.subspan(kFileHeaderSize, header.index_size);
  Cancel cancel;
  Index index(header, {entries.begin(), entries.end()}, location, cancel);
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
    save(samples, *sink, HashKinds{true, true}, {.threads = threads, .memory_ceiling = 8 << 20},
         true);
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

// Items whose bytes are in place already, as in a mapping, among others that must be read.
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
        const Bytes stored = Bytes(file).subspan(entry.data_offset, entry.data_size);
        items.push_back(item_into(index, i, in_place ? stored : Bytes(read[i])));
        items.back().in_place = in_place;
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

// Items without memory: their bytes are read and verified, but not stored.
TEST(Load, LooksAtWhatHasNoPlace) {
  Dice dice(58);
  const std::vector<Sample> samples = samples_of_all_sizes(dice);
  for (const HashKinds hashes : {HashKinds{true, false}, HashKinds{true, true}}) {
    std::vector<std::byte> file = saved(samples, hashes);
    const auto source = memory_source(file, nullptr);
    Index index = index_of(*source);
    std::vector<LoadItem> items;
    for (std::uint32_t i = 0; i < samples.size(); ++i) items.push_back(whole_tensor(index, i));
    for (const Verify verify : {Verify::Crc32, Verify::All}) {
      for (const int threads : {1, 3}) {
        for (const std::uint64_t ceiling : {std::uint64_t{0}, std::uint64_t{8} << 20}) {
          LoadSettings settings;
          settings.verify = verify;
          settings.threads = threads;
          settings.memory_ceiling = ceiling;
          Progress progress;
          Cancel cancel;
          load(*source, index, items, settings, progress, cancel);
          EXPECT_EQ(progress.done, progress.total);
          for (const Entry& entry : index.entries()) {
            if (entry.data_size == 0 || !dice.one_in(4)) continue;
            const std::uint64_t at = entry.data_offset + dice.below(entry.data_size);
            file[at] ^= std::byte{16};
            Cancel fresh;
            const Error error =
                error_of([&] { load(*source, index, items, settings, progress, fresh); });
            file[at] ^= std::byte{16};
            EXPECT_EQ(error.kind(), ErrorKind::HashMismatch) << error.what();
            EXPECT_TRUE(contains(error.what(), quote(entry.name))) << error.what();
          }
        }
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
    const Error error = error_of(
        [&] { load(*source, index, {item_into(index, 0, out)}, settings, progress, cancel); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    EXPECT_TRUE(contains(error.what(), "tensor 'bare' (index entry 0): there is nothing to verify"))
        << error.what();
  }
}

// A store that keeps parts under names gets two parts for each tensor, or one for a tensor without
// data.
TEST(Save, AnnouncesHeadersAndData) {
  std::vector<Sample> samples{sample("a", 10), sample("empty", 0), sample("b", 3 << 20)};
  TensorsLayout layout = layout_of(samples, {true, true});
  std::vector<SaveItem> items;
  for (const Sample& each : samples) items.push_back({each.data, {}});
  for (const bool sequential : {false, true}) {
    MemorySink sink(sequential);
    Progress progress;
    Cancel cancel;
    save_file(sink, layout, items, {}, progress, cancel);
    EXPECT_EQ(sink.names, (std::vector<std::string>{"a", "a", "empty", "b", "b"}));
    EXPECT_EQ(sink.announced, layout.end());
  }
}

// A Writer saves a few tensors at a time, with the prefix last.
TEST(Save, MayComeInParts) {
  Dice dice(57);
  const std::vector<Sample> samples = samples_of_all_sizes(dice);
  TensorsLayout layout = layout_of(samples, {true, true});
  MemorySink sink;
  Progress progress;
  Cancel cancel;
  const std::uint64_t prefix_size = layout.prefix_size();
  sink.begin(prefix_size, std::nullopt);
  for (std::size_t first = 0; first < samples.size();) {
    const std::size_t count = std::min<std::size_t>(1 + dice.below(5), samples.size() - first);
    std::vector<SaveItem> items;
    for (std::size_t i = first; i < first + count; ++i) items.push_back({samples[i].data, {}});
    save_tensors(sink, layout, first, items, {}, progress, cancel);
    first += count;
  }
  write_terminator(sink, layout, cancel);
  sink.write_head(layout.prefix(0, prefix_size), cancel);
  sink.finish(layout.file_size(), cancel);
  EXPECT_TRUE(same(sink.bytes, saved(samples)));
}

}  // namespace
}  // namespace tensorizer
