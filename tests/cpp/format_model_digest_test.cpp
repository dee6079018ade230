// One digest for everything that a file holds: what it depends on, and what it does not.
#include "format/model_digest.h"

#include <set>

#include "codec/hmac.h"
#include "encrypted_file.h"
#include "format/tensors/layout.h"

namespace tensorizer {
namespace {

using namespace testing_support;

std::vector<std::byte> digests_of(std::span<const Sample> samples) {
  std::vector<std::byte> digests;
  for (const Sample& each : samples) ByteWriter(digests).put_bytes(sha256(each.data));
  return digests;
}

// Returns the digest of a file with these tensors.
std::string digest_of(std::span<const Sample> samples, const FileKind& kind = {}) {
  Cancel cancel;
  return to_text(model_digest(read(saved_as(samples, kind)), digests_of(samples), cancel));
}

// Returns its digest of version 2. The tensors are shorter than a chunk.
std::string chunks_digest_of(std::span<const Sample> samples, const FileKind& kind = {}) {
  const Index index = read(saved_as(samples, kind));
  std::vector<std::byte> digests;
  for (const Sample& each : samples) {
    if (!each.data.empty()) ByteWriter(digests).put_bytes(sha256(each.data));
  }
  Cancel cancel;
  return to_text(model_digest(index,
                              {Hash::Sha256,
                               kModelDigestChunk,
                               {},
                               digests,
                               first_chunks(index.entries(), kModelDigestChunk)},
                              cancel));
}

std::vector<Sample> two() {
  std::vector<Sample> samples{sample("b", 6, 1), sample("a", 4, 2)};
  samples[0].spec.shape = {2, 3};
  samples[1].spec.dtype = DType::Float32;
  samples[1].spec.shape = {1};
  return samples;
}

// A different digest would invalidate the pins of all models.
TEST(ModelDigest, IsTheOneThatWasAlwaysTaken) {
  RawFields message;
  const auto text = [&](std::string_view part) {
    message.put(std::uint64_t{part.size()}).put(part);
  };
  text("tensorizer_ops model digest 1");
  message.put(std::uint64_t{2});
  text("a");
  message.put(std::uint8_t{2});
  text("<f4");
  message.put(std::uint64_t{1}).put(std::int64_t{1}).put(sha256(pattern(4, 2)));
  text("b");
  message.put(std::uint8_t{2});
  text("|u1");
  message.put(std::uint64_t{2})
      .put(std::int64_t{2})
      .put(std::int64_t{3})
      .put(sha256(pattern(6, 1)));
  EXPECT_EQ(digest_of(two()), to_hex(sha256(as_bytes(std::string(message)))));
}

TEST(ModelDigest, OfVersionTwoIsTheOneThatWasAlwaysTaken) {
  RawFields message;
  const auto text = [&](std::string_view part) {
    message.put(std::uint64_t{part.size()}).put(part);
  };
  text("tensorizer_ops model digest 2");
  message.put(std::uint64_t{2});
  text("a");
  text("<f4");
  message.put(std::uint64_t{1}).put(std::int64_t{1});
  message.put(std::uint64_t{4}).put(sha256(pattern(4, 2)));
  text("b");
  text("|u1");
  message.put(std::uint64_t{2}).put(std::int64_t{2}).put(std::int64_t{3});
  message.put(std::uint64_t{6}).put(sha256(pattern(6, 1)));
  const std::string expected = "v2:" + to_hex(sha256(as_bytes(std::string(message))));
  EXPECT_EQ(chunks_digest_of(two()), expected);
  EXPECT_EQ(chunks_digest_of(two(), encrypted()), expected);
  std::vector<Sample> same = two();
  std::swap(same[0], same[1]);
  EXPECT_EQ(chunks_digest_of(same), expected);
  // A program asks for it by the same name, and other formats do not have its type.
  same[0].spec.name = ".a";
  same[0].spec.type = TensorType::Buffer;
  EXPECT_EQ(chunks_digest_of(same), expected);
}

TEST(ModelDigest, OfVersionTwoTellsATensorWithoutDataFromOneWithData) {
  std::vector<Sample> samples = two();
  samples[0].spec.meta = true;
  samples[0].data.clear();
  EXPECT_NE(chunks_digest_of(samples), chunks_digest_of(two()));
}

TEST(ModelDigest, HasATextThatSaysItsVersion) {
  const std::string hex = to_hex(sha256(as_bytes("x")));
  for (const std::string& text : {hex, "v2:" + hex}) {
    ASSERT_TRUE(parse_model_digest(text)) << text;
    EXPECT_EQ(to_text(*parse_model_digest(text)), text);
  }
  for (const std::string& text :
       std::vector<std::string>{"v1:" + hex, "v3:" + hex, "V2:" + hex, hex + "0", "v2:" + hex + "0",
                                "v2:", "", "2:" + hex, " " + hex}) {
    EXPECT_FALSE(parse_model_digest(text)) << text;
  }
}

TEST(ModelDigest, DoesNotDependOnHowItIsStored) {
  const std::string expected = digest_of(two());
  std::vector<Sample> turned = two();
  std::swap(turned[0], turned[1]);
  EXPECT_EQ(digest_of(turned), expected);
  EXPECT_EQ(digest_of(two(), {{{Hash::Crc32, Hash::Sha256}, {}}, true}), expected);
  EXPECT_EQ(digest_of(two(), encrypted()), expected);
  std::vector<Sample> module_index = two();
  module_index[0].spec.module_index = 9;
  EXPECT_EQ(digest_of(module_index), expected);
  for (const std::size_t padding : {0, 100}) {
    const RawFile file(
        {RawTensor{.name = "b",
                   .dtype = "|u1",
                   .shape = {2, 3},
                   .data = std::string(as_text(pattern(6, 1))),
                   .padding = padding},
         RawTensor{.name = "a", .shape = {1}, .data = std::string(as_text(pattern(4, 2)))}});
    Cancel cancel;
    EXPECT_EQ(to_text(model_digest(read(file.bytes), digests_of(two()), cancel)), expected);
  }
}

TEST(ModelDigest, DependsOnEachField) {
  std::set<std::string> seen{digest_of(two()), digest_of({}), chunks_digest_of(two()),
                             chunks_digest_of({})};
  const auto expect_new = [&](const std::vector<Sample>& samples) {
    EXPECT_TRUE(seen.insert(digest_of(samples)).second) << seen.size();
    // Version 2 does not cover types.
    const bool types = samples[0].spec.type != TensorType::StateDictEntry;
    EXPECT_EQ(seen.insert(chunks_digest_of(samples)).second, !types) << seen.size();
  };
  const auto changed = [](auto&& change) {
    std::vector<Sample> samples = two();
    change(samples);
    return samples;
  };
  expect_new(changed([](auto& samples) { samples[0].spec.name = "c"; }));
  expect_new(changed([](auto& samples) { samples[0].spec.type = TensorType::Parameter; }));
  expect_new(changed([](auto& samples) { samples[0].spec.type = TensorType::Buffer; }));
  expect_new(changed([](auto& samples) { samples[0].spec.dtype = DType::Int8; }));
  expect_new(changed([](auto& samples) { samples[0].spec.shape = {3, 2}; }));
  expect_new(changed([](auto& samples) { samples[0].spec.shape = {6}; }));
  expect_new(changed([](auto& samples) { samples[0].spec.shape = {1, 2, 3}; }));
  expect_new(changed([](auto& samples) { samples[0].data[5] ^= std::byte{1}; }));
  expect_new(changed([](auto& samples) { samples[1].data[0] ^= std::byte{1}; }));
  expect_new(changed([](auto& samples) { samples.pop_back(); }));
  expect_new(changed([](auto& samples) { samples.push_back(sample("c", 0)); }));
  // Two tensors that exchange their names.
  expect_new(changed([](auto& samples) { std::swap(samples[0].spec.name, samples[1].spec.name); }));
}

}  // namespace
}  // namespace tensorizer
