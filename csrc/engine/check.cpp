#include "engine/check.h"

#include <algorithm>
#include <new>

namespace tensorizer {

void fail(const TensorPlace& place, ErrorKind kind, const std::string& what) {
  throw Error(kind, std::string(place.label) + ": " + describe(place.entry.name, place.number) +
                        ": " + what);
}

void rethrow_naming(const TensorPlace& place) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    fail(place, ErrorKind::OutOfMemory,
         "the memory for moving its " + std::to_string(place.entry.data_size) +
             " bytes is not to be had");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::OutOfMemory || error.message().starts_with(place.label)) throw;
    fail(place, ErrorKind::OutOfMemory, std::string(error.message()));
  }
}

std::optional<Sha256Digest> Pin::expected_of(std::uint32_t entry) const {
  if (expected.empty()) return std::nullopt;
  Sha256Digest digest;
  const ConstBytes listed = expected.subspan(entry * kSha256Size, kSha256Size);
  std::copy(listed.begin(), listed.end(), digest.begin());
  return digest;
}

void check_digests(const TensorPlace& place, const Pin* pin, const Expected& expected,
                   const Digests& found) {
  if (pin != nullptr) pin->found[place.number] = found.sha256;
  const char* wrong = nullptr;
  if (expected.crc32 && *expected.crc32 != found.crc32) wrong = "CRC32";
  if (expected.sha256 && *expected.sha256 != found.sha256) wrong = "SHA-256";
  if (!wrong) return;
  const std::uint64_t begin = pin != nullptr ? place.entry.data_offset : place.entry.header_offset;
  fail(place, ErrorKind::HashMismatch,
       "its bytes from offset " + std::to_string(begin) + " on do not have the " + wrong +
           " that was saved with them: the file is damaged");
}

void decrypt_chunks(const TensorPlace& place, const CryptInfo& crypt, ConstBytes key,
                    std::uint64_t position, Bytes bytes, Cancel& cancel) {
  for (std::uint64_t at = 0; at < bytes.size(); at += crypt.chunk_size) {
    cancel.check();
    const std::uint64_t chunk = (position + at) / crypt.chunk_size;
    const Bytes piece =
        bytes.subspan(at, std::min<std::uint64_t>(crypt.chunk_size, bytes.size() - at));
    if (decrypt_chunk(key, nonce_after(crypt.nonce, chunk), crypt.mac(chunk), piece)) continue;
    fail(place, ErrorKind::Crypto,
         "its " + std::to_string(piece.size()) + " bytes from offset " +
             std::to_string(place.entry.data_offset + position + at) +
             " on cannot be decrypted: the key is another one, or the file is damaged");
  }
}

}  // namespace tensorizer
