#include "transfer/device/device_checks.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/TensorOptions.h>

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "transfer/device/cuda_library.h"
#include "transfer/device/pinned_blocks.h"
#include "transfer/memory/memory.h"

namespace tensorizer {

namespace {

using Crc32 = at::Tensor(at::TensorList);
using Sha256Chunks = at::Tensor(at::TensorList, std::int64_t);
using Decrypt = at::Tensor(at::TensorList, at::IntArrayRef, at::TensorList, at::TensorList,
                           at::TensorList);

c10::OperatorHandle device_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

// Returns a tensor over bytes that the kernels only read.
at::Tensor as_tensor(ConstBytes bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()),
                       {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

// Returns `count` values that a kernel has returned, which are in memory of the host by now.
template <typename T>
std::span<const T> values_of(const at::Tensor& result, std::size_t count) {
  if (count == 0) return {};
  if (result.nbytes() != count * sizeof(T)) {
    throw Error(ErrorKind::Internal, "a kernel of tensorizer_device returned " +
                                         std::to_string(result.nbytes()) + " bytes in place of " +
                                         std::to_string(count * sizeof(T)));
  }
  return {reinterpret_cast<const T*>(const_bytes(result).data()), count};
}

// Starts to copy what a kernel returns to pinned memory.
at::Tensor on_host(const at::Tensor& result, at::HostAllocator& pinned_memory) {
  if (!result.defined()) return result;
  const at::Tensor bytes = result.contiguous().view({-1}).view(at::kByte);
  return new_pinned(bytes.numel(), pinned_memory).copy_(bytes, /*non_blocking=*/true);
}

std::size_t chunks_of(const DeviceCheck& check, std::uint64_t chunk_size) {
  return chunk_size == 0 ? 0 : (check.size + chunk_size - 1) / chunk_size;
}
std::size_t hashed_chunks(const DeviceCheck& check) { return chunks_of(check, check.hashed_chunk); }
std::size_t encrypted_chunks(const DeviceCheck& check) {
  return check.cipher ? chunks_of(check, check.cipher->chunk_size) : 0;
}

// Takes the results of one check from those of a batch.
template <typename T>
std::span<const T> take(std::span<const T>& left, std::size_t count) {
  const std::span<const T> own = left.first(count);
  left = left.subspan(count);
  return own;
}

at::Tensor start_decryption(std::span<const DeviceCheck> checks,
                            std::span<const at::Tensor> bytes) {
  static const auto op = device_op("tensorizer_device::decrypt").typed<Decrypt>();
  std::vector<at::Tensor> data;
  std::vector<at::Tensor> keys;
  std::vector<at::Tensor> nonces;
  std::vector<at::Tensor> macs;
  std::vector<std::int64_t> chunks;
  for (std::size_t i = 0; i < checks.size(); ++i) {
    if (!checks[i].cipher) continue;
    const DeviceCipher& cipher = *checks[i].cipher;
    data.push_back(bytes[i]);
    chunks.push_back(static_cast<std::int64_t>(cipher.chunk_size));
    keys.push_back(as_tensor(cipher.key->bytes()));
    nonces.push_back(as_tensor(cipher.nonce));
    macs.push_back(as_tensor(cipher.macs));
  }
  return data.empty() ? at::Tensor() : op.call(data, chunks, keys, nonces, macs);
}

at::Tensor call_sha256_chunks(at::TensorList data, std::int64_t chunk) {
  static const auto op = device_op("tensorizer_device::sha256_chunks").typed<Sha256Chunks>();
  return op.call(data, chunk);
}

at::Tensor call_crc32(at::TensorList data) {
  static const auto op = device_op("tensorizer_device::crc32").typed<Crc32>();
  return op.call(data);
}

at::Tensor start_hashing(std::span<const DeviceCheck> checks, std::span<const at::Tensor> bytes) {
  std::vector<at::Tensor> data;
  std::uint64_t chunk = 0;  // is the same for all checks of a job
  for (std::size_t i = 0; i < checks.size(); ++i) {
    if (checks[i].hashed_chunk == 0) continue;
    chunk = checks[i].hashed_chunk;
    data.push_back(bytes[i]);
  }
  return data.empty() ? at::Tensor() : call_sha256_chunks(data, static_cast<std::int64_t>(chunk));
}

at::Tensor start_crc32(std::span<const DeviceCheck> checks, std::span<const at::Tensor> bytes) {
  std::vector<at::Tensor> data;
  for (std::size_t i = 0; i < checks.size(); ++i) {
    if (checks[i].hashes.has(Hash::Crc32)) data.push_back(bytes[i]);
  }
  return data.empty() ? at::Tensor() : call_crc32(data);
}

// Registers the kernels of the library above the folder of this one, for the rest of the process.
void use_cuda_library() {
  static std::once_flag once;
  std::call_once(once, [] {
    Dl_info here{};
    if (dladdr(reinterpret_cast<const void*>(&can_check_on), &here) == 0) return;
    const std::filesystem::path folder = std::filesystem::path(here.dli_fname).parent_path();
    const auto path = folder / ".." / "libtensorizer_ops_cuda.so";
    std::string why;
    static_cast<void>(register_cuda_library(path, c10::DispatchKey::CUDA, why).release());
    if (!why.empty()) log("the host verifies and decrypts what is loaded to CUDA devices: " + why);
  });
}

}  // namespace

bool can_check_on(c10::Device device) {
  if (device.is_cuda()) use_cuda_library();
  const c10::DispatchKey key = c10::computeDispatchKey(std::nullopt, c10::kStrided, device);
  return std::ranges::all_of(
      std::array{"tensorizer_device::crc32", "tensorizer_device::sha256_chunks",
                 "tensorizer_device::decrypt"},
      [&](const char* name) { return device_op(name).hasKernelForDispatchKey(key); });
}

std::uint64_t last_chunks_for(c10::Device device) {
  // Measured on an H100: one of its threads hashes 24 to 30 MB/s, and one of the host 0.65 GB/s.
  return device.is_cuda() ? 45 : 0;
}

at::Tensor crc32_on_device(const at::Tensor& bytes) { return call_crc32(bytes); }

at::Tensor sha256_chunks_on_device(const at::Tensor& bytes, std::int64_t chunk) {
  return call_sha256_chunks(bytes, chunk);
}

void DeviceChecks::start(DeviceCheck check, at::Tensor bytes) {
  const std::lock_guard lock(queue_mutex_);
  queued_.checks.push_back(std::move(check));
  queued_.bytes.push_back(std::move(bytes));
}

void DeviceChecks::take_ended(bool wait, std::vector<DeviceCheck>& ended) {
  std::unique_lock lock(batch_mutex_, std::defer_lock);
  if (wait) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return;  // another worker is at it
  }
  for (;;) {
    if (running_.end) {
      if (!wait && !running_.end->query()) return;
      running_.end->synchronize();
      collect(ended);
    }
    Queue queue;
    {
      const std::lock_guard queue_lock(queue_mutex_);
      queue = std::exchange(queued_, Queue());
    }
    if (!queue.checks.empty()) launch(std::move(queue));
    if (!wait || !ended.empty() || !running_.end) return;
  }
}

void DeviceChecks::launch(Queue queue) {
  if (!stream_) stream_ = streams_.add();
  end_of(streams_.copies()).block(*stream_);
  const c10::StreamGuard guard(*stream_);
  Batch batch{std::move(queue)};
  const Queue& started = batch.started;
  at::HostAllocator& pinned_memory = streams_.pinned_memory();
  try {
    batch.wrong = on_host(start_decryption(started.checks, started.bytes), pinned_memory);
    batch.digests = on_host(start_hashing(started.checks, started.bytes), pinned_memory);
    batch.crc32s = on_host(start_crc32(started.checks, started.bytes), pinned_memory);
  } catch (const c10::OutOfMemoryError& error) {
    throw Error(ErrorKind::OutOfMemory, stream_->device().str() +
                                            " has no memory left to decrypt and digest tensors: " +
                                            error.what_without_backtrace());
  }
  batch.end.emplace(stream_->device_type());
  batch.end->record(*stream_);
  running_ = std::move(batch);
}

void DeviceChecks::collect(std::vector<DeviceCheck>& ended) {
  Batch batch = std::exchange(running_, Batch());
  std::size_t macs = 0;
  std::size_t chunks = 0;
  std::size_t sums = 0;
  for (const DeviceCheck& check : batch.started.checks) {
    macs += encrypted_chunks(check);
    chunks += hashed_chunks(check);
    sums += check.hashes.has(Hash::Crc32);
  }
  auto wrong = values_of<std::uint8_t>(batch.wrong, macs);
  auto digests = values_of<Digest>(batch.digests, chunks);
  auto crc32s = values_of<std::array<std::byte, kCrc32Size>>(batch.crc32s, sums);
  for (DeviceCheck& check : batch.started.checks) {
    const auto own_wrong = take(wrong, encrypted_chunks(check));
    check.wrong_macs.assign(own_wrong.begin(), own_wrong.end());
    const auto own_digests = take(digests, hashed_chunks(check));
    check.digests.assign(own_digests.begin(), own_digests.end());
    if (check.hashes.has(Hash::Crc32)) {
      check.found[Hash::Crc32] = digest_of(take(crc32s, 1).front());
    }
    ended.push_back(std::move(check));
  }
}

}  // namespace tensorizer
