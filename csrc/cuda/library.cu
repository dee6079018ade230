// The kernels, which only divide the work of the headers among threads, and the functions that
// start them.
#include <cuda_runtime.h>

#include <cstring>

#include "cuda/crc32.h"
#include "cuda/interface.h"
#include "cuda/poly1305.h"
#include "cuda/salsa20.h"
#include "cuda/sha256.h"

namespace tensorizer::device {

namespace {

constexpr int kThreads = 256;
// The size of the second dimension of a grid, which a test sets to a small number.
#ifndef TENSORIZER_GRID_HEIGHT
#define TENSORIZER_GRID_HEIGHT 65535
#endif
constexpr std::uint64_t kGridHeight = TENSORIZER_GRID_HEIGHT;
// The threads that exchange numbers directly; AMD's devices name 64 of them, of which 32 do.
constexpr int kLanes = 32;
#ifdef __HIP_PLATFORM_AMD__
constexpr unsigned long long kAllLanes = ~0ull;
#else
constexpr unsigned kAllLanes = ~0u;
#endif
// Bytes of a CRC32 that one thread computes, and blocks of a MAC: enough that moving the result to
// its place costs little.
constexpr std::uint64_t kCrc32Piece = 4096;
constexpr std::uint64_t kPolyRun = 128;

__constant__ Crc32Tables crc32_constants = crc32_tables();

__device__ std::uint64_t thread_number() {
  return blockIdx.x * std::uint64_t{kThreads} + threadIdx.x;
}

// The pieces of one launch: as many as its arguments have room for. Launches follow one another,
// and each takes as long as its longest chunk.
#ifdef __HIP_PLATFORM_AMD__
constexpr int kMostPieces = 128;
#else
constexpr int kMostPieces = 1300;
#endif
// A warp that has a scheduler for itself hashes twice as fast as one of two, so small blocks spread
// few chunks over all multiprocessors.
constexpr int kHashThreads = 32;
struct Pieces {
  const std::uint8_t* data[kMostPieces];
  std::uint64_t size[kMostPieces];
  std::uint64_t first[kMostPieces + 1];  // the number of the first chunk of each; of all, at last
  int count;
};

__global__ void sha256_kernel(Pieces pieces, std::uint64_t chunk, std::uint8_t* digests) {
  const std::uint64_t number = blockIdx.x * std::uint64_t{kHashThreads} + threadIdx.x;
  if (number >= pieces.first[pieces.count]) return;
  int piece = 0;
  for (int end = pieces.count; end - piece > 1;) {
    const int middle = (piece + end) / 2;
    (pieces.first[middle] <= number ? piece : end) = middle;
  }
  const std::uint64_t at = (number - pieces.first[piece]) * chunk;
  const std::uint64_t left = pieces.size[piece] - at;
  sha256(pieces.data[piece] + at, left < chunk ? left : chunk, digests + number * kSha256Size);
}

__global__ void crc32_kernel(const std::uint8_t* data, std::uint64_t size, Crc32Powers powers,
                             std::uint32_t* sum) {
  // Threads look up different bytes at the same time, which constant memory does one by one.
  __shared__ Crc32Tables tables;
  for (int i = threadIdx.x; i < 4 * 256; i += kThreads) {
    tables.of[i / 256][i % 256] = crc32_constants.of[i / 256][i % 256];
  }
  __syncthreads();
  const std::uint64_t number = thread_number();
  std::uint32_t crc = 0;
  if (number * kCrc32Piece < size) {
    crc = crc32_of_piece(tables, powers, data, size, kCrc32Piece, number);
  }
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) crc ^= __shfl_xor_sync(kAllLanes, crc, lanes);
  if (threadIdx.x % kLanes == 0) atomicXor(sum, crc);
}

__global__ void crc32_end_kernel(std::uint64_t size, std::uint32_t* sum) {
  *sum = crc32_of(*sum, size);
}

// A piece to decrypt, and the number of its first chunk among those of all pieces.
struct EncryptedPiece {
  std::uint8_t* data;
  std::uint64_t size;
  std::uint64_t chunk;
  std::uint64_t first;
  std::uint64_t chunks;
  std::uint8_t key[32];
  std::uint8_t nonce[24];
};

// The arguments of a launch are at most 4 KiB.
constexpr int kMostEncrypted = 4000 / sizeof(EncryptedPiece);
struct EncryptedPieces {
  EncryptedPiece of[kMostEncrypted];
};

// The state of one chunk, which the kernels of one call share.
struct ChunkState {
  std::uint8_t* data;
  std::uint64_t size;
  SalsaKey key;
  std::uint8_t nonce[8];  // its last bytes
  std::uint8_t poly_key[32];
  PolyNumber r;
  PolyPowers powers;
  unsigned long long sums[5];
  std::uint32_t right;  // whether the MAC is
};

// Splits pieces into chunks. blockIdx.y is the piece. The other kernels run once for all pieces of
// a call, because kernels of a stream run one after another.
__global__ void chunks_kernel(EncryptedPieces pieces, ChunkState* states) {
  const EncryptedPiece& piece = pieces.of[blockIdx.y];
  const std::uint64_t number = thread_number();
  if (number >= piece.chunks) return;
  ChunkState& state = states[piece.first + number];
  const std::uint64_t left = piece.size - number * piece.chunk;
  state.data = piece.data + number * piece.chunk;
  state.size = left < piece.chunk ? left : piece.chunk;
  std::uint8_t nonce[24];
  std::uint64_t carry = number;
  for (int i = 0; i < 24; ++i) {
    carry += piece.nonce[i];
    nonce[i] = static_cast<std::uint8_t>(carry);
    carry >>= 8;
  }
  state.key = xsalsa_key(piece.key, nonce);
  for (int i = 0; i < 8; ++i) state.nonce[i] = nonce[16 + i];
}

__global__ void start_kernel(std::uint64_t chunks, ChunkState* states) {
  const std::uint64_t number = thread_number();
  if (number >= chunks) return;
  ChunkState& state = states[number];
  std::uint32_t stream[16];
  xsalsa_block(state.key, state.nonce, 0, stream);
  for (int i = 0; i < 8; ++i) store_le32(state.poly_key + 4 * i, stream[i]);
  state.r = poly_r(state.poly_key);
  state.powers = poly_powers(state.r, kPolyRun);
  for (int i = 0; i < 5; ++i) state.sums[i] = 0;
}

// blockIdx.y is the chunk.
__global__ void sum_kernel(ChunkState* states) {
  ChunkState& state = states[blockIdx.y];
  const std::uint64_t blocks = poly_blocks(state.size);
  // Other chunks are larger. All threads of a block return, because lanes wait for one another.
  if ((thread_number() - threadIdx.x) * kPolyRun >= blocks) return;
  PolyNumber sum = {{0, 0, 0, 0, 0}};
  if (thread_number() * kPolyRun < blocks) {
    sum = poly_of_run(state.r, state.powers, state.data, state.size, kPolyRun, thread_number());
  }
  for (int i = 0; i < 5; ++i) {
    std::uint32_t digit = sum.digits[i];  // the sum of kLanes fits
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      digit += __shfl_xor_sync(kAllLanes, digit, lanes);
    }
    if (threadIdx.x % kLanes == 0) atomicAdd(&state.sums[i], digit);
  }
}

