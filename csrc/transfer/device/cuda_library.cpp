#include "transfer/device/cuda_library.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "cuda/interface.h"
#include "transfer/device/pinned_blocks.h"

namespace tensorizer {

namespace {

constexpr std::int64_t kDigestBytes = 32;
constexpr std::int64_t kMacBytes = 16;

struct CudaLibrary {
  decltype(&tensorizer_cuda_sha256_chunks) sha256_chunks;
  decltype(&tensorizer_cuda_crc32) crc32;
  decltype(&tensorizer_cuda_decrypt) decrypt;
  decltype(&tensorizer_cuda_state_size) state_size;
  decltype(&tensorizer_cuda_device_count) device_count;
  decltype(&tensorizer_cuda_error) error;

  void check(int result) const {
    TORCH_CHECK(result == 0, "libtensorizer_ops_cuda.so: ", error(result));
  }
};

// Returns whether the library has the version that this code needs, and all of its functions.
bool find_functions(void* library, CudaLibrary& functions) {
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  decltype(&tensorizer_cuda_version) version = nullptr;
  return find("tensorizer_cuda_version", version) && version() == TENSORIZER_CUDA_VERSION &&
         find("tensorizer_cuda_sha256_chunks", functions.sha256_chunks) &&
         find("tensorizer_cuda_crc32", functions.crc32) &&
         find("tensorizer_cuda_decrypt", functions.decrypt) &&
         find("tensorizer_cuda_state_size", functions.state_size) &&
         find("tensorizer_cuda_device_count", functions.device_count) &&
         find("tensorizer_cuda_error", functions.error);
}

// The device of an op's arguments, and its current stream.
struct Place {
  c10::Device device;
  c10::DeviceGuard guard;  // the functions of the library change the current device
  void* stream;

  explicit Place(at::TensorList data)
      : device(data.front().device()),
        guard(device),
        stream(c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle()) {}

  at::Tensor empty(at::IntArrayRef shape, c10::ScalarType type = at::kByte) const {
    return at::empty(shape, at::TensorOptions().dtype(type).device(device));
  }
};

std::int64_t chunks_of(const at::Tensor& data, std::int64_t chunk) {
  return data.numel() / chunk + (data.numel() % chunk != 0);  // which does not overflow
}

at::Tensor crc32(const CudaLibrary& library, at::TensorList data) {
  const Place place(data);
  at::Tensor found = place.empty({static_cast<std::int64_t>(data.size())}, at::kInt);
  auto* out = found.mutable_data_ptr<std::int32_t>();
  for (const at::Tensor& each : data) {
    library.check(library.crc32(place.device.index(), place.stream, each.const_data_ptr(),
                                each.nbytes(), out++));
  }
  return found;
}

at::Tensor sha256_chunks(const CudaLibrary& library, at::TensorList data, std::int64_t chunk) {
  const Place place(data);
  std::vector<tensorizer_cuda_bytes> pieces;
  pieces.reserve(data.size());
  std::int64_t chunks = 0;
  for (const at::Tensor& each : data) {
    pieces.push_back({each.const_data_ptr(), each.nbytes()});
    chunks += chunks_of(each, chunk);
  }
  at::Tensor digests = place.empty({chunks, kDigestBytes});
  library.check(library.sha256_chunks(place.device.index(), place.stream, pieces.data(),
                                      pieces.size(), static_cast<std::uint64_t>(chunk),
                                      digests.mutable_data_ptr()));
  return digests;
}

// Copies the bytes of all tensors to the device, one after another. They pass through pinned
// memory, so that the host does not wait for the stream.
at::Tensor upload(const Place& place, at::TensorList bytes, std::int64_t size) {
  const at::Tensor pinned = new_pinned(size, *at::getHostAllocator(place.device.type()));
  auto* out = static_cast<std::byte*>(pinned.mutable_data_ptr());
  for (const at::Tensor& each : bytes) {
    std::memcpy(out, each.const_data_ptr(), each.nbytes());
    out += each.nbytes();
  }
  at::Tensor there = place.empty({size});
  there.copy_(pinned, /*non_blocking=*/true);
  return there;
}

at::Tensor decrypt(const CudaLibrary& library, at::TensorList data, at::IntArrayRef chunks,
                   at::TensorList keys, at::TensorList nonces, at::TensorList macs) {
  const Place place(data);
  std::vector<tensorizer_cuda_encrypted> pieces;
  pieces.reserve(data.size());
  std::int64_t all = 0;
  for (std::size_t i = 0; i < data.size(); ++i) {
    const std::int64_t own = chunks_of(data[i], chunks[i]);
    TORCH_CHECK(macs[i].numel() == own * kMacBytes, "each chunk needs a MAC of 16 bytes");
    pieces.push_back({data[i].mutable_data_ptr(), data[i].nbytes(),
                      static_cast<std::uint64_t>(chunks[i]), keys[i].const_data_ptr(),
                      nonces[i].const_data_ptr()});
    all += own;
  }
  const at::Tensor macs_there = upload(place, macs, all * kMacBytes);
  at::Tensor wrong = place.empty({all});
  const at::Tensor state =
      place.empty({static_cast<std::int64_t>(library.state_size(static_cast<std::uint64_t>(all)))});
  library.check(library.decrypt(place.device.index(), place.stream, pieces.data(), pieces.size(),
                                macs_there.const_data_ptr(), state.mutable_data_ptr(),
                                wrong.mutable_data_ptr()));
  return wrong;
}

}  // namespace

std::unique_ptr<torch::Library> register_cuda_library(const std::string& path, c10::DispatchKey key,
                                                      std::string& why) {
  if (access(path.c_str(), F_OK) != 0) return nullptr;
  void* const opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    why = dlerror();
    return nullptr;
  }
  CudaLibrary library{};
  if (!find_functions(opened, library)) {
    why = path + " is of another version: build it again with this one";
    return nullptr;
  }
  if (library.device_count() == 0) {
    why = path + " finds no device, or a driver that is too old";
    return nullptr;
  }
  auto kernels = std::make_unique<torch::Library>(torch::Library::IMPL, "tensorizer_device", key,
                                                  __FILE__, __LINE__);
  kernels->impl(
      "crc32", torch::CppFunction([library](at::TensorList data) { return crc32(library, data); }));
  kernels->impl("sha256_chunks",
                torch::CppFunction([library](at::TensorList data, std::int64_t chunk) {
                  return sha256_chunks(library, data, chunk);
                }));
  kernels->impl("decrypt", torch::CppFunction([library](at::TensorList data, at::IntArrayRef chunks,
                                                        at::TensorList keys, at::TensorList nonces,
                                                        at::TensorList macs) {
                  return decrypt(library, data, chunks, keys, nonces, macs);
                }));
  return kernels;
}

}  // namespace tensorizer
