// Loads from catalogues that no `.tensors` file fills: tensors without headers.
#include "counting_source.h"
#include "round_trip.h"

namespace tensorizer {
namespace {

using namespace testing_support;

// Tensors without headers: names, places and hashes are known beforehand.
class PlainCatalogue final : public Catalogue {
 public:
  explicit PlainCatalogue(std::span<const Sample> samples) {
    for (const Sample& sample : samples) {
      Entry entry{};
      entry.name = sample.spec.name;
      entry.type = TensorType::StateDictEntry;
      entry.dtype = sample.spec.dtype;
      entry.element_size = static_cast<std::uint32_t>(element_size(sample));
      entry.shape = sample.spec.shape;
      entry.header_offset = entry.data_offset = end_;
      entry.data_size = sample.data.size();
      end_ = entry.end();
      entries_.push_back(entry);
      hashes_.push_back(digest_all({{DigestStart{{}, {Hash::Crc32, Hash::Sha256}}}},
                                   {{ConstBytes(sample.data)}})[0]);
    }
  }

  FormatInfo info() const override { return {Format::Safetensors, 0, 0, end_, entries_.size()}; }
  bool encrypted() const noexcept override { return false; }
  bool authenticated() const noexcept override { return false; }
  void check_header_size(std::size_t, const FileLocation&) const override {}
  TensorDetails details(std::size_t entry, Bytes header, const FileLocation&) const override {
    EXPECT_TRUE(header.empty());
    TensorDetails details;
    details.dtype = *entries_[entry].dtype;
    details.digests = hashes_[entry];
    return details;
  }

 private:
  std::vector<Digests> hashes_;
};

TEST(CatalogueWithoutHeaders, IsLoadedAndVerified) {
  Dice dice(93);
  std::vector<Sample> samples = samples_of_all_sizes(dice);
  samples.pop_back();  // the meta tensor, which has no data
  std::vector<std::byte> file;
  for (const Sample& each : samples) file.insert(file.end(), each.data.begin(), each.data.end());
  PlainCatalogue catalogue(samples);
  for (const Verify verify : {Verify::None, Verify::Crc32, Verify::All}) {
    for (const int threads : {1, 3}) {
      for (const bool staged : {false, true}) {
        for (const std::uint64_t ceiling : {std::uint64_t{0}, std::uint64_t{64} << 20}) {
          std::vector<std::vector<std::byte>> memory(samples.size());
          StagedMemories outputs(samples.size());
          std::vector<LoadItem> items;
          for (std::uint32_t i = 0; i < samples.size(); ++i) {
            memory[i].resize(samples[i].data.size());
            if (staged) {
              outputs[i] = std::make_unique<StagedMemory>(memory[i], element_size(samples[i]));
            }
            items.push_back(staged ? staged_item(catalogue, i, i)
                                   : item_into(catalogue, i, memory[i]));
          }
          LoadSettings settings;
          settings.verify = verify;
          settings.threads = threads;
          settings.memory_ceiling = ceiling;
          settings.open_access = [&] {
            return TensorAccess{.port = std::make_unique<LatePort>(outputs)};
          };
          Progress progress;
          Cancel cancel;
          const auto source = memory_source(file, nullptr);
          load(*source, catalogue, items, settings, progress, cancel);
          for (std::uint32_t i = 0; i < samples.size(); ++i) {
            EXPECT_TRUE(same(staged ? outputs[i]->bytes : memory[i], samples[i].data));
          }
          if (verify == Verify::None) continue;
          const std::uint64_t damaged = dice.below(file.size());
          file[damaged] ^= std::byte{4};
          Cancel fresh;
          const Error error =
              error_of([&] { load(*source, catalogue, items, settings, progress, fresh); });
          file[damaged] ^= std::byte{4};
          EXPECT_EQ(error.kind(), ErrorKind::HashMismatch);
        }
      }
    }
  }
}

TEST(CatalogueWithoutHeaders, GivesRanges) {
  Dice dice(94);
  std::vector<Sample> samples = samples_of_all_sizes(dice);
  samples.pop_back();
  std::vector<std::byte> file;
  for (const Sample& each : samples) file.insert(file.end(), each.data.begin(), each.data.end());
  PlainCatalogue catalogue(samples);
  CountingSource source(file);
  const auto largest =
      static_cast<std::uint32_t>(std::max_element(samples.begin(), samples.end(),
                                                  [](const Sample& a, const Sample& b) {
                                                    return a.data.size() < b.data.size();
                                                  }) -
                                 samples.begin());
  std::vector<std::byte> memory(5000);
  LoadItem item{largest, {1'000'003, 5000}};
  item.memory = memory;
  Progress progress;
  Cancel cancel;
  load(source, catalogue, {item}, {}, progress, cancel);
  EXPECT_TRUE(same(memory, ConstBytes(samples[largest].data).subspan(1'000'003, 5000)));
  EXPECT_EQ(source.total(), 5000U);
}

}  // namespace
}  // namespace tensorizer
