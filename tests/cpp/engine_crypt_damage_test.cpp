// Encrypted files that were changed without the key: the changes are not loaded, and tensors whose
// load is not complete are reported as incomplete.
#include "encrypted_file.h"

namespace tensorizer {
namespace {

using namespace testing_support;

constexpr std::size_t kMiB = 1 << 20;

LoadSettings settings(int threads, Verify verify = Verify::None) {
  LoadSettings settings;
  settings.threads = threads;
  settings.verify = verify;
  return settings;
}

// Expects an Error(Crypto) that names the tensor, that this tensor is incomplete, and that every
// tensor that is not incomplete equals the saved one.
void expect_refused(const Loading& loading, std::span<const Sample> samples,
                    const std::string& tensor, const std::string& why) {
  ASSERT_TRUE(loading.error);
  EXPECT_EQ(loading.error->kind(), ErrorKind::Crypto) << loading.error->what();
  EXPECT_TRUE(contains(loading.error->what(), "tensor '" + tensor + "' (index entry "))
      << loading.error->what();
  EXPECT_TRUE(contains(loading.error->what(), why)) << loading.error->what();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].spec.name == tensor) {
      EXPECT_TRUE(loading.incomplete[i]);
    }
    EXPECT_TRUE(loading.incomplete[i] || same(loading.tensors[i], samples[i].data))
        << samples[i].spec.name;
  }
}

TEST(CryptDamage, OfAnyByteOfSmallTensorsIsFound) {
  const std::vector<Sample> samples{sample("first", 3), sample("second", 130), sample("none", 0)};
  for (const HashKinds hashes : {HashKinds{}, HashKinds{true, true}}) {
    std::vector<std::byte> file = saved_as(samples, encrypted(hashes));
    FileKeys keys = keys_of(key_of());
    EXPECT_FALSE(load_all(file, &keys).error);
    const Index index = read_with(file, &keys);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const Entry& entry = index.entries()[i];
      for (std::uint64_t at = entry.data_offset; at < entry.end(); ++at) {
        file[at] ^= std::byte{0x10};
        expect_refused(load_all(file, &keys, settings(1, Verify::None)), samples,
                       samples[i].spec.name, "cannot be decrypted");
        file[at] ^= std::byte{0x10};
      }
    }
  }
}

TEST(CryptDamage, OfEachChunkNamesTheTensorAndThePlace) {
  constexpr std::size_t kSize = 5 * kMiB + 7;
  const std::vector<Sample> samples{sample("before", 100), sample("large", kSize),
                                    sample("other", 3 * kMiB), sample("after", 100)};
  std::vector<std::byte> ours = saved_as(samples, encrypted());
  for (const std::uint64_t chunk_size :
       {std::uint64_t{0}, kCryptChunk, std::uint64_t{65536}, std::uint64_t{3} << 20}) {
    std::vector<std::byte> file = ours;
    if (chunk_size != kCryptChunk) {
      std::vector<RawTensor> tensors;
      Sealing how{.key = pattern(32, 41), .chunk_size = chunk_size};
      for (const Sample& each : samples) {
        tensors.push_back(sealed_tensor(each.spec.name, each.data, how));
        ++how.nonce;
      }
      file = RawFile(tensors, 3).bytes;
    }
    FileKeys keys = keys_of(key_of());
    const std::uint64_t begin = read_with(file, &keys).entries()[1].data_offset;
    const std::uint64_t whole = chunk_size == 0 ? kSize : chunk_size;
    const std::uint64_t step = std::max<std::uint64_t>(whole, 1 << 20);
    for (std::uint64_t at = 0; at < kSize; at += step) {
      const std::uint64_t chunk = at / whole * whole;
      const std::uint64_t size = std::min<std::uint64_t>(whole, kSize - chunk);
      for (const std::uint64_t where : {chunk, chunk + size - 1}) {
        file[begin + where] ^= std::byte{4};
        for (const int threads : {1, 3}) {
          expect_refused(load_all(file, &keys, settings(threads)), samples, "large",
                         "its " + std::to_string(size) + " bytes from offset " +
                             std::to_string(begin + chunk) + " on cannot be decrypted");
        }
        file[begin + where] ^= std::byte{4};
      }
    }
    EXPECT_FALSE(load_all(file, &keys, settings(3, Verify::All)).error);
  }
}

