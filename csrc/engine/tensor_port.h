// Copies bytes to and from tensors whose memory cannot be filled from a file, or written to one,
// directly: tensors on a device, of another dtype than the file's, or not contiguous.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "codec/secretbox.h"
#include "engine/digest.h"
#include "engine/scratch.h"

namespace tensorizer {

// Memory of a port starts on a multiple of this. Torch copies a complex128 in one access, which
// traps if it is aligned less.
inline constexpr std::size_t kElementAlignment = 16;

// The key and nonce of one chunk of encrypted data.
struct ChunkKey {
  ConstBytes key;
  Nonce nonce;
};

// Digests and ciphers that run on a device, on the memory of a tensor. They see all bytes that were
// put before, and block until they are done.
class DeviceCodec {
 public:
  virtual ~DeviceCodec() = default;

  // Returns the digests that `start` asks for, of the header in it and of all of the tensor's data.
  virtual Digests digest(std::uint32_t tensor, const DigestStart& start) = 0;

  // Decrypts the `size` bytes at `position` in place if the MAC is right; otherwise leaves them as
  // they are and returns false.
  [[nodiscard]] virtual bool decrypt(std::uint32_t tensor, std::uint64_t position,
                                     std::uint64_t size, const ChunkKey& key, ConstBytes mac) = 0;

  // Writes the ciphertext of the tensor's bytes from `position` on to `out`, and returns its MAC.
  virtual Mac encrypt(std::uint32_t tensor, std::uint64_t position, Bytes out,
                      const ChunkKey& key) = 0;
};

// Each worker of a job opens a port of its own and uses it on its own thread. `tensor` is the
// number that its item has in `staged`. Positions and sizes are in bytes as stored, and fall on
// whole elements. Each byte of a tensor passes once, in any order. Methods throw Error.
class TensorPort {
 public:
  virtual ~TensorPort() = default;

  // Returns memory for `size` bytes that this port copies fast, aligned as elements are. It is
  // valid until the next call, which blocks until bytes that are still copied from it have left it.
  virtual Bytes take(std::size_t size) = 0;

  // Copies `bytes`, which are in memory of the last take(), to the tensor from `position` on. The
  // tensor has them after wait(), or when the job has ended.
  virtual void put(std::uint32_t tensor, std::uint64_t position, Bytes bytes) = 0;

  // Copies bytes of the tensor from `position` on to `out`, in memory of the last take(). They have
  // arrived after wait().
  virtual void get(std::uint32_t tensor, std::uint64_t position, Bytes out) = 0;

  // Blocks until the bytes of all put() and get() calls have arrived.
  virtual void wait() = 0;

  // Returns the codec of this tensor's device, owned by the port; null if the host digests,
  // encrypts and decrypts the tensor.
  virtual DeviceCodec* codec(std::uint32_t tensor) {
    (void)tensor;
    return nullptr;
  }
};

// Drops the bytes that are put: for data that is only checked, and for jobs without staged tensors.
class DiscardingPort final : public TensorPort {
 public:
  Bytes take(std::size_t size) override { return scratch_.take(size); }
  void put(std::uint32_t, std::uint64_t, Bytes) override {}
  void get(std::uint32_t, std::uint64_t, Bytes) override {}
  void wait() override {}

 private:
  Scratch scratch_;
};

}  // namespace tensorizer
