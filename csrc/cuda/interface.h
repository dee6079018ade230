// The functions of libtensorizer_ops_cuda.so: digests and ciphers of memory on a CUDA device.
//
// The library knows nothing of torch, so one build serves every release. All functions but the last
// four start work on a stream (null is the default one) and return at once: 0, or a CUDA error.
// Pointers are to memory of the device unless they say otherwise, and must stay valid until the
// stream is done. Safe for concurrent use by multiple threads.
#pragma once

#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif
#pragma GCC visibility push(default)

// Changes when a function does.
#define TENSORIZER_CUDA_VERSION 3

struct tensorizer_cuda_bytes {
  const void* data;
  uint64_t size;
};

// Writes the SHA-256 of each chunk of each of `count` pieces, 32 bytes each. The last chunk of a
// piece may be shorter. Every chunk is hashed by one thread, so this is fast if there are
// thousands. `pieces` is memory of the host, and is copied.
int tensorizer_cuda_sha256_chunks(int device, void* stream,
                                  const struct tensorizer_cuda_bytes* pieces, uint64_t count,
                                  uint64_t chunk, void* digests);

// Writes the CRC32 of the data, 4 bytes.
int tensorizer_cuda_crc32(int device, void* stream, const void* data, uint64_t size, void* crc32);

// Data that is encrypted in chunks: XSalsa20 and Poly1305, as libsodium's
// crypto_secretbox_detached. The last chunk may be shorter.
struct tensorizer_cuda_encrypted {
  void* data;
  uint64_t size;
  uint64_t chunk;
  const void* key;    // 32 bytes of the host
  const void* nonce;  // 24 bytes of the host: the nonce of the first chunk, which counts up
};

// Decrypts `count` pieces in place. `pieces`, keys and nonces are memory of the host, and are
// copied. `macs` has 16 bytes for each chunk of each piece. Writes a byte to `wrong` for each
// chunk: 1 if its MAC is wrong, and then leaves the chunk as it is. `state` is scratch memory of
// tensorizer_cuda_state_size() bytes, and is filled with zeros at the end. All pieces are decrypted
// by the same few launches, but for a short one for every few dozen pieces.
int tensorizer_cuda_decrypt(int device, void* stream,
                            const struct tensorizer_cuda_encrypted* pieces, uint64_t count,
                            const void* macs, void* state, void* wrong);

// Returns the bytes of `state` for so many chunks.
uint64_t tensorizer_cuda_state_size(uint64_t chunks);

int tensorizer_cuda_version(void);

// Returns how many devices the library can use; 0 if there is no driver, or one that is too old.
int tensorizer_cuda_device_count(void);

// Returns the text of an error that a function has returned.
const char* tensorizer_cuda_error(int error);

#pragma GCC visibility pop
#if defined(__cplusplus)
}
#endif
