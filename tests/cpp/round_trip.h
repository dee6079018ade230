// Saves and loads files in every way, and expects the loaded tensors to be the saved ones.
#pragma once

#include "memory_file.h"

namespace tensorizer::testing_support {

inline constexpr std::size_t kPage = 64 << 10;

// Returns tensors of every size at which something changes, in random order.
inline std::vector<Sample> samples_of_all_sizes(Dice& dice) {
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

// The same, and one that is encrypted in several chunks.
inline std::vector<Sample> samples_with_chunks(Dice& dice) {
  std::vector<Sample> samples = samples_of_all_sizes(dice);
  samples.push_back(sample("chunks", (5 << 20) + 48, 200));
  return samples;
}

inline std::size_t element_size(const Sample& sample) { return dtype_info(sample.spec.dtype).size; }

inline void save(std::span<const Sample> samples, Sink& sink, Layout& layout, SaveSettings settings,
                 bool staged) {
  StagedMemories inputs;
  std::vector<SaveItem> items;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Sample& each = samples[i];
    inputs.push_back(std::make_unique<StagedMemory>(each.data, element_size(each)));
    // Every other tensor is staged, so that one bundle has both kinds.
    const bool stage = staged && i % 2 == 0;
    items.push_back(stage ? SaveItem{{}, static_cast<std::uint32_t>(i)} : SaveItem{each.data, {}});
    total += each.data.size();
  }
  settings.open_access = [&] { return TensorAccess{.port = std::make_unique<LatePort>(inputs)}; };
  Progress progress;
  Cancel cancel;
  save_file(sink, layout, items, settings, progress, cancel);
  EXPECT_EQ(progress.done, total);
  EXPECT_EQ(progress.total, total);
}

inline void save(std::span<const Sample> samples, Sink& sink, const FileKind& kind,
                 const SaveSettings& settings, bool staged) {
  TensorsLayout layout = layout_as(samples, kind, sink.start());
  save(samples, sink, layout, settings, staged);
}

inline void save(std::span<const Sample> samples, Sink& sink, HashKinds hashes,
                 const SaveSettings& settings, bool staged) {
  save(samples, sink, FileKind{{hashes, {}}, false}, settings, staged);
}

// Loads items of which the staged ones go to `outputs`, and expects them to take `total` bytes.
inline void load_items(Source& source, Catalogue& catalogue, const std::vector<LoadItem>& items,
                       const StagedMemories& outputs, std::uint64_t total, LoadSettings settings) {
  settings.open_access = [&] { return TensorAccess{.port = std::make_unique<LatePort>(outputs)}; };
  Progress progress;
  Cancel cancel;
  load(source, catalogue, items, settings, progress, cancel);
  EXPECT_EQ(progress.done, total);
  EXPECT_EQ(progress.total, total);
}

// Expects what was loaded of a sample: in `output`, or in `memory` if that is null.
inline void expect_bytes(const Sample& sample, const std::unique_ptr<StagedMemory>& output,
                         ConstBytes memory, ConstBytes expected) {
  EXPECT_TRUE(same(output ? ConstBytes(output->bytes) : memory, expected))
      << sample.spec.name << " of " << sample.data.size();
}

enum class Into { Memory, Staged, Mixed };

// Loads the chosen entries and expects the data of their samples.
inline void expect_loaded(Source& source, Catalogue& index, std::span<const Sample> samples,
                          std::vector<std::uint32_t> chosen, Into into, LoadSettings settings) {
  std::vector<std::vector<std::byte>> memory(samples.size());
  StagedMemories outputs(samples.size());
  std::vector<LoadItem> items;
  std::uint64_t total = 0;
  for (const std::uint32_t entry : chosen) {
    const Sample& expected = samples[entry];
    total += expected.data.size();
    LoadItem item = whole_tensor(index, entry);
    if (into == Into::Staged || (into == Into::Mixed && entry % 2 == 0)) {
      outputs[entry] = std::make_unique<StagedMemory>(std::vector<std::byte>(expected.data.size()),
                                                      element_size(expected));
      item.staged = StagedRange{entry};
    } else {
      memory[entry].resize(expected.data.size());
      item.memory = memory[entry];
    }
    items.push_back(item);
  }
  load_items(source, index, items, outputs, total, std::move(settings));
  for (const std::uint32_t entry : chosen) {
    expect_bytes(samples[entry], outputs[entry], memory[entry], samples[entry].data);
    if (outputs[entry]) {
      EXPECT_EQ(outputs[entry]->passed, samples[entry].data.size());
    }
    EXPECT_EQ(index.entries()[entry].dtype, samples[entry].spec.dtype);
  }
}

inline std::vector<std::uint32_t> all_of(std::span<const Sample> samples) {
  std::vector<std::uint32_t> all(samples.size());
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

inline Index index_of(Source& source, FileKeys* keys = nullptr) {
  Cancel cancel;
  return read_index(source, keys, cancel);
}

// Calls `expect` with a file that can be read in any order, and as a stream, with random settings.
template <typename Expect>
void load_often(ConstBytes file, std::span<const Sample> samples, FileKeys* keys, int rounds,
                Dice& dice, const Expect& expect) {
  for (int round = 0; round < rounds; ++round) {
    LoadSettings settings;
    settings.keys = keys;
    settings.threads = static_cast<int>(1 + dice.below(4));
    settings.memory_ceiling = dice.pick(std::vector<std::uint64_t>{0, 1 << 20, 64 << 20});
    settings.zero_incomplete = [](std::uint32_t) { ADD_FAILURE() << "a tensor was incomplete"; };
    const auto source = memory_source(file, nullptr);
    SequentialSource once(file);
    for (Source* const each : {source.get(), static_cast<Source*>(&once)}) {
      Index index = index_of(*each, keys);
      expect(*each, index, samples, dice, settings);
    }
  }
}

}  // namespace tensorizer::testing_support
