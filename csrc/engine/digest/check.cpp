#include "engine/digest/check.h"

#include <algorithm>
#include <new>

#include "engine/digest/chunks.h"

namespace tensorizer {

void fail(const TensorLocation& location, ErrorKind kind, const std::string& what) {
  throw Error(kind, location.source.label() + ": " +
                        describe(location.entry.name, location.number) + ": " + what);
}

void rethrow_naming(const TensorLocation& location) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    fail(location, ErrorKind::OutOfMemory,
         "not enough memory to move its " + std::to_string(location.entry.data_size) + " bytes");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::OutOfMemory ||
        error.message().starts_with(location.source.label())) {
      throw;
    }
    fail(location, ErrorKind::OutOfMemory, std::string(error.message()));
  }
}

Digests compared(const TensorDetails& details, Verify verify) {
  Digests digests = details.digests;
  if (verify == Verify::Crc32 && digests[Hash::Crc32]) digests[Hash::Sha256].reset();
  return digests;
}

std::string compare_digests(const TensorLocation& location, std::uint64_t begin,
                            const Digests& expected, const Digests& found) {
  const HashInfo* const wrong = differing(expected, found);
  if (wrong == nullptr) return "";
  return "its bytes from " + location.source.describe_offset(begin) + " on do not have the " +
         wrong->name + " that was saved with them: the file is damaged";
}

std::string describe_damage(const TensorLocation& location, const ChunkDigests& listed,
                            std::uint64_t position) {
  const Entry& entry = location.entry;
  return "its " + std::to_string(std::min(listed.chunk_size(), entry.data_size - position)) +
         " bytes from " + location.source.describe_offset(entry.data_offset + position) +
         " on do not have the " + info_of(listed.hash()).name +
         " that was saved for them: the file is damaged";
}

void compare_chunks(const ChunkDigests& listed, std::uint32_t entry, std::uint64_t position,
                    std::span<const Digest> found,
                    const std::function<void(std::uint64_t position)>& wrong) {
  for (const Digest& digest : found) {
    if (digest != digest_of(listed.digest(entry, position / listed.chunk_size()))) {
      wrong(position);
    }
    position += listed.chunk_size();
  }
}

void check_chunks(Source& source, const TensorLocation& location, const ChunkDigests& listed,
                  std::uint64_t position, Bytes bytes, std::span<const Digest> found,
                  Cancel& cancel, const WrongChunk& wrong) {
  compare_chunks(listed, location.number, position, found, [&](std::uint64_t at) {
    const Bytes rest = bytes.subspan(at - position);
    const Bytes chunk = rest.first(std::min<std::uint64_t>(listed.chunk_size(), rest.size()));
    Digest anew{};
    const ChunkedBytes chunked{chunk, {&anew, 1}};
    bool right = false;
    if (source.read_anew(location.entry.data_offset + at, chunk, cancel)) {
      digest_chunks({&chunked, 1}, listed.hash(), listed.chunk_size());
      right = anew == digest_of(listed.digest(location.number, at / listed.chunk_size()));
    }
    if (!right) wrong(at, chunk);
  });
}

std::string describe_wrong_mac(const Entry& entry, std::uint64_t position, std::uint64_t size) {
  return "its " + std::to_string(size) + " bytes from offset " +
         std::to_string(entry.data_offset + position) +
         " on cannot be decrypted: wrong key or passphrase, or the file was modified";
}

void decrypt_chunks(Source& source, const Entry& entry, const CryptInfo& crypt, ConstBytes key,
                    std::uint64_t position, Bytes bytes, Cancel& cancel, const WrongChunk& wrong) {
  for (std::uint64_t at = 0; at < bytes.size(); at += crypt.chunk_size) {
    cancel.check();
    const std::uint64_t chunk = (position + at) / crypt.chunk_size;
    const Bytes piece =
        bytes.subspan(at, std::min<std::uint64_t>(crypt.chunk_size, bytes.size() - at));
    const auto decrypt = [&] {
      return decrypt_chunk(key, nonce_after(crypt.nonce, chunk), crypt.mac(chunk), piece);
    };
    if (decrypt()) continue;
    const bool again = source.read_anew(entry.data_offset + position + at, piece, cancel);
    if (!again || !decrypt()) wrong(position + at, piece);
  }
}

}  // namespace tensorizer
