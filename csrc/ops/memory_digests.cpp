#include "ops/memory_digests.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "codec/crc32.h"
#include "engine/digest/chunks.h"
#include "ops/translate_errors.h"
#include "transfer/device/device_checks.h"
#include "transfer/memory/held_memory.h"
#include "transfer/memory/memory.h"

namespace tensorizer::ops {

namespace {

// Bytes that come from a device at a time.
constexpr std::int64_t kFromDevice = 16 << 20;
// Bytes that one thread takes at a time.
constexpr std::int64_t kOfThread = 1 << 20;

// The bytes that digests are of, on the device of the tensor, whose memory stays.
struct HeldBytes {
  explicit HeldBytes(const at::Tensor& data)
      : held(std::span(&data, 1)), bytes(row_major_bytes(held.tensors()[0], "data")) {}

  HeldMemory held;
  at::Tensor bytes;
};

// Calls `take` with the bytes one piece after another, each a multiple of `unit` but for the last.
void in_pieces(const at::Tensor& bytes, std::int64_t unit,
               const std::function<void(std::int64_t position, ConstBytes piece)>& take) {
  if (bytes.is_cpu()) {
    take(0, const_bytes(bytes));
    return;
  }
  const std::int64_t size = bytes.numel();
  const std::int64_t most = std::max(kFromDevice / unit, std::int64_t{1}) * unit;
  for (std::int64_t at = 0; at < size; at += most) {
    take(at, const_bytes(bytes.narrow(0, at, std::min(most, size - at)).cpu()));
  }
}

std::uint32_t crc32_of(ConstBytes bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  std::vector<std::uint32_t> found(static_cast<std::size_t>((size + kOfThread - 1) / kOfThread));
  const auto piece_of = [&](std::size_t i) {
    const std::size_t at = i * kOfThread;
    return bytes.subspan(at, std::min<std::size_t>(kOfThread, bytes.size() - at));
  };
  at::parallel_for(0, static_cast<std::int64_t>(found.size()), 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (auto i = static_cast<std::size_t>(begin); i < std::size_t(end); ++i) {
                       found[i] = tensorizer::crc32(0, piece_of(i));
                     }
                   });
  std::uint32_t crc = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    crc = crc32_join(crc, found[i], piece_of(i).size());
  }
  return crc;
}

void hash_chunks(ConstBytes bytes, std::uint64_t chunk, std::span<Digest> digests) {
  // Several chunks are hashed side by side by one thread.
  const std::int64_t lanes = sha256_lanes();
  at::parallel_for(0, static_cast<std::int64_t>(digests.size()), lanes,
                   [&](std::int64_t begin, std::int64_t end) {
                     const auto first = static_cast<std::size_t>(begin);
                     const std::size_t count = static_cast<std::size_t>(end) - first;
                     const std::size_t at = first * chunk;
                     const std::size_t size = std::min(count * chunk, bytes.size() - at);
                     const ChunkedBytes mine{bytes.subspan(at, size),
                                             digests.subspan(first, count)};
                     digest_chunks({&mine, 1}, Hash::Sha256, chunk);
                   });
}

at::Tensor digests_on_host(std::int64_t count) {
  return at::empty({count, static_cast<std::int64_t>(kSha256Size)},
                   at::TensorOptions().dtype(at::kByte).device(at::kCPU));
}

}  // namespace

c10::SymInt crc32(const at::Tensor& data) {
  return translate_errors([&]() -> c10::SymInt {
    const HeldBytes held(data);
    const at::Tensor& bytes = held.bytes;
    if (bytes.numel() > 0 && can_check_on(bytes.device())) {
      const at::Tensor found = crc32_on_device(bytes).cpu();
      return std::int64_t{*reinterpret_cast<const std::uint32_t*>(const_bytes(found).data())};
    }
    std::uint32_t crc = 0;
    in_pieces(bytes, 1, [&](std::int64_t, ConstBytes piece) {
      crc = crc32_join(crc, crc32_of(piece), piece.size());
    });
    return static_cast<std::int64_t>(crc);
  });
}

at::Tensor sha256(const at::Tensor& data) {
  return translate_errors([&] {
    Sha256 hash;
    const HeldBytes held(data);
    in_pieces(held.bytes, 1, [&](std::int64_t, ConstBytes piece) { hash.update(piece); });
    const at::Tensor found = digests_on_host(1);
    const Sha256Digest digest = hash.finish();
    std::ranges::copy(digest, tensor_bytes(found).begin());
    return found.view({-1}).to(data.device());
  });
}

at::Tensor sha256_chunks(const at::Tensor& data, std::int64_t chunk) {
  return translate_errors([&] {
    if (chunk < 1) {
      throw Error(ErrorKind::InvalidArgument,
                  "chunk is " + std::to_string(chunk) + ", and must be 1 or more");
    }
    const HeldBytes held(data);
    const at::Tensor& bytes = held.bytes;
    if (bytes.numel() > 0 && can_check_on(bytes.device())) {
      return sha256_chunks_on_device(bytes, chunk);
    }
    const std::int64_t count = bytes.numel() / chunk + (bytes.numel() % chunk != 0);
    const at::Tensor found = digests_on_host(count);
    const std::span all(reinterpret_cast<Digest*>(tensor_bytes(found).data()),
                        static_cast<std::size_t>(count));
    in_pieces(bytes, chunk, [&](std::int64_t position, ConstBytes piece) {
      const auto size = static_cast<std::uint64_t>(chunk);
      hash_chunks(piece, size,
                  all.subspan(static_cast<std::size_t>(position / chunk),
                              piece.size() / size + (piece.size() % size != 0)));
    });
    return found.to(data.device());
  });
}

}  // namespace tensorizer::ops
