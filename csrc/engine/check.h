// What the bytes of a tensor have to be, and the errors where they are not.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/cancel.h"
#include "base/error.h"
#include "engine/digest.h"
#include "format/catalogue.h"

namespace tensorizer {

// Which tensor it is, for messages.
struct TensorLocation {
  std::string_view label;  // the file's
  const Entry& entry;
  std::uint32_t number;
};

[[noreturn]] void fail(const TensorLocation& location, ErrorKind kind, const std::string& what);

// For a handler of all exceptions, in what takes memory for a tensor: one that says that there is
// none leaves as Error(OutOfMemory) that names the tensor; all others leave as they are.
[[noreturn]] void rethrow_naming(const TensorLocation& location);

// The digests that a tensor shall have; those that it has none of are missing.
struct Expected {
  std::optional<std::uint32_t> crc32;
  std::optional<Sha256Digest> sha256;
};

// Data that is checked against digests that somebody vouches for, in place of those that stand in
// the file; both lists have a digest of each tensor's data, in the order of the entries.
struct ExpectedDigests {
  ConstBytes digests;  // empty where they are only to be found out
  std::span<Sha256Digest> found;

  std::optional<Sha256Digest> expected_of(std::uint32_t entry) const;
};

// Throws Error(HashMismatch). A pin, which may be missing, learns what was found of the data alone;
// without one, the header was digested too.
void check_digests(const TensorLocation& location, const ExpectedDigests* expected_digests,
                   const Expected& expected, const Digests& found);

// Throws the Error(Crypto) of a chunk whose MAC is wrong; `position` is in the tensor's data.
[[noreturn]] void fail_to_decrypt(const TensorLocation& location, std::uint64_t position,
                                  std::uint64_t size);

// Decrypts whole chunks in place; `position` is that of the first one in the tensor's data. Throws
// Error(Crypto) at the first whose MAC is wrong, which stays as it is.
void decrypt_chunks(const TensorLocation& location, const CryptInfo& crypt, ConstBytes key,
                    std::uint64_t position, Bytes bytes, Cancel& cancel);

}  // namespace tensorizer
