// Decryption and digests of a tensor's bytes on the device that they were copied to.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "codec/secret_bytes.h"
#include "codec/secretbox.h"
#include "format/hashes.h"

namespace tensorizer {

// The hashes that devices compute of all bytes of a check, and of its chunks. A hash of a whole
// tensor that does not join would run on one thread, which takes seconds on a device.
inline constexpr HashSet kDeviceHashes{Hash::Crc32};
inline constexpr Hash kDeviceChunkHash = Hash::Sha256;

// How the bytes are encrypted.
struct DeviceCipher {
  SharedSecret key;
  Nonce nonce;  // of the first chunk
  std::uint64_t chunk_size;
  std::vector<std::byte> macs;  // of all chunks, in order
};

// A range of a tensor that the device decrypts in place, and then digests.
struct DeviceCheck {
  std::uint32_t tensor;  // the number that TensorPort methods take
  std::uint64_t position;
  std::uint64_t size;
  std::optional<DeviceCipher> cipher{};
  std::uint64_t hashed_chunk = 0;  // the size of the chunks to hash; 0 if none
  HashSet hashes{};                // those of all bytes to compute

  // For the caller; the device does not use them. The item of the job, the digests of the bytes
  // before these, and whether this is the second check of repaired bytes.
  std::uint32_t item = 0;
  Digests before{};
  bool again = false;

  // The results of the device.
  std::vector<bool> wrong_macs{};  // by encrypted chunk; one with a wrong MAC is not decrypted
  std::vector<Digest> digests{};   // of all hashed chunks
  Digests found{};                 // of all bytes
};

}  // namespace tensorizer
