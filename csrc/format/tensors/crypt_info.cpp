#include "format/tensors/crypt_info.h"

#include <algorithm>

namespace tensorizer {

namespace {

enum class Kind : std::uint16_t { Derivation = 1, Chunked = 2, Sequential = 3 };

constexpr std::uint16_t kArgon2 = 1;
constexpr std::int32_t kArgon2id = 2;
constexpr std::uint64_t kChunkUnit = 64;
constexpr std::uint64_t kLargestChunk = std::uint64_t{1} << 40;
constexpr std::uint64_t kChunkedHead = sizeof(std::uint16_t) + 8 + kNonceSize + 8;

struct Parser {
  std::uint64_t data_size;
  std::string& fault;
  CryptInfo info;

  void set(const std::string& what) {
    if (fault.empty()) fault = what;
  }

  void take_nonce(Cursor& body) {
    const ConstBytes nonce = body.take_bytes(kNonceSize);
    std::copy(nonce.begin(), nonce.end(), info.nonce.begin());
  }

  void parse_entry(Cursor body) {
    const auto kind = static_cast<Kind>(body.take<std::uint16_t>());
    if (kind == Kind::Derivation) {
      if (info.derivation) set("derives its key twice");
      info.derivation = take_derivation(body, fault);
      return;
    }
    if (kind != Kind::Chunked && kind != Kind::Sequential) {
      set("has a crypt-info entry of unknown kind " +
          std::to_string(static_cast<std::uint16_t>(kind)));
      return;
    }
    if (info.chunk_size != 0) set("is encrypted twice");
    if (kind == Kind::Sequential) {
      info.chunk_size = std::max<std::uint64_t>(data_size, 1);
      take_nonce(body);
      info.macs = body.take_bytes(kMacSize);
      if (!body.ok()) set("has a crypt-info entry that is cut short");
      return;
    }
    info.chunk_size = body.take<std::uint64_t>();
    take_nonce(body);
    const auto count = body.take<std::uint64_t>();
    if (!body.ok()) {
      set("has a crypt-info entry that is cut short");
    } else if (info.chunk_size % kChunkUnit != 0 || info.chunk_size < kSmallestCryptChunk ||
               info.chunk_size > kLargestChunk) {
      set("is encrypted in chunks of " + std::to_string(info.chunk_size) +
          " bytes, which is no multiple of 64 from 1 KiB to 1 TiB");
    } else if (count != chunks_of(data_size, info.chunk_size)) {
      set("has " + std::to_string(count) + " MACs for " +
          std::to_string(chunks_of(data_size, info.chunk_size)) + " chunks");
    } else if (count > body.left() / kMacSize) {
      set("has a list of MACs that is cut short");
    } else {
      info.macs = body.take_bytes(count * kMacSize);
    }
  }
};

}  // namespace

CryptInfo parse_crypt_info(ConstBytes section, std::uint64_t data_size, std::string& fault) {
  Parser parser{data_size, fault, {}};
  Cursor cursor(section);
  const auto count = cursor.take<std::uint16_t>();
  for (int i = 0; i < count && cursor.ok() && fault.empty(); ++i) {
    const ConstBytes entry = cursor.take_bytes(cursor.take<std::uint64_t>());
    if (cursor.ok()) parser.parse_entry(Cursor(entry));
  }
  if (!cursor.ok()) parser.set("has a crypt-info section that is cut short");
  if (data_size > 0 && parser.info.chunk_size == 0) {
    parser.set("says that its data is not encrypted, in an encrypted file");
  }
  // Counting up must not reach a nonce that was used before.
  const CryptInfo& info = parser.info;
  const bool wraps =
      nonce_after(info.nonce, info.macs.size() / kMacSize).back() < info.nonce.back();
  if (wraps) parser.set("has a first nonce after which the nonces of its chunks would repeat");
  return parser.info;
}

std::uint64_t crypt_info_size(const Encryption& encryption, std::uint64_t data_size) {
  std::uint64_t size = sizeof(std::uint64_t) + sizeof(std::uint16_t);
  if (data_size == 0) return size;
  if (encryption.derivation) {
    size += sizeof(std::uint64_t) + sizeof(std::uint16_t) + kDerivationSize;
  }
  return size + sizeof(std::uint64_t) + kChunkedHead + kMacSize * chunks_of(data_size, kCryptChunk);
}

CryptInfoLocation put_crypt_info(std::vector<std::byte>& bytes, const Encryption& encryption,
                                 std::uint64_t data_size) {
  ByteWriter out(bytes);
  out.put(crypt_info_size(encryption, data_size) - sizeof(std::uint64_t));
  CryptInfoLocation location;
  if (data_size == 0) {
    out.put(std::uint16_t{0});
    return location;
  }
  out.put(static_cast<std::uint16_t>(encryption.derivation ? 2 : 1));
  if (encryption.derivation) {
    out.put(std::uint64_t{sizeof(std::uint16_t) + kDerivationSize});
    out.put(static_cast<std::uint16_t>(Kind::Derivation));
    put_derivation(bytes, *encryption.derivation);
  }
  const std::uint64_t macs = chunks_of(data_size, kCryptChunk);
  location.nonce = random_nonce();
  out.put(kChunkedHead + kMacSize * macs);
  out.put(static_cast<std::uint16_t>(Kind::Chunked));
  out.put(kCryptChunk);
  out.put_bytes(location.nonce);
  out.put(macs);
  location.macs_at = bytes.size();
  bytes.resize(bytes.size() + kMacSize * macs);
  return location;
}

void put_derivation(std::vector<std::byte>& bytes, const KeyDerivation& derivation) {
  ByteWriter out(bytes);
  out.put(kArgon2);
  out.put(derivation.cost.passes);
  out.put(derivation.cost.memory);
  out.put(kArgon2id);
  out.put(static_cast<std::uint16_t>(derivation.salt.size()));
  out.put_bytes(derivation.salt);
}

std::optional<KeyDerivation> take_derivation(Cursor& cursor, std::string& fault) {
  const auto method = cursor.take<std::uint16_t>();
  KeyDerivation derivation{};
  derivation.cost.passes = cursor.take<std::uint64_t>();
  derivation.cost.memory = cursor.take<std::uint64_t>();
  const auto algorithm = cursor.take<std::int32_t>();
  const ConstBytes salt = cursor.take_bytes(cursor.take<std::uint16_t>());
  if (!cursor.ok()) {
    fault = "has a key derivation that is cut short";
  } else if (method != kArgon2 || algorithm != kArgon2id) {
    fault = "derives its key by method " + std::to_string(method) + ", algorithm " +
            std::to_string(algorithm) + ", which is unknown";
  } else if (salt.size() != kSaltSize) {
    fault = "derives its key with a salt of " + std::to_string(salt.size()) +
            " bytes, which must be 16";
  }
  if (!fault.empty()) return std::nullopt;
  std::copy(salt.begin(), salt.end(), derivation.salt.begin());
  return derivation;
}

}  // namespace tensorizer