__global__ void mac_kernel(std::uint64_t chunks, ChunkState* states, const std::uint8_t* macs,
                           std::uint8_t* wrong) {
  const std::uint64_t number = thread_number();
  if (number >= chunks) return;
  ChunkState& state = states[number];
  std::uint64_t sums[5];
  for (int i = 0; i < 5; ++i) sums[i] = state.sums[i];
  std::uint8_t mac[kPolyMac];
  poly_finish(poly_of_sums(sums), state.poly_key, mac);
  std::uint8_t different = 0;
  for (int i = 0; i < kPolyMac; ++i) different |= macs[number * kPolyMac + i] ^ mac[i];
  wrong[number] = different != 0;
  state.right = different == 0;
}

// blockIdx.y is the chunk.
__global__ void stream_kernel(ChunkState* states) {
  const ChunkState& state = states[blockIdx.y];
  std::uint8_t* const data = state.data;
  const std::uint64_t size = state.size;
  if (state.right == 0 || thread_number() >= xsalsa_blocks(size)) return;
  xsalsa_part(state.key, state.nonce, thread_number(), data, data, size);
}

unsigned blocks_for(std::uint64_t threads, int in_block = kThreads) {
  return static_cast<unsigned>((threads + in_block - 1) / in_block);
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

// The number of chunks of a call, and the size of the largest one.
struct Chunks {
  std::uint64_t count;
  std::uint64_t largest;
};

Chunks start_chunks(const tensorizer_cuda_encrypted* pieces, std::uint64_t count,
                    ChunkState* states, cudaStream_t stream) {
  Chunks all = {0, 0};
  for (std::uint64_t i = 0; i < count;) {
    EncryptedPieces launched;
    unsigned filled = 0;
    std::uint64_t most = 0;
    for (; i < count && filled < kMostEncrypted; ++i, ++filled) {
      const auto [data, size, chunk, key, nonce] = pieces[i];
      const std::uint64_t chunks = (size + chunk - 1) / chunk;
      EncryptedPiece& piece = launched.of[filled];
      piece = {static_cast<std::uint8_t*>(data), size, chunk, all.count, chunks, {}, {}};
      std::memcpy(piece.key, key, sizeof(piece.key));
      std::memcpy(piece.nonce, nonce, sizeof(piece.nonce));
      const std::uint64_t largest = size < chunk ? size : chunk;
      if (largest > all.largest) all.largest = largest;
      if (chunks > most) most = chunks;
      all.count += chunks;
    }
    if (most == 0) continue;
    const dim3 grid(blocks_for(most), filled);
    chunks_kernel<<<grid, kThreads, 0, stream>>>(launched, states);
  }
  return all;
}

// Starts a kernel with so many threads for each chunk.
void start_for_chunks(void (*kernel)(ChunkState*), std::uint64_t threads, const Chunks& chunks,
                      ChunkState* states, cudaStream_t stream) {
  for (std::uint64_t first = 0; first < chunks.count; first += kGridHeight) {
    const std::uint64_t left = chunks.count - first;
    const std::uint64_t count = left < kGridHeight ? left : kGridHeight;
    const dim3 grid(blocks_for(threads), static_cast<unsigned>(count));
    kernel<<<grid, kThreads, 0, stream>>>(states + first);
  }
}

// Overwrites the keys.
cudaError_t forget(ChunkState* states, const Chunks& chunks, cudaStream_t stream) {
  const cudaError_t started = cudaGetLastError();
  const cudaError_t forgotten =
      cudaMemsetAsync(states, 0, chunks.count * sizeof(ChunkState), stream);
  return started != cudaSuccess ? started : forgotten;
}

}  // namespace

}  // namespace tensorizer::device

