// Options of loads and saves.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tensorizer {

// Names and values as text: {{"memory_ceiling", "67108864"}, {"key", "named:release"}}. Readers,
// Writers and saves check them first, and throw Error(InvalidArgument) for a malformed value and
// for an unknown name, with the known one that was probably meant, or all of them. No message shows
// a value that may be a secret. docs/python.md and docs/remote.md list the options.
using OptionList = std::vector<std::pair<std::string, std::string>>;

// Texts that a program stores with its tensors, as keys and values: {{"format", "pt"}}. No key
// appears twice. A save throws Error(InvalidArgument) for one that does, and for a text that is not
// UTF-8.
using Metadata = std::vector<std::pair<std::string, std::string>>;

// Which digests a load checks: none, the CRC32 of every tensor, or every digest that was saved,
// where those of chunks take the place of a whole tensor's SHA-256. A tensor without the digests
// that are asked for is an Error(InvalidFormat).
enum class Verify { None, Crc32, All };

enum class Hash : std::uint8_t { Crc32, Sha256 };

// Which digests a save writes for every tensor. An encrypted file has a MAC for each chunk of its
// data instead of the digest of each chunk, unless the option `plain_digests` asks for both.
struct HashKinds {
  bool crc32 = false;
  bool sha256 = false;
  bool chunked = false;  // a digest of each chunk, by which parts of tensors can be verified
  Hash chunk_hash = Hash::Sha256;

  friend constexpr bool operator==(const HashKinds&, const HashKinds&) = default;
};

// The hashes that saves write by default: "chunked".
inline constexpr HashKinds kUsualHashes{.crc32 = true, .chunked = true};

}  // namespace tensorizer
