// The records of a file: the digests of its data, and what authenticates its metadata.
#include "format/tensors/records.h"

#include "codec/hmac.h"
#include "encrypted_file.h"
#include "format/tensors/frame.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using namespace std::string_literals;

const std::string kMagic(kFrameMagic);

std::string record(std::uint16_t kind, std::string_view body) {
  return RawFields().put(kind).put(static_cast<std::uint32_t>(body.size())).put(body);
}

// Returns the body of the authentication record, with `tensors` digests of headers.
std::string authentication_body(std::size_t tensors, std::string_view derivation = {}) {
  return RawFields()
      .put(static_cast<std::uint16_t>(derivation.size()))
      .put(derivation)
      .put(pattern(tensors * kSha256Size, 5))
      .put(pattern(kSha256Size, 6));
}

std::string fault_of(std::string_view body, std::size_t tensors) {
  std::string fault;
  parse_authentication(as_bytes(body), tensors, fault);
  return fault;
}

// ---- the body

TEST(Authentication, IsRead) {
  const std::string derivation = derivation_body(derivation_of(9));
  for (const std::size_t tensors : {0, 1, 3}) {
    for (const std::string& derives : {std::string(), derivation}) {
      const std::string body = authentication_body(tensors, derives);
      std::string fault;
      const Authentication read = parse_authentication(as_bytes(body), tensors, fault);
      EXPECT_EQ(fault, "");
      EXPECT_EQ(read.derivation.has_value(), !derives.empty());
      if (read.derivation) {
        EXPECT_EQ(read.derivation, derivation_of(9));
      }
      EXPECT_TRUE(same(read.mac, pattern(kSha256Size, 6)));
      EXPECT_TRUE(same(read.header_digests, pattern(tensors * kSha256Size, 5)));
      for (std::size_t i = 0; i < tensors; ++i) {
        EXPECT_EQ(read.header_digest(i).data(), read.header_digests.data() + i * kSha256Size);
      }
    }
  }
}

TEST(Authentication, IsNeitherLongerNorShorter) {
  for (const std::string& derivation : {std::string(), derivation_body(derivation_of(9))}) {
    const std::string body = authentication_body(2, derivation);
    EXPECT_EQ(fault_of(body, 2), "");
    for (std::size_t size = 0; size < body.size(); ++size) {
      EXPECT_NE(fault_of(body.substr(0, size), 2), "") << size;
    }
    EXPECT_TRUE(contains(fault_of(body + "x", 2), "do not fit 2 tensors"));
    EXPECT_TRUE(contains(fault_of(body, 1), "do not fit 1 tensors"));
    EXPECT_TRUE(contains(fault_of(body, 3), "do not fit 3 tensors"));
  }
}

TEST(Authentication, RefusesDerivationsThatAreNone) {
  const std::string good = derivation_body(derivation_of(9));
  for (std::size_t size = 1; size < good.size(); ++size) {
    EXPECT_TRUE(contains(fault_of(authentication_body(2, good.substr(0, size)), 2), "cut short"));
  }
  EXPECT_TRUE(contains(fault_of(authentication_body(2, good + "x"), 2),
                       "extra bytes after its key derivation"));
  EXPECT_TRUE(contains(fault_of(authentication_body(2, derivation_body(kEasy, pattern(15))), 2),
                       "a salt of 15 bytes"));
}

// ---- the position of a record