TEST(CryptDamage, OfChunksThatChangedPlacesIsFound) {
  const std::vector<Sample> samples{sample("one", 4 * kMiB, 2), sample("two", 4 * kMiB, 3)};
  std::vector<std::byte> file = saved_as(samples, encrypted());
  FileKeys keys = keys_of(key_of());
  const Index index = read_with(file, &keys);
  const auto chunk = [&](std::size_t tensor, std::uint64_t number) {
    return Bytes(file).subspan(index.entries()[tensor].data_offset + number * kCryptChunk,
                               kCryptChunk);
  };
  // Swaps two chunks of one tensor, and chunks of two tensors.
  for (const Bytes other : {chunk(0, 1), chunk(1, 0)}) {
    std::swap_ranges(other.begin(), other.end(), chunk(0, 0).begin());
    const Loading loading = load_all(file, &keys, settings(1));
    std::swap_ranges(other.begin(), other.end(), chunk(0, 0).begin());
    expect_refused(loading, samples, "one", "cannot be decrypted");
  }
}

// Swaps the headers and data of two tensors, except for their names: the MACs are right, but each
// block belongs to the other tensor.
TEST(CryptDamage, OfTensorsThatChangedPlacesIsFound) {
  const std::vector<Sample> samples{sample("a", 640, 2), sample("b", 640, 3)};
  std::vector<std::byte> file = saved_as(samples, encrypted({false, false}));
  FileKeys keys = keys_of(key_of());
  const Index index = read_with(file, &keys);
  const auto block = [&](std::size_t i) {
    const Entry& entry = index.entries()[i];
    return Bytes(file).subspan(entry.header_offset, entry.end() - entry.header_offset);
  };
  ASSERT_EQ(block(0).size(), block(1).size());
  std::swap_ranges(block(0).begin(), block(0).end(), block(1).begin());
  constexpr std::size_t kNameAt = 8 + 2 + 1 + 2;
  std::swap(block(0)[kNameAt], block(1)[kNameAt]);
  expect_refused(load_all(file, &keys), samples, "a", "is not the one that was written");
}

TEST(CryptDamage, OfNoncesThatTwoTensorsShareIsFound) {
  const std::vector<Sample> samples{sample("one", 9000, 2), sample("large", 3 * kMiB, 3)};
  Sealing how{.key = pattern(32, 41), .chunk_size = 65536};
  const RawFile file(
      {sealed_tensor("one", samples[0].data, how), sealed_tensor("large", samples[1].data, how)},
      3);
  FileKeys keys = keys_of(key_of());
  for (const int threads : {1, 3}) {
    const Loading loading = load_all(file.bytes, &keys, settings(threads));
    ASSERT_TRUE(loading.error);
    EXPECT_EQ(loading.error->kind(), ErrorKind::Crypto);
    EXPECT_TRUE(
        contains(loading.error->what(), "it was encrypted with the nonce of another tensor"));
  }
}

TEST(CryptDamage, IsAKeyThatIsAnotherOne) {
  const std::vector<Sample> samples{sample("t", 100)};
  const RawFile file({sealed_tensor("t", samples[0].data, {.key = pattern(32, 41)})}, 3);
  FileKeys other = keys_of(key_of(42));
  expect_refused(load_all(file.bytes, &other), samples, "t", "wrong key or passphrase");
  EXPECT_TRUE(contains(load_all(file.bytes, nullptr).error->what(), "no key was given"));
  EXPECT_EQ(load_all(file.bytes, nullptr).error->kind(), ErrorKind::Crypto);
  FileKeys passphrase = keys_of(make_passphrase(as_bytes("sesame")));
  const Loading loading = load_all(file.bytes, &passphrase);
  EXPECT_TRUE(contains(loading.error->what(), "with a key, and not with a passphrase"));
  EXPECT_TRUE(loading.incomplete[0]);
}

