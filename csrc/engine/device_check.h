// Digests and ciphers that run on a device, on the memory of a tensor there.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "codec/secret_bytes.h"
#include "codec/secretbox.h"
#include "codec/sha256.h"

namespace tensorizer {

// How the bytes of a check are encrypted.
struct DeviceCipher {
  SharedSecret key;
  Nonce nonce;  // of the first chunk
  std::uint64_t chunk_size;
  std::vector<std::byte> macs;  // of all chunks, in order
};

// What a device does with bytes of a tensor that were put: it decrypts them in place, and then
// digests them.
struct DeviceCheck {
  std::uint32_t tensor;  // as TensorPort methods take it
  std::uint64_t position;
  std::uint64_t size;
  std::optional<DeviceCipher> cipher{};
  std::uint64_t hashed_chunk = 0;  // the size of the chunks to hash; 0 if none
  bool crc32 = false;              // whether to compute the CRC32

  // Not used by the device: the item of the job, the CRC32 of what comes before the bytes, and
  // whether they were checked before.
  std::uint32_t item = 0;
  std::uint32_t crc32_before = 0;
  bool again = false;

  // What the device found.
  std::vector<bool> wrong_macs{};       // by encrypted chunk; one with a wrong MAC stays as it is
  std::vector<Sha256Digest> digests{};  // of all hashed chunks
  std::uint32_t crc32_found = 0;
};

}  // namespace tensorizer