std::string refusal(std::string_view tail, std::uint32_t version) {
  const RawTensor tensor = sealed_tensor("t", pattern(5), {.key = pattern(32)});
  RawFile file({version == 3 ? tensor : RawTensor{}}, version, tail);
  const Error error = error_of([&] { read_with(file.bytes, nullptr); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
  return error.what();
}

TEST(Authentication, IsTheLastRecordOfAnEncryptedFile) {
  const std::string body = authentication_body(1);
  const std::string one = kMagic + record(1, body);
  const RawFile good({sealed_tensor("t", pattern(5), {.key = pattern(32)})}, 3,
                     kMagic + record(9, "other") + record(1, body) + record(0, ""));
  const Index index = read_with(good.bytes, nullptr);
  ASSERT_TRUE(index.authentication());
  EXPECT_TRUE(same(index.authentication()->mac, pattern(kSha256Size, 6)));

  EXPECT_TRUE(contains(refusal(one, 1), "authenticates a file that is not encrypted"));
  EXPECT_TRUE(contains(refusal(one, 2), "authenticates a file that is not encrypted"));
  for (const std::string& second :
       {record(1, body), record(2, std::string(32, 'd')), record(9, "other")}) {
    EXPECT_TRUE(contains(refusal(one + second, 3), "comes after the record that covers"));
  }
  for (const std::string& rest : {"x"s, "\0\0\0\0x"s, record(0, "x"), "\0\0\0\0\0\0\0\0\1"s}) {
    EXPECT_TRUE(contains(refusal(one + rest, 3),
                         "there are bytes other than zero behind the 1 index entries"));
  }
  EXPECT_TRUE(contains(refusal(kMagic + record(1, body + "x"), 3), "record of kind 1, which ends"));
  EXPECT_TRUE(contains(refusal(one.substr(0, one.size() - 1), 3), "runs past the end"));
}

TEST(DataDigests, AreThereOnceAndForEachTensor) {
  const std::string digests(32, 'd');
  const RawFile good({RawTensor{}}, 1, kMagic + record(2, digests));
  EXPECT_EQ(as_text(read_with(good.bytes, nullptr).data_digests()), digests);
  EXPECT_TRUE(
      contains(refusal(kMagic + record(2, digests) + record(2, digests), 1), "appears twice"));
  for (const std::size_t size : {0, 31, 33, 64}) {
    EXPECT_TRUE(contains(refusal(kMagic + record(2, std::string(size, 'd')), 1),
                         "does not have one digest for each tensor"));
  }
}

TEST(ChunkDigests, AreThereOnceAndForEachChunk) {
  const auto body = [](std::uint64_t chunk_size, std::size_t digests) -> std::string {
    return RawFields()
        .put(chunk_size)
        .put(std::string(kSha256Size, 'h'))
        .put(std::string(digests * kSha256Size, 'd'));
  };
  constexpr std::uint64_t kSize = 1 << 20;
  const std::string good = record(3, body(kSize, 1));
  const RawFile file({RawTensor{}}, 1, kMagic + good);
  EXPECT_EQ(read_with(file.bytes, nullptr).chunk_digests().chunk_size(), kSize);
  EXPECT_EQ(as_text(read_with(file.bytes, nullptr).chunk_digests().digest(0, 0)),
            std::string(32, 'd'));
  EXPECT_TRUE(contains(refusal(kMagic + good + good, 1), "appears twice"));
  for (const std::uint64_t size :
       {std::uint64_t{0}, kSize / 32, kSize * 32, kSize + 64, ~std::uint64_t{0}}) {
    EXPECT_TRUE(contains(refusal(kMagic + record(3, body(size, 1)), 1), "has no chunk size"));
  }
  EXPECT_TRUE(contains(refusal(kMagic + record(3, "1234567"), 1), "has no chunk size"));
  for (const std::string& wrong : {body(kSize, 0), body(kSize, 2), body(kSize, 1) + "x"}) {
    EXPECT_TRUE(contains(refusal(kMagic + record(3, wrong), 1),
                         "does not have one digest for each header and chunk"));
  }
}

// ---- the seal

Sha256Digest sha256_by_libsodium(ConstBytes bytes) {
  Sha256Digest digest;
  crypto_hash_sha256(out(digest), in(bytes), bytes.size());
  return digest;
}

std::vector<FileKind> sealed_kinds() {
  FileKind plain{{{Hash::Crc32, Hash::Sha256}, {}}, false};
  FileKind all = plain;
  all.data_digests = true;
  all.chunk_size = 1 << 20;
  all.metadata = {{"key", "value"}};
  return {plain, all};
}

TEST(Seal, IsTheSha256OfAllBeforeIt) {
  for (const FileKind& kind : sealed_kinds()) {
    const std::vector<std::byte> file = saved_as(std::vector<Sample>{sample("t", 300)}, kind);
    const std::uint64_t prefix = kFileHeaderSize + read_with(file, nullptr).header().index_size;
    // The last record: only zeros follow it.
    std::uint64_t end = prefix;
    while (file[end - 1] == std::byte{0}) --end;
    const ConstBytes head = ConstBytes(file).first(end - kSha256Size);
    EXPECT_TRUE(same(head.last(6), as_bytes(std::string("\x0f\0\x20\0\0\0", 6))));
    EXPECT_TRUE(
        same(ConstBytes(file).subspan(head.size(), kSha256Size), sha256_by_libsodium(head)));
  }
}

TEST(Seal, ShowsEachFlippedBitOfThePrefix) {
  for (const FileKind& kind : sealed_kinds()) {
    const std::vector<Sample> samples{sample("first", 3), sample("second", 300)};
    std::vector<std::byte> file = saved_as(samples, kind);
    const std::uint64_t prefix = kFileHeaderSize + read_with(file, nullptr).header().index_size;
    for (std::uint64_t bit = 0; bit < 8 * prefix; ++bit) {
      file[bit / 8] ^= std::byte{1} << (bit % 8);
      const Error error = error_of([&] { read_with(file, nullptr); });
      EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat) << bit;
      file[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST(Seal, FindsRoomInThePrefix) {
  for (const FileKind& kind : sealed_kinds()) {
    // The prefix ends on a multiple of 4 KiB, which the seal reaches with one of these names.
    for (std::size_t size = 3600; size < 4096; ++size) {
      TensorsLayout layout(kind, 0);
      layout.add(sample(std::string(size, 'n'), 3).spec);
      std::vector<std::byte> file = layout.prefix(0, layout.prefix_size());
      file.resize(file.size() + layout.file_size());
      ASSERT_EQ(read(file).entries()[0].name.size(), size);
    }
  }
}

TEST(Seal, IsTheLastRecordOfAPlainFile) {
  const std::string seal = record(15, std::string(32, 's'));
  EXPECT_TRUE(contains(refusal(kMagic + seal, 1), "do not have the SHA-256 that was saved"));
  EXPECT_TRUE(contains(refusal(kMagic + record(15, "short"), 1), "is not a SHA-256"));
  EXPECT_TRUE(contains(refusal(kMagic + seal + record(4, ""), 1), "comes after the record"));
  EXPECT_TRUE(contains(refusal(kMagic + seal, 3), "seals an encrypted file"));
  EXPECT_TRUE(
      contains(refusal(kMagic + record(4, "") + record(9, "other"), 1), "is of an unknown kind"));
}

// ---- the MAC

struct Authenticated {
  std::vector<std::byte> file;
  std::uint64_t prefix = 0;   // where the index ends
  std::uint64_t covered = 0;  // how much of the file the MAC covers
};

Authenticated authenticated(const FileKind& kind) {
  const std::vector<Sample> samples{sample("first", 3), sample("second", 300)};
  Authenticated made{saved_as(samples, kind)};
  const Index index = read_with(made.file, nullptr);
  made.prefix = kFileHeaderSize + index.header().index_size;
  made.covered = kFileHeaderSize + index.authentication()->covered;
  return made;
}

Sha256Digest hmac_by_libsodium(ConstBytes key, ConstBytes message) {
  Sha256Digest mac;
  crypto_auth_hmacsha256(out(mac), in(message), message.size(), in(key));
  return mac;
}

// The MAC's key is derived from the file's key, and the MAC covers everything before itself.
TEST(MetadataMac, IsTheOneThatTheFormatSays) {
  FileKind kind = encrypted();
  for (const bool data_digests : {false, true}) {
    kind.data_digests = data_digests;
    const Authenticated made = authenticated(kind);
    const Sha256Digest key =
        hmac_by_libsodium(pattern(32, 41), as_bytes("tensorizer_ops metadata 1"));
    const ConstBytes file(made.file);
    EXPECT_TRUE(same(file.subspan(made.covered, kSha256Size),
                     hmac_by_libsodium(key, file.first(made.covered))));
    // Only padding follows it.
    EXPECT_TRUE(
        same(file.subspan(made.covered + kSha256Size, made.prefix - made.covered - kSha256Size),
             std::vector<std::byte>(made.prefix - made.covered - kSha256Size)));
  }
}

// A change of the frame's magic or of the record's kind makes a file without the record, like those
// of other programs.
TEST(MetadataMac, MissesNoByteOfThePrefix) {
  FileKind kind = encrypted();
  for (const bool data_digests : {false, true}) {
    kind.data_digests = data_digests;
    Authenticated made = authenticated(kind);
    const std::string_view text = as_text(made.file);
    const std::size_t frame = text.find(kFrameMagic);
    const std::size_t head = made.covered - 2 * kSha256Size - 2 - 6;
    FileKeys keys = keys_of(key_of());
    EXPECT_TRUE(read_with(made.file, &keys).authentication());
    for (std::uint64_t at = 0; at < made.prefix; ++at) {
      const bool names_it = (at >= frame && at < frame + kFrameMagic.size()) ||
                            (at >= head && at < head + sizeof(std::uint16_t));
      for (const int flip : {0x01, 0x80, 0xff}) {
        made.file[at] ^= static_cast<std::byte>(flip);
        try {
          const Index index = read_with(made.file, &keys);
          EXPECT_TRUE(names_it && !index.authentication()) << at;
        } catch (const Error& error) {
          EXPECT_TRUE(error.kind() == ErrorKind::Crypto || error.kind() == ErrorKind::InvalidFormat)
              << error.what();
        }
        made.file[at] ^= static_cast<std::byte>(flip);
      }
    }
  }
}

TEST(MetadataMac, IsOfItsKeyAlone) {
  const Authenticated made = authenticated(encrypted());
  const Index index = read_with(made.file, nullptr);
  EXPECT_TRUE(index.is_authentic(key_of().secret->bytes()));
  std::vector<std::byte> key = pattern(kKeySize, 41);
  for (std::size_t bit = 0; bit < 8 * kKeySize; ++bit) {
    key[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(index.is_authentic(key)) << bit;
    key[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
  FileKeys other = keys_of(key_of(42));
  const Error error = error_of([&] { read_with(made.file, &other); });
  EXPECT_EQ(error.kind(), ErrorKind::Crypto);
  EXPECT_TRUE(contains(error.what(), "wrong key or passphrase, or the file was modified"));
}

TEST(MetadataMac, SaysWithWhichPassphraseItWasMade) {
  const KeyDerivation derivation = derivation_of(9);
  const Authenticated made = authenticated(encrypted("open sesame", derivation));
  EXPECT_EQ(read_with(made.file, nullptr).authentication()->derivation, derivation);
  FileKeys right = keys_of(make_passphrase(as_bytes("open sesame")));
  read_with(made.file, &right);
  FileKeys wrong = keys_of(make_passphrase(as_bytes("open  sesame")));
  EXPECT_EQ(kind_of([&] { read_with(made.file, &wrong); }), ErrorKind::Crypto);
  // The derived key is accepted as well.
  FileKeys derived = keys_of({derive_key(as_bytes("open sesame"), derivation), false});
  read_with(made.file, &derived);
}

TEST(MetadataMac, IsWantedOfAnEncryptedFileOnly) {
  FileKeys keys = keys_of(key_of());
  const std::vector<std::byte> plain = saved(std::vector<Sample>{sample("t", 3)});
  const Error error = error_of([&] { read_with(plain, &keys); });
  EXPECT_EQ(error.kind(), ErrorKind::Crypto);
  EXPECT_TRUE(contains(error.what(), "a key was given, and the file is not encrypted"));
  // Files of other programs have no MAC.
  const RawFile foreign({sealed_tensor("t", pattern(5), {.key = pattern(32, 41)})}, 3);
  EXPECT_FALSE(read_with(foreign.bytes, &keys).authentication());
}

TEST(HeaderDigests, MissNoByteOfAHeader) {
  Authenticated made = authenticated(encrypted());
  FileKeys keys = keys_of(key_of());
  const Index index = read_with(made.file, &keys);
  for (const Entry& entry : index.entries()) {
    for (std::uint64_t at = entry.header_offset; at < entry.data_offset; ++at) {
      made.file[at] ^= std::byte{1};
      const Loading loading = load_all(made.file, &keys);
      made.file[at] ^= std::byte{1};
      ASSERT_TRUE(loading.error) << at;
      EXPECT_EQ(loading.error->kind(), ErrorKind::Crypto);
      EXPECT_TRUE(contains(loading.error->what(), quote(entry.name) + " (index entry ") &&
                  contains(loading.error->what(), "is not the one that was written"))
          << loading.error->what();
    }
  }
}

}  // namespace
}  // namespace tensorizer
