// Data that is read piece by piece, as when a file is rewritten: in pieces of any size, it is what
// was saved.
#include "engine/load/tensor_source.h"

#include "chunked_file.h"
#include "encrypted_file.h"

namespace tensorizer {
namespace {

using namespace testing_support;

constexpr std::size_t kMiB = 1 << 20;

std::vector<Sample> samples() {
  return {sample("first", 700, 2), sample("none", 0), sample("large", 5 * kMiB + 5, 3),
          sample("last", 9000, 4)};
}

std::vector<std::byte> foreign(std::uint64_t chunk_size) {
  std::vector<RawTensor> tensors;
  Sealing how{.key = pattern(32, 41), .chunk_size = chunk_size};
  for (const Sample& each : samples()) {
    tensors.push_back(sealed_tensor(each.spec.name, each.data, how));
    ++how.nonce;
  }
  return RawFile(tensors, 3).bytes;
}

// Reads all of a tensor, `size` bytes at a time.
std::vector<std::byte> read_all(TensorSource& source, const Index& index, std::uint32_t number,
                                std::size_t size) {
  Cancel cancel;
  std::vector<std::byte> bytes(index.entries()[number].data_size);
  for (std::size_t at = 0; at == 0 || at < bytes.size(); at += size) {
    source.read(number, at, Bytes(bytes).subspan(at, std::min(size, bytes.size() - at)), cancel);
  }
  return bytes;
}

void expect_read(Source& source, FileKeys* keys, std::size_t size) {
  Cancel cancel;
  const Index index = read_index(source, keys, cancel);
  const TensorFile file{source, index, keys};
  TensorSource tensors(file);
  const std::vector<Sample> expected = samples();
  for (std::uint32_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(same(read_all(tensors, index, i, size), expected[i].data))
        << expected[i].spec.name << " by " << size;
  }
}

TEST(TensorSourceTest, GivesWhatWasSavedInPiecesOfAnySize) {
  FileKeys keys = keys_of(key_of());
  for (const std::uint64_t chunk_size :
       {std::uint64_t{0}, std::uint64_t{1024}, std::uint64_t{4160}, std::uint64_t{3} << 20}) {
    const std::vector<std::byte> file = foreign(chunk_size);
    for (const std::size_t size :
         {std::size_t{777}, std::size_t{4160}, std::size_t{10'000}, 2 * kMiB, 8 * kMiB}) {
      expect_read(*memory_source(file, nullptr), &keys, size);
    }
    // A sequential source is read once, and in order.
    SequentialSource in_order(file);
    expect_read(in_order, &keys, 10'000);
  }
  const std::vector<std::byte> plain = saved(samples());
  expect_read(*memory_source(plain, nullptr), nullptr, 10'000);
}

TEST(TensorSourceTest, GivesWhatAPassphraseHides) {
  const std::vector<std::byte> file = saved_as(samples(), encrypted("sesame", derivation_of(9)));
  FileKeys keys = keys_of(make_passphrase(as_bytes("sesame")));
  expect_read(*memory_source(file, nullptr), &keys, 10'000);
}

TEST(TensorSourceTest, MayStartATensorAnew) {
  const std::vector<std::byte> file = foreign(4160);
  FileKeys keys = keys_of(key_of());
  const auto source = memory_source(file, nullptr);
  const Index index = read_with(file, &keys);
  const TensorFile of{*source, index, &keys};
  TensorSource tensors(of);
  Cancel cancel;
  std::vector<std::byte> some(5000);
  tensors.read(2, 0, some, cancel);
  tensors.read(3, 0, some, cancel);
  EXPECT_TRUE(same(read_all(tensors, index, 2, 777), samples()[2].data));
}

// A chunk whose MAC is wrong is never returned: neither in part nor at a second try.
TEST(TensorSourceTest, GivesNothingOfAChunkThatIsDamaged) {
  std::vector<std::byte> file = foreign(4160);
  FileKeys keys = keys_of(key_of());
  const auto source = memory_source(file, nullptr);
  const Index index = read_with(file, &keys);
  file[index.entries()[3].data_offset + 4160 + 4000] ^= std::byte{1};  // of the second chunk
  const TensorFile of{*source, index, &keys};
  TensorSource tensors(of);
  Cancel cancel;
  std::vector<std::byte> piece(100);
  tensors.read(3, 0, piece, cancel);
  EXPECT_TRUE(same(piece, ConstBytes(samples()[3].data).first(100)));
  for (const std::uint64_t position :
       {std::uint64_t{4160}, std::uint64_t{4100}, std::uint64_t{4170}}) {
    for (int round = 0; round < 2; ++round) {
      std::fill(piece.begin(), piece.end(), std::byte{0xEE});
      const Error error = error_of([&] { tensors.read(3, position, piece, cancel); });
      EXPECT_EQ(error.kind(), ErrorKind::Crypto);
      EXPECT_TRUE(contains(error.what(), "tensor 'last' (index entry 3): its 4160 bytes"));
      const std::size_t sound = position < 4160 ? 4160 - position : 0;
      EXPECT_TRUE(same(ConstBytes(piece).subspan(sound),
                       std::vector<std::byte>(100 - sound, std::byte{0xEE})));
    }
  }
  // The chunk before it can still be read.
  tensors.read(3, 50, piece, cancel);
  EXPECT_TRUE(same(piece, ConstBytes(samples()[3].data).subspan(50, 100)));
}

TEST(TensorSourceTest, ChecksTheHashOfWhatItGave) {
  for (const bool is_encrypted : {false, true}) {
    RawTensor tensor = sealed_tensor("t", pattern(9000), {.key = pattern(32, 41)});
    if (!is_encrypted) {
      tensor.crypt.reset();
      tensor.data = *tensor.hashed;
    }
    tensor.hashed->front() ^= 1;
    const RawFile file({tensor}, is_encrypted ? 3 : 1);
    FileKeys keys = keys_of(key_of());
    const auto source = memory_source(file.bytes, nullptr);
    const Index index = read_with(file.bytes, is_encrypted ? &keys : nullptr);
    const TensorFile of{*source, index, &keys};
    TensorSource tensors(of);
    Cancel cancel;
    std::vector<std::byte> bytes(9000);
    tensors.read(0, 0, Bytes(bytes).first(5000), cancel);
    EXPECT_EQ(kind_of([&] { tensors.read(0, 5000, Bytes(bytes).subspan(5000), cancel); }),
              ErrorKind::HashMismatch);
  }
}

// The digests that make that of the file replace the hashes in the headers.
TEST(TensorSourceTest, ChecksWhatIsPinned) {
  const std::vector<Sample> samples{sample("t", 2 * kModelDigestChunk + 9000, 1), sample("u", 0)};
  FileKind kind = chunked(kModelDigestChunk, {false, true});
  kind.data_digests = true;
  const std::vector<std::byte> whole = saved_as(samples, kind);
  for (const auto version : {DigestVersion::Tensors, DigestVersion::Chunks}) {
    std::vector<std::byte> file = whole;
    const auto source = memory_source(file, nullptr);
    const Index index = read(file);
    const Entry& entry = index.entries()[0];
    Cancel cancel;
    const auto read_pinned = [&](DataDigests& digests) {
      const TensorFile of{*source, index, nullptr, &digests};
      TensorSource tensors(of);
      EXPECT_TRUE(same(read_all(tensors, index, 0, 777'777), samples[0].data));
    };
    DataDigests computed(index, version, false, "file");
    read_pinned(computed);
    DataDigests listed(index, version, true, "file");
    read_pinned(listed);
    EXPECT_EQ(computed.model_digest(cancel), listed.model_digest(cancel));
    file[entry.end() - 1] ^= std::byte{1};
    const TensorFile of{*source, index, nullptr, &listed};
    TensorSource tensors(of);
    const Error error = error_of([&] { read_all(tensors, index, 0, 777'777); });
    EXPECT_EQ(error.kind(), ErrorKind::HashMismatch);
    const bool chunks = version == DigestVersion::Chunks;
    const std::uint64_t begin = entry.data_offset + (chunks ? 2 * kModelDigestChunk : 0);
    EXPECT_TRUE(contains(error.what(), "from offset " + std::to_string(begin))) << error.what();
  }
}

TEST(TensorSourceTest, ChecksTheDigestOfTheHeader) {
  std::vector<std::byte> file = saved_as(samples(), encrypted());
  FileKeys keys = keys_of(key_of());
  const auto source = memory_source(file, nullptr);
  const Index index = read_with(file, &keys);
  file[index.entries()[3].header_offset + 8] ^= std::byte{1};  // the module index, unused
  const TensorFile of{*source, index, &keys};
  TensorSource tensors(of);
  const Error error = error_of([&] { read_all(tensors, index, 3, 777); });
  EXPECT_EQ(error.kind(), ErrorKind::Crypto);
  EXPECT_TRUE(contains(error.what(), "is not the one that was written with the index"));
}

}  // namespace
}  // namespace tensorizer
