// The functions of csrc/cuda/interface.h for the simulated device: the same arithmetic, compiled
// for the host, on the device's streams. tensorizer_ops loads this library in place of
// libtensorizer_ops_cuda.so while a test asks for it.
#include "codec.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "control.h"
#include "cuda/crc32.h"
#include "cuda/interface.h"
#include "cuda/poly1305.h"
#include "cuda/salsa20.h"
#include "cuda/sha256.h"
#include "device.h"
#include "mapping.h"
#include "memory.h"
#include "streams.h"
#include "transfer/device/cuda_library.h"

namespace sim_device {

namespace {

namespace device = tensorizer::device;

constexpr std::uint64_t kPolyRun = 128;
constexpr std::uint64_t kCrc32Piece = 4096;
// The scratch memory of a chunk, which the kernels of a device need and this code does not.
constexpr std::uint64_t kStateSize = 8;

std::uint8_t* seen(const void* bytes) {
  return reinterpret_cast<std::uint8_t*>(seen_by_streams(address_of(bytes)));
}

std::uint64_t chunks_of(std::uint64_t size, std::uint64_t chunk) {
  return (size + chunk - 1) / chunk;
}

std::uint32_t crc32_of(const std::uint8_t* data, std::uint64_t size) {
  static const device::Crc32Tables tables = device::crc32_tables();
  static const device::Crc32Powers powers = device::crc32_powers(kCrc32Piece);
  std::uint32_t sum = 0;
  for (std::uint64_t i = 0; i * kCrc32Piece < size; ++i) {
    sum ^= device::crc32_of_piece(tables, powers, data, size, kCrc32Piece, i);
  }
  return device::crc32_of(sum, size);
}

struct Cipher {
  std::array<std::uint8_t, 32> key;
  std::array<std::uint8_t, 24> nonce;
};

// Decrypts a chunk if its MAC is right, and returns whether it is.
bool decrypt_chunk(Cipher cipher, std::uint64_t number, std::uint8_t* data, std::uint64_t size,
                   const std::uint8_t* expected) {
  std::uint64_t carry = number;
  for (std::uint8_t& byte : cipher.nonce) {
    carry += byte;
    byte = static_cast<std::uint8_t>(carry);
    carry >>= 8;
  }
  const std::uint8_t* const nonce_end = cipher.nonce.data() + 16;
  const device::SalsaKey key = device::xsalsa_key(cipher.key.data(), cipher.nonce.data());
  std::uint32_t stream[16];
  device::xsalsa_block(key, nonce_end, 0, stream);
  std::uint8_t poly_key[32];
  for (int i = 0; i < 8; ++i) device::store_le32(poly_key + 4 * i, stream[i]);
  const device::PolyNumber r = device::poly_r(poly_key);
  const device::PolyPowers powers = device::poly_powers(r, kPolyRun);
  device::PolyNumber sum{};
  for (std::uint64_t i = 0; i * kPolyRun < device::poly_blocks(size); ++i) {
    sum = device::poly_sum(sum, device::poly_of_run(r, powers, data, size, kPolyRun, i));
  }
  std::uint8_t mac[device::kPolyMac];
  device::poly_finish(sum, poly_key, mac);
  if (std::memcmp(mac, expected, sizeof(mac)) != 0) return false;
  for (std::uint64_t i = 0; i < device::xsalsa_blocks(size); ++i) {
    device::xsalsa_part(key, nonce_end, i, data, data, size);
  }
  return true;
}

// Queues work on a stream, which uses bytes of the device. Leaves that device current, as the
// functions of CUDA's library do.
template <typename Work>
int queue(Counter counter, int device, void* stream, const std::vector<DeviceBytes>& used,
          const Work& work) {
  add(counter);
  exchange_current_device(static_cast<c10::DeviceIndex>(device));
  launch(stream_of(stream), used, work);
  return 0;
}

std::mutex mutex;
std::unique_ptr<torch::Library> kernels;

}  // namespace

void set_codec(bool own) {
  const std::lock_guard lock(mutex);
  kernels.reset();
  if (!own) return;
  Dl_info here{};
  TORCH_CHECK(dladdr(reinterpret_cast<const void*>(&set_codec), &here) != 0, "sim: dladdr");
  std::string why;
  kernels = tensorizer::register_cuda_library(here.dli_fname, c10::DispatchKey::PrivateUse1, why);
  TORCH_CHECK(kernels, "sim: ", why);
}

}  // namespace sim_device

using namespace sim_device;

int tensorizer_cuda_crc32(int number, void* stream, const void* data, uint64_t size, void* crc32) {
  return queue(Counter::OwnDigests, number, stream, {{data, size}, {crc32, 4}}, [=] {
    const std::uint32_t crc = crc32_of(seen(data), size);
    std::memcpy(seen(crc32), &crc, sizeof(crc));
  });
}

int tensorizer_cuda_sha256_chunks(int number, void* stream, const tensorizer_cuda_bytes* pieces,
                                  uint64_t count, uint64_t chunk, void* digests) {
  auto* out = static_cast<std::uint8_t*>(digests);
  for (uint64_t i = 0; i < count; ++i) {
    const auto [data, size] = pieces[i];
    const std::uint64_t digests_size = chunks_of(size, chunk) * device::kSha256Size;
    queue(Counter::OwnDigests, number, stream, {{data, size}, {out, digests_size}}, [=] {
      for (std::uint64_t at = 0; at < size; at += chunk) {
        device::sha256(seen(data) + at, std::min(chunk, size - at),
                       seen(out) + at / chunk * device::kSha256Size);
      }
    });
    out += digests_size;
  }
  return 0;
}

int tensorizer_cuda_decrypt(int number, void* stream, const tensorizer_cuda_encrypted* pieces,
                            uint64_t count, const void* macs, void* state, void* wrong) {
  std::uint64_t first = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const auto [data, size, chunk, key, nonce] = pieces[i];
    Cipher cipher{};
    std::memcpy(cipher.key.data(), key, cipher.key.size());
    std::memcpy(cipher.nonce.data(), nonce, cipher.nonce.size());
    const std::uint64_t chunks = chunks_of(size, chunk);
    const auto* const own_macs = static_cast<const std::uint8_t*>(macs) + first * device::kPolyMac;
    auto* const own_wrong = static_cast<std::uint8_t*>(wrong) + first;
    const std::vector<DeviceBytes> used = {
        {data, size},
        {own_macs, chunks * device::kPolyMac},
        {static_cast<std::uint8_t*>(state) + first * kStateSize, chunks * kStateSize},
        {own_wrong, chunks}};
    queue(Counter::OwnCiphers, number, stream, used, [=] {
      for (std::uint64_t at = 0; at < size; at += chunk) {
        const std::uint64_t n = at / chunk;
        seen(own_wrong)[n] = !decrypt_chunk(cipher, n, seen(data) + at, std::min(chunk, size - at),
                                            seen(own_macs) + n * device::kPolyMac);
      }
    });
    first += chunks;
  }
  return 0;
}

uint64_t tensorizer_cuda_state_size(uint64_t chunks) { return chunks * kStateSize; }

int tensorizer_cuda_version(void) { return TENSORIZER_CUDA_VERSION; }

int tensorizer_cuda_device_count(void) { return kDevices; }

const char* tensorizer_cuda_error(int) { return "no error"; }
