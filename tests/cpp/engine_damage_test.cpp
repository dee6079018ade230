// Damaged files, and the ceiling on memory.
#include "memory_file.h"
#include "memory_watch.h"
#include "raw_file.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

constexpr std::size_t kMiB = 1 << 20;

// ---- damage

void load_all(ConstBytes file, const LoadSettings& settings, bool staged = false) {
  Cancel cancel;
  const auto source = memory_source(file, nullptr);
  Index index = read_index(*source, nullptr, cancel);
  std::vector<std::vector<std::byte>> memory;
  std::vector<LoadItem> items;
  for (std::uint32_t i = 0; i < index.entries().size(); ++i) {
    memory.emplace_back(index.entries()[i].data_size);
    items.push_back(staged ? staged_item(index, i, i) : item_into(index, i, memory.back()));
  }
  Progress progress;
  load(*source, index, items, settings, progress, cancel);
}

LoadSettings verified(Verify verify = Verify::All, int threads = 1) {
  LoadSettings settings;
  settings.verify = verify;
  settings.threads = threads;
  return settings;
}

std::vector<Entry> entries_of(ConstBytes file) {
  Cancel cancel;
  const Index index = read_index(*memory_source(file, nullptr), nullptr, cancel);
  return {index.entries().begin(), index.entries().end()};
}

TEST(Damage, OfAnyByteIsFoundAndSaysWhere) {
  std::vector<Sample> samples{sample("first", 3), sample("second", 130), sample("empty", 0)};
  samples[1].spec.dtype = DType::BFloat16;
  samples[1].spec.shape = {5, 13};
  samples[2].spec.dtype = DType::BFloat16;
  std::vector<std::byte> file = saved(samples);
  load_all(file, verified());
  Cancel cancel;
  const auto source = memory_source(file, nullptr);
  const Index index = read_index(*source, nullptr, cancel);
  for (const Entry& entry : index.entries()) {
    for (std::uint64_t at = entry.header_offset; at < entry.end(); ++at) {
      for (const int flip : {0x01, 0x80, 0xff}) {
        file[at] ^= static_cast<std::byte>(flip);
        const Error error = error_of([&] { load_all(file, verified()); });
        file[at] ^= static_cast<std::byte>(flip);
        EXPECT_TRUE(error.kind() == ErrorKind::HashMismatch ||
                    (error.kind() == ErrorKind::InvalidFormat && at < entry.data_offset))
            << error.what();
        EXPECT_TRUE(contains(error.what(), "tensor " + quote(entry.name) + " (index entry "))
            << error.what();
      }
    }
  }
  load_all(file, verified());
}

TEST(Damage, OfTheIndexIsFound) {
  const std::vector<Sample> samples{sample("first", 3), sample("second", 130)};
  std::vector<std::byte> file = saved(samples);
  const std::size_t entries_end =
      kFileHeaderSize + (2 + 5 + 1 + 1 + 3 + 1 + 4 + 24) + (2 + 6 + 1 + 1 + 3 + 1 + 4 + 24);
  for (std::size_t at = kFileHeaderSize; at < entries_end; ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      file[at] ^= static_cast<std::byte>(flip);
      const Error error = error_of([&] { load_all(file, verified()); });
      file[at] ^= static_cast<std::byte>(flip);
      EXPECT_TRUE(error.kind() == ErrorKind::InvalidFormat ||
                  error.kind() == ErrorKind::HashMismatch)
          << at << ": " << error.what();
    }
  }
}

TEST(Damage, OfALargeTensorIsFoundByEveryHash) {
  constexpr std::size_t kSize = 2 * kMiB + 77;
  const std::vector<Sample> samples{sample("before", 100), sample("large", kSize),
                                    sample("other", kMiB), sample("after", 100)};
  for (const HashKinds hashes :
       {HashKinds{true, false}, HashKinds{false, true}, HashKinds{true, true}}) {
    std::vector<std::byte> file = saved(samples, hashes);
    const Entry large = entries_of(file)[1];
    for (const Verify verify : {Verify::Crc32, Verify::All}) {
      for (const int threads : {1, 3}) {
        load_all(file, verified(verify, threads));
        for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{65535}, std::uint64_t{65536},
                                       std::uint64_t{kMiB}, std::uint64_t{kSize - 1}}) {
          file[large.data_offset + at] ^= std::byte{4};
          for (const bool staged : {false, true}) {
            const Error error =
                error_of([&] { load_all(file, verified(verify, threads), staged); });
            EXPECT_EQ(error.kind(), ErrorKind::HashMismatch);
            EXPECT_TRUE(
                contains(error.what(), "tensor 'large' (index entry 1): its bytes from offset"))
                << error.what();
          }
          file[large.data_offset + at] ^= std::byte{4};
        }
      }
    }
  }
}

TEST(Damage, OfASha256IsOfNoInterestToACrc32) {
  for (const std::size_t size : {std::size_t{100}, 3 * kMiB}) {
    RawFile file({RawTensor{.dtype = "|u1", .shape = {size}, .data = std::string(size, 'x')}});
    file.bytes[file.fields.at("0.h.sha256").at] ^= std::byte{1};
    load_all(file.bytes, verified(Verify::Crc32));
    EXPECT_EQ(kind_of([&] { load_all(file.bytes, verified()); }), ErrorKind::HashMismatch);
  }
}

