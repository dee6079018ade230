#include "engine/check.h"

#include <algorithm>
#include <new>

namespace tensorizer {

void fail(const TensorLocation& location, ErrorKind kind, const std::string& what) {
  throw Error(kind, std::string(location.label) + ": " +
                        describe(location.entry.name, location.number) + ": " + what);
}

void rethrow_naming(const TensorLocation& location) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    fail(location, ErrorKind::OutOfMemory,
         "not enough memory to move its " + std::to_string(location.entry.data_size) + " bytes");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::OutOfMemory || error.message().starts_with(location.label))
      throw;
    fail(location, ErrorKind::OutOfMemory, std::string(error.message()));
  }
}

std::optional<Sha256Digest> ExpectedDigests::expected_of(std::uint32_t entry) const {
  if (digests.empty()) return std::nullopt;
  Sha256Digest digest;
  const ConstBytes listed = digests.subspan(entry * kSha256Size, kSha256Size);
  std::copy(listed.begin(), listed.end(), digest.begin());
  return digest;
}

void check_digests(const TensorLocation& location, const ExpectedDigests* expected_digests,
                   const Expected& expected, const Digests& found) {
  if (expected_digests != nullptr) expected_digests->found[location.number] = found.sha256;
  const char* wrong = nullptr;
  if (expected.crc32 && *expected.crc32 != found.crc32) wrong = "CRC32";
  if (expected.sha256 && *expected.sha256 != found.sha256) wrong = "SHA-256";
  if (!wrong) return;
  const std::uint64_t begin =
      expected_digests != nullptr ? location.entry.data_offset : location.entry.header_offset;
  fail(location, ErrorKind::HashMismatch,
       "its bytes from offset " + std::to_string(begin) + " on do not have the " + wrong +
           " that was saved with them: the file is damaged");
}

void fail_to_decrypt(const TensorLocation& location, std::uint64_t position, std::uint64_t size) {
  fail(location, ErrorKind::Crypto,
       "its " + std::to_string(size) + " bytes from offset " +
           std::to_string(location.entry.data_offset + position) +
           " on cannot be decrypted: wrong key or passphrase, or the file was modified or damaged");
}

void decrypt_chunks(const TensorLocation& location, const CryptInfo& crypt, ConstBytes key,
                    std::uint64_t position, Bytes bytes, Cancel& cancel) {
  for (std::uint64_t at = 0; at < bytes.size(); at += crypt.chunk_size) {
    cancel.check();
    const std::uint64_t chunk = (position + at) / crypt.chunk_size;
    const Bytes piece =
        bytes.subspan(at, std::min<std::uint64_t>(crypt.chunk_size, bytes.size() - at));
    if (decrypt_chunk(key, nonce_after(crypt.nonce, chunk), crypt.mac(chunk), piece)) continue;
    fail_to_decrypt(location, position + at, piece.size());
  }
}

}  // namespace tensorizer