// The MACs are right, but the hash is of other bytes.
TEST(CryptDamage, OfAHashIsFoundWhereThatIsVerified) {
  for (const std::size_t size : {std::size_t{100}, 5 * kMiB}) {
    for (const std::uint64_t chunk_size : {std::uint64_t{0}, std::uint64_t{65536}}) {
      const std::vector<Sample> samples{sample("t", size)};
      RawTensor tensor =
          sealed_tensor("t", samples[0].data, {.key = pattern(32, 41), .chunk_size = chunk_size});
      tensor.hashed->back() ^= 1;
      const RawFile file({tensor}, 3);
      FileKeys keys = keys_of(key_of());
      EXPECT_TRUE(same(load_all(file.bytes, &keys, settings(2)).tensors[0], samples[0].data));
      const Loading loading = load_all(file.bytes, &keys, settings(2, Verify::All));
      ASSERT_TRUE(loading.error);
      EXPECT_EQ(loading.error->kind(), ErrorKind::HashMismatch);
      EXPECT_TRUE(loading.incomplete[0]);
    }
  }
}

// Tensors that were loaded before the fault keep their data, as do those that need no loading.
TEST(Withdrawing, LeavesWhatIsThere) {
  const std::vector<Sample> samples{sample("small", 100), sample("early", 3 * kMiB, 2),
                                    sample("damaged", 3 * kMiB, 3), sample("late", 3 * kMiB, 4)};
  std::vector<std::byte> file = saved_as(samples, encrypted());
  FileKeys keys = keys_of(key_of());
  const Index index = read_with(file, &keys);
  file[index.entries()[2].end() - 1] ^= std::byte{1};
  const Loading loading = load_all(file, &keys, settings(1));
  ASSERT_TRUE(loading.error);
  EXPECT_EQ(loading.incomplete, (std::vector<bool>{false, false, true, true}));
  EXPECT_TRUE(same(loading.tensors[0], samples[0].data));
  EXPECT_TRUE(same(loading.tensors[1], samples[1].data));
}

TEST(Withdrawing, IsForErrorsOfAnyKind) {
  const std::vector<Sample> samples{sample("one", 3 * kMiB, 2), sample("two", 3 * kMiB, 3)};
  const std::vector<std::byte> file = saved_as(samples, encrypted());
  FileKeys keys = keys_of(key_of());
  const std::uint64_t end = read_with(file, &keys).entries()[1].end();
  for (const int threads : {1, 3}) {
    // A source that ends too soon.
    SequentialSource source(ConstBytes(file).first(end - 5));
    const Loading loading = load_all(source, &keys, settings(threads));
    ASSERT_TRUE(loading.error);
    EXPECT_EQ(loading.error->kind(), ErrorKind::InvalidFormat);
    EXPECT_TRUE(loading.incomplete[1]);
    EXPECT_TRUE(loading.incomplete[0] || same(loading.tensors[0], samples[0].data));
  }
}

TEST(Withdrawing, IsForWhatIsChecked) {
  const std::vector<Sample> samples{sample("one", 3 * kMiB, 2), sample("two", 3 * kMiB, 3)};
  std::vector<std::byte> file = saved(samples);
  const std::uint64_t end = read_with(file, nullptr).entries()[1].end();
  const auto load_cut = [&](const LoadSettings& settings) {
    SequentialSource source(ConstBytes(file).first(end - 5));
    const Loading loading = load_all(source, nullptr, settings);
    EXPECT_TRUE(loading.error && loading.error->kind() == ErrorKind::InvalidFormat);
    return loading.incomplete;
  };
  EXPECT_EQ(load_cut(settings(1)), (std::vector<bool>{false, false}));
  EXPECT_EQ(load_cut(settings(1, Verify::Crc32)), (std::vector<bool>{false, true}));
  // With a pin, it is only known when all tensors have arrived whether the first is right.
  const Index index = read(file);
  DataDigests digests(index, DigestVersion::Tensors, false, "file");
  LoadSettings pinned = settings(1);
  pinned.data_digests = &digests;
  EXPECT_EQ(load_cut(pinned), (std::vector<bool>{true, true}));

  file[end - 1] ^= std::byte{1};
  for (const Verify verify : {Verify::Crc32, Verify::All}) {
    const Loading loading = load_all(file, nullptr, settings(1, verify));
    ASSERT_TRUE(loading.error);
    EXPECT_EQ(loading.error->kind(), ErrorKind::HashMismatch);
    EXPECT_EQ(loading.incomplete, (std::vector<bool>{false, true}));
    EXPECT_TRUE(same(loading.tensors[0], samples[0].data));
  }
}

}  // namespace
}  // namespace tensorizer