TEST(Damage, OfAHeaderStopsALoadThatNeedsIt) {
  std::vector<Sample> samples{sample("large", kMiB)};
  std::vector<std::byte> file = saved(samples);
  const Entry entry = entries_of(file)[0];
  file[entry.header_offset + 8 + 2] = std::byte{0};  // the type of the tensor
  load_all(file, verified(Verify::None));
  for (const int threads : {1, 3}) {
    const Error error = error_of([&] { load_all(file, verified(Verify::Crc32, threads)); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
    EXPECT_TRUE(contains(error.what(), "tensor 'large' (index entry 0): its header at offset "));
  }
}

TEST(Damage, IsASourceThatEndsTooSoon) {
  const std::vector<Sample> samples{sample("small", 100), sample("large", kMiB)};
  const std::vector<std::byte> file = saved(samples);
  for (const std::size_t size : {file.size() - 9, file.size() - kMiB / 2, std::size_t{4200}}) {
    // Only a source that does not know its size lets a load get that far.
    SequentialSource source(ConstBytes(file).first(size));
    Cancel cancel;
    Index index = read_index(source, nullptr, cancel);
    std::vector<std::byte> small(100);
    std::vector<std::byte> large(kMiB);
    Progress progress;
    const Error error = error_of([&] {
      load(source, index, {item_into(index, 0, small), item_into(index, 1, large)},
           verified(Verify::All, 2), progress, cancel);
    });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
  }
}

// ---- memory

TEST(MemoryCeiling, HoldsWhereEverythingIsStaged) {
  std::vector<Sample> samples;
  for (int i = 0; i < 4; ++i) samples.push_back(sample("large" + std::to_string(i), 8 * kMiB));
  for (int i = 0; i < 500; ++i) samples.push_back(sample("small" + std::to_string(i), 5000));
  const std::vector<std::byte> file = saved(samples);

  class NullSink final : public Sink {
   public:
    explicit NullSink(bool sequential) : sequential_(sequential) {}
    bool sequential() const override { return sequential_; }
    void begin(std::uint64_t, std::optional<std::uint64_t>) override {}
    void write_head(ConstBytes, Cancel&) override {}
    void write(std::uint64_t, std::span<const ConstBytes>, KeptUntil, Cancel&) override {}
    void finish(std::uint64_t, Cancel&) override {}
    void abort() noexcept override {}
    const std::string& label() const override { return label_; }

   private:
    bool sequential_;
    std::string label_ = "'nowhere'";
  };

  for (const std::uint64_t ceiling : {1 * kMiB, 4 * kMiB}) {
    for (const int threads : {1, 4}) {
      for (const Verify verify : {Verify::None, Verify::Crc32, Verify::All}) {
        Cancel cancel;
        Progress progress;
        const auto source = memory_source(file, nullptr);
        Index index = read_index(*source, nullptr, cancel);
        std::vector<LoadItem> items;
        for (std::uint32_t i = 0; i < samples.size(); ++i)
          items.push_back(staged_item(index, i, i));
        LoadSettings settings = verified(verify, threads);
        settings.memory_ceiling = ceiling;
        const MemoryWatch watch;
        load(*source, index, items, settings, progress, cancel);
        EXPECT_LE(watch.peak(), ceiling) << threads;
      }
      for (const Verify verify : {Verify::Crc32, Verify::All}) {
        Cancel cancel;
        Progress progress;
        const auto source = memory_source(file, nullptr);
        Index index = read_index(*source, nullptr, cancel);
        std::vector<LoadItem> items;
        for (std::uint32_t i = 0; i < samples.size(); ++i) items.push_back(whole_tensor(index, i));
        LoadSettings settings = verified(verify, threads);
        settings.memory_ceiling = ceiling;
        const MemoryWatch watch;
        load(*source, index, items, settings, progress, cancel);
        EXPECT_LE(watch.peak(), ceiling) << "looked at, " << threads;
      }
      for (const bool sequential : {false, true}) {
        TensorsLayout layout = layout_of(samples, {true, true});
        const std::vector<SaveItem> items(samples.size(), SaveItem{{}, 0});
        NullSink sink(sequential);
        Cancel cancel;
        Progress progress;
        const MemoryWatch watch;
        save_file(sink, layout, items, {.threads = threads, .memory_ceiling = ceiling}, progress,
                  cancel);
        EXPECT_LE(watch.peak(), ceiling) << threads;
      }
    }
  }
}

// Headers may be padded by up to 64 KiB. Memory holds only the headers that are being loaded.
TEST(MemoryCeiling, HoldsWithLongHeaders) {
  constexpr std::size_t kSize = 20000;
  constexpr std::uint64_t kCeiling = 8 * kMiB;
  std::vector<RawTensor> tensors;
  for (int i = 0; i < 400; ++i) {
    tensors.push_back({.name = "t" + std::to_string(i),
                       .dtype = std::string("|V1\0torch.bits8", 15),
                       .shape = {kSize},
                       .data = std::string(kSize, 'x'),
                       .index_dtype = "|V1",
                       .padding = 60000});
  }
  const RawFile file(tensors, 2);
  std::vector<std::vector<std::byte>> memory(tensors.size(), std::vector<std::byte>(kSize));
  for (const Verify verify : {Verify::None, Verify::All}) {
    for (const bool sequential : {false, true}) {
      const auto source =
          sequential ? std::unique_ptr<Source>(std::make_unique<SequentialSource>(file.bytes))
                     : memory_source(file.bytes, nullptr);
      Cancel cancel;
      Progress progress;
      Index index = read_index(*source, nullptr, cancel);
      std::vector<LoadItem> items;
      for (std::uint32_t i = 0; i < tensors.size(); ++i) {
        items.push_back(item_into(index, i, memory[i]));
      }
      LoadSettings settings = verified(verify);
      settings.memory_ceiling = sequential ? 0 : kCeiling;
      const MemoryWatch watch;
      load(*source, index, items, settings, progress, cancel);
      EXPECT_LE(watch.peak(), kCeiling);
    }
  }
}

}  // namespace
}  // namespace tensorizer