using namespace tensorizer::device;

int tensorizer_cuda_sha256_chunks(int device, void* stream, const tensorizer_cuda_bytes* pieces,
                                  uint64_t count, uint64_t chunk, void* digests) {
  if (const cudaError_t error = cudaSetDevice(device)) return error;
  auto* out = static_cast<std::uint8_t*>(digests);
  Pieces launched;
  launched.count = 0;
  launched.first[0] = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const int last = launched.count++;
    launched.data[last] = static_cast<const std::uint8_t*>(pieces[i].data);
    launched.size[last] = pieces[i].size;
    launched.first[last + 1] = launched.first[last] + (pieces[i].size + chunk - 1) / chunk;
    if (launched.count < kMostPieces && i + 1 < count) continue;
    const std::uint64_t chunks = launched.first[launched.count];
    if (chunks > 0) {
      const unsigned blocks = blocks_for(chunks, kHashThreads);
      sha256_kernel<<<blocks, kHashThreads, 0, stream_of(stream)>>>(launched, chunk, out);
    }
    out += chunks * kSha256Size;
    launched.count = 0;
  }
  return cudaGetLastError();
}

int tensorizer_cuda_crc32(int device, void* stream, const void* data, uint64_t size, void* crc32) {
  if (const cudaError_t error = cudaSetDevice(device)) return error;
  auto* const sum = static_cast<std::uint32_t*>(crc32);
  if (const cudaError_t error = cudaMemsetAsync(sum, 0, sizeof(*sum), stream_of(stream))) {
    return error;
  }
  if (size > 0) {
    static const Crc32Powers kPowers = crc32_powers(kCrc32Piece);
    const unsigned blocks = blocks_for((size + kCrc32Piece - 1) / kCrc32Piece);
    crc32_kernel<<<blocks, kThreads, 0, stream_of(stream)>>>(static_cast<const std::uint8_t*>(data),
                                                             size, kPowers, sum);
  }
  crc32_end_kernel<<<1, 1, 0, stream_of(stream)>>>(size, sum);
  return cudaGetLastError();
}

int tensorizer_cuda_decrypt(int device, void* stream, const tensorizer_cuda_encrypted* pieces,
                            uint64_t count, const void* macs, void* state, void* wrong) {
  if (const cudaError_t error = cudaSetDevice(device)) return error;
  const cudaStream_t on = stream_of(stream);
  auto* const states = static_cast<ChunkState*>(state);
  const Chunks chunks = start_chunks(pieces, count, states, on);
  if (chunks.count == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(chunks.count);
  start_kernel<<<blocks, kThreads, 0, on>>>(chunks.count, states);
  const std::uint64_t runs = (poly_blocks(chunks.largest) + kPolyRun - 1) / kPolyRun;
  start_for_chunks(sum_kernel, runs, chunks, states, on);
  mac_kernel<<<blocks, kThreads, 0, on>>>(chunks.count, states,
                                          static_cast<const std::uint8_t*>(macs),
                                          static_cast<std::uint8_t*>(wrong));
  start_for_chunks(stream_kernel, xsalsa_blocks(chunks.largest), chunks, states, on);
  return forget(states, chunks, on);
}

uint64_t tensorizer_cuda_state_size(uint64_t chunks) { return chunks * sizeof(ChunkState); }

int tensorizer_cuda_device_count(void) {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

int tensorizer_cuda_version(void) { return TENSORIZER_CUDA_VERSION; }

const char* tensorizer_cuda_error(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}
