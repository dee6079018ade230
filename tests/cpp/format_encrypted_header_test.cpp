// Headers of encrypted files: they are read back as they were written, and have the announced size.
#include "encrypted_file.h"
#include "format/tensors/layout.h"
#include "format/tensors/tensor_header.h"

namespace tensorizer {
namespace {

using namespace testing_support;

// Returns the index in a layout's prefix, parsed as that of a file that ends where the layout says.
Index index_of(const Layout& layout) {
  const std::uint64_t size = layout.prefix_size();
  const std::vector<std::byte> prefix = layout.prefix(0, size);
  EXPECT_EQ(prefix.size(), size);
  const FileLocation location{"'f'", 0, size + layout.file_size()};
  Cancel cancel;
  return Index(parse_file_header(prefix, location),
               {prefix.begin() + kFileHeaderSize, prefix.end()}, location, cancel);
}

std::vector<FileKind> kinds() {
  std::vector<FileKind> kinds;
  for (const HashKinds hashes : {HashKinds{false, false}, HashKinds{true, false},
                                 HashKinds{false, true}, HashKinds{true, true}}) {
    for (const bool data_digests : {false, true}) {
      for (const bool derives : {false, true}) {
        FileKind kind = derives ? encrypted("open sesame", derivation_of(9)) : encrypted();
        kind.header.hashes = hashes;
        kind.data_digests = data_digests;
        kinds.push_back(kind);
      }
    }
  }
  return kinds;
}

std::vector<TensorSpec> specs() {
  const auto sized = [](std::string name, DType dtype, std::vector<std::int64_t> shape) {
    return TensorSpec{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
  };
  constexpr std::int64_t kChunk = kCryptChunk;
  std::vector<TensorSpec> specs{sized("one", DType::UInt8, {1}),
                                sized("none", DType::UInt8, {0}),
                                sized("chunk", DType::UInt8, {kChunk}),
                                sized("more", DType::UInt8, {kChunk + 1}),
                                sized("many", DType::BFloat16, {7, kChunk}),
                                sized("meta", DType::Float32, {5, 7}),
                                sized("odd", DType::BFloat16, {3, 5, 7})};
  specs[5].meta = true;
  return specs;
}

TEST(EncryptedHeader, IsReadAsItWasWritten) {
  for (const FileKind& kind : kinds()) {
    TensorsLayout layout(kind, 0);
    for (const TensorSpec& spec : specs()) layout.add(spec);
    const Index index = index_of(layout);
    EXPECT_TRUE(index.header().encrypted);
    EXPECT_EQ(index.data_digests().empty(), !kind.data_digests);
    ASSERT_TRUE(index.authentication());
    EXPECT_EQ(index.authentication()->derivation, kind.header.encryption->derivation);
    for (std::size_t i = 0; i < index.entries().size(); ++i) {
      const PlacedTensor& tensor = layout.tensors()[i];
      const Entry& entry = index.entries()[i];
      ASSERT_EQ(entry.header_size(), tensor.header_size);
      EXPECT_EQ(entry.data_offset % (entry.data_size >= (64 << 10) ? 4096 : 64), 0U);
      TensorHeaderImage image(tensor.spec, kind.header, tensor.header_size);
      const std::uint64_t chunks = chunks_of(entry.data_size, kCryptChunk);
      const std::string unset(as_text(image.hashed()[0]));
      for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
        Mac mac;
        mac.fill(static_cast<std::byte>(chunk + 1));
        image.set_mac(chunk, mac);
      }
      // No hash covers a MAC.
      EXPECT_EQ(as_text(image.hashed()[0]), unset);
      EXPECT_EQ(as_text(image.hashed()[1]).substr(0, image.hashed()[1].size() - 8),
                std::string(image.hashed()[1].size() - 8, '\0'));
      const std::array<ConstBytes, 2> hashed = image.hashed();
      const std::string covered = std::string(as_text(hashed[0])) + std::string(as_text(hashed[1]));
      Digests digests;
      for (const HashInfo& info : kHashes) {
        if (kind.header.hashes.has(info.hash)) digests[info.hash] = Digest{std::byte{7}};
      }
      image.set_digests(digests);

      std::vector<std::byte> bytes(image.bytes().begin(), image.bytes().end());
      const TensorDetails read =
          parse_tensor_header(bytes, {entry, i, true, false, {"'f'", 0, std::nullopt}});
      EXPECT_EQ(std::string(as_text(read.hashed[0])) + std::string(as_text(read.hashed[1])),
                covered);
      EXPECT_TRUE(read.digests == digests);
      if (entry.data_size == 0) {
        EXPECT_TRUE(read.crypt.macs.empty());
        continue;
      }
      EXPECT_EQ(read.crypt.chunk_size, kCryptChunk);
      EXPECT_EQ(read.crypt.nonce, image.nonce());
      EXPECT_EQ(read.crypt.derivation, kind.header.encryption->derivation);
      ASSERT_EQ(read.crypt.macs.size(), chunks * kMacSize);
      for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
        EXPECT_EQ(read.crypt.mac(chunk).front(), static_cast<std::byte>(chunk + 1));
        EXPECT_EQ(read.crypt.mac(chunk).back(), static_cast<std::byte>(chunk + 1));
      }
    }
  }
}

// The header of a large tensor in chunks of the smallest allowed size is long because of its MACs.
TEST(EncryptedHeader, IsAsLongAsItsMacsJustify) {
  Entry entry{};
  entry.name = "t";
  entry.data_size = std::uint64_t{1} << 40;
  const auto check = [&](std::uint64_t size, bool encrypted) {
    entry.data_offset = size;
    check_header_size(entry, 0, encrypted, {"'f'", 0, std::nullopt});
  };
  const std::uint64_t macs = entry.data_size / 1024 * kMacSize;
  check(macs + 70'000, true);
  for (const bool encrypted : {true, false}) {
    const std::uint64_t size = (encrypted ? macs : 0) + (256 << 10);
    EXPECT_TRUE(contains(message_of([&] { check(size, encrypted); }),
                         "bytes, which is too long: such a tensor needs at most "));
  }
  // Long enough for a name, hashes and some padding.
  check(70'000, false);
}

TEST(EncryptedHeader, SaysWhatIsWrongWithItsCryptInfo) {
  RawTensor tensor = sealed_tensor("t", pattern(5), {.key = pattern(32)});
  tensor.crypt = crypt_section({});
  RawFile file({tensor}, 3);
  FileKeys keys = keys_of(key_of());
  const Loading loading = load_all(file.bytes, &keys);
  ASSERT_TRUE(loading.error);
  EXPECT_EQ(loading.error->kind(), ErrorKind::Crypto);
  EXPECT_TRUE(contains(loading.error->what(), "tensor 't' (index entry 0): its header at offset "));
  EXPECT_TRUE(contains(loading.error->what(), "says that its data is not encrypted"));
}

// ---- versions

TEST(EncryptedFile, HasTheLowestVersionThatHoldsIt) {
  const auto header_of = [](const TensorSpec& spec) {
    TensorsLayout layout(encrypted(), 0);
    layout.add(spec);
    return parse_file_header(layout.prefix(0, layout.prefix_size()), {"'f'", 0, std::nullopt});
  };
  const std::vector<TensorSpec> all = specs();
  EXPECT_EQ(header_of(all[0]).version, 3U);
  EXPECT_EQ(header_of(all[6]).version, 3U);
  EXPECT_EQ(header_of(all[5]).version, 4U);
  TensorSpec long_one{.name = "long", .shape = {std::int64_t{1} << 33, 0}};
  EXPECT_EQ(header_of(long_one).version, 5U);
  for (const TensorSpec& spec : {all[0], all[5], long_one}) EXPECT_TRUE(header_of(spec).encrypted);
}

}  // namespace
}  // namespace tensorizer
