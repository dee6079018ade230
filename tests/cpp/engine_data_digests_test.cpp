// The digests that make that of a file: the same in whatever way a file is stored and loaded.
#include "engine/digest/data_digests.h"

#include "chunked_file.h"
#include "codec/hmac.h"
#include "encrypted_file.h"
#include "engine/load/tensor_source.h"
#include "round_trip.h"

namespace tensorizer {
namespace {

using namespace testing_support;

// Returns a list as a file keeps it.
std::vector<std::byte> listed_digests(std::span<const Sample> samples, DigestVersion version) {
  std::vector<std::byte> digests;
  for (const Sample& each : samples) {
    const ConstBytes data(each.data);
    if (version == DigestVersion::Tensors) ByteWriter(digests).put_bytes(sha256(data));
    if (version != DigestVersion::Chunks) continue;
    for (std::size_t at = 0; at < data.size(); at += kModelDigestChunk) {
      const std::size_t size = std::min<std::size_t>(kModelDigestChunk, data.size() - at);
      ByteWriter(digests).put_bytes(sha256(data.subspan(at, size)));
    }
  }
  return digests;
}

ModelDigest expected(const Catalogue& index, std::span<const Sample> samples,
                     DigestVersion version) {
  Cancel cancel;
  const std::vector<std::byte> digests = listed_digests(samples, version);
  if (version == DigestVersion::Tensors) return model_digest(index, digests, cancel);
  return model_digest(index,
                      {Hash::Sha256,
                       kModelDigestChunk,
                       {},
                       digests,
                       first_chunks(index.entries(), kModelDigestChunk)},
                      cancel);
}

// Loads a file in all ways, with digests that are computed, and compared if the file lists them.
void expect_same(ConstBytes file, std::span<const Sample> samples, FileKeys* keys, bool listed) {
  Dice dice(811);
  load_often(file, samples, keys, 2, dice,
             [&](Source& source, Index& index, std::span<const Sample>, Dice& own_dice,
                 LoadSettings settings) {
               const DigestVersion version =
                   own_dice.one_in(2) ? DigestVersion::Tensors : DigestVersion::Chunks;
               const bool compared = listed && own_dice.one_in(2);
               EXPECT_TRUE(!listed || DataDigests::are_listed(index, version));
               DataDigests digests(index, version, compared, "'f'");
               settings.data_digests = &digests;
               for (const Into into : {Into::Memory, Into::Staged, Into::Mixed}) {
                 expect_loaded(source, index, samples, all_of(samples), into, settings);
                 // A stream can be read once.
                 if (source.sequential()) break;
               }
               Cancel cancel;
               EXPECT_EQ(digests.model_digest(cancel), expected(index, samples, version));
             });
}

TEST(DataDigests, AreTheSameForEveryFile) {
  Dice dice(810);
  const std::vector<Sample> samples = samples_with_chunks(dice);
  FileKeys keys = keys_of(key_of());
  expect_same(saved(samples), samples, nullptr, false);
  expect_same(saved_as(samples, chunked()), samples, nullptr, false);
  expect_same(saved_as(samples, encrypted()), samples, &keys, false);
  FileKind plain = chunked(kModelDigestChunk);
  plain.data_digests = true;
  expect_same(saved_as(samples, plain), samples, nullptr, true);
  FileKind secret = encrypted();
  secret.data_digests = true;
  secret.chunk_size = kModelDigestChunk;
  expect_same(saved_as(samples, secret), samples, &keys, true);
}

// Chunks that are encrypted together, and of which no strip is made.
TEST(DataDigests, AreThoseOfChunksThatAreNotEncryptedAlone) {
  const std::vector<Sample> samples{sample("a", 100), sample("b", 3 * kModelDigestChunk + 5)};
  for (const std::uint64_t chunk_size : {std::uint64_t{64 * 1563}, std::uint64_t{3} << 20}) {
    std::vector<RawTensor> tensors;
    Sealing how{.key = pattern(32, 41), .chunk_size = chunk_size};
    for (const Sample& each : samples) {
      tensors.push_back(sealed_tensor(each.spec.name, each.data, how));
      ++how.nonce;
    }
    FileKeys keys = keys_of(key_of());
    expect_same(RawFile(tensors, 3).bytes, samples, &keys, false);
  }
}

TEST(DataDigests, AreComparedInEncryptedFilesToo) {
  const std::vector<Sample> samples{sample("a", 5 * kModelDigestChunk)};
  FileKind kind = encrypted();
  kind.chunk_size = kModelDigestChunk;
  TensorsLayout layout = layout_as(samples, kind, 0);
  MemorySink sink;
  save(samples, sink, layout, {}, false);
  // The key authenticates a wrong digest.
  layout.chunk_digests(0)[0][0] ^= std::byte{1};
  std::ranges::copy(layout.prefix(0, layout.prefix_size()), sink.bytes.begin());
  FileKeys keys = keys_of(key_of());
  EXPECT_FALSE(load_all(sink.bytes, &keys).error);
  const Index index = read_with(sink.bytes, &keys);
  DataDigests digests(index, DigestVersion::Chunks, true, "'f'");
  LoadSettings settings;
  settings.data_digests = &digests;
  const Loading loading = load_all(sink.bytes, &keys, settings);
  ASSERT_TRUE(loading.error);
  EXPECT_EQ(loading.error->kind(), ErrorKind::HashMismatch);
  EXPECT_EQ(loading.incomplete, std::vector<bool>{true});
  const auto source = memory_source(sink.bytes, nullptr);
  const TensorFile of{*source, index, &keys, &digests};
  TensorSource tensors(of);
  Cancel cancel;
  std::vector<std::byte> data(samples[0].data.size());
  EXPECT_EQ(kind_of([&] { tensors.read(0, 0, data, cancel); }), ErrorKind::HashMismatch);
  // The digests of chunks do not help with parts, which are decrypted in other chunks.
  Index parts = read_with(sink.bytes, &keys);
  Progress progress;
  settings.keys = &keys;
  const Error error = error_of([&] {
    load(*source, parts, {{0, {5, 9}, Bytes(data).first(9)}}, settings, progress, cancel);
  });
  EXPECT_TRUE(contains(error.what(), "without the option 'digest'")) << error.what();
}

// Such a file is one of a server that does not tell its size.
TEST(DataDigests, AreNotMoreThanAFileCanList) {
  RawFile file({RawTensor{.dtype = "|u1", .shape = {1 << 22, (1 << 20) + 1}, .data = ""}});
  file.set("0.data_size", (std::uint64_t{1} << 22) * ((1 << 20) + 1));
  UnsizedSource source(file.bytes);
  const Index index = index_of(source);
  DataDigests(index, DigestVersion::Tensors, false, "'f'");
  const Error error = error_of([&] { DataDigests(index, DigestVersion::Chunks, false, "'f'"); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
  EXPECT_TRUE(contains(error.what(), "'f': the tensors have 4194308 chunks")) << error.what();
}

TEST(DataDigests, AreCountedWithoutOverflow) {
  Entry entry{};
  entry.data_size = std::uint64_t{1} << 62;
  EXPECT_EQ(first_chunks(std::vector<Entry>(2, entry), kModelDigestChunk),
            (std::vector<std::uint64_t>{0, 1ULL << 42, 1ULL << 43}));
  EXPECT_EQ(first_chunks(std::vector<Entry>(300'000, entry), 1 << 16).back(),
            std::numeric_limits<std::uint64_t>::max());
}

}  // namespace
}  // namespace tensorizer
