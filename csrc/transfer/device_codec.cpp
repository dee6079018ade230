#include "transfer/device_codec.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace tensorizer {

namespace {

using Digest = at::Tensor(const at::Tensor&, const at::Tensor&, bool, bool);
using Decrypt = bool(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&);
using Encrypt = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                           const at::Tensor&);

c10::OperatorHandle find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

template <typename Signature>
c10::TypedOperatorHandle<Signature> find_typed(const char* name) {
  return find_op(name).typed<Signature>();
}

// Returns a tensor over bytes that the kernels only read.
at::Tensor as_tensor(ConstBytes bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()),
                       {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

void copy_result(const at::Tensor& result, Bytes out) {
  if (!result.is_cpu() || !result.is_contiguous() || result.nbytes() != out.size()) {
    throw Error(ErrorKind::Internal, "a kernel of tensorizer_device did not return " +
                                         std::to_string(out.size()) +
                                         " contiguous bytes on the CPU");
  }
  std::memcpy(out.data(), result.const_data_ptr(), out.size());
}

}  // namespace

bool has_device_codec(c10::Device device) {
  const c10::DispatchKey key = c10::computeDispatchKey(std::nullopt, c10::kStrided, device);
  return std::ranges::all_of(
      std::array{"tensorizer_device::digest", "tensorizer_device::decrypt",
                 "tensorizer_device::encrypt"},
      [&](const char* name) { return find_op(name).hasKernelForDispatchKey(key); });
}

Digests digest_on_device(const at::Tensor& bytes, const DigestStart& start) {
  static const auto op = find_typed<Digest>("tensorizer_device::digest");
  std::vector<std::byte> header(start.header[0].begin(), start.header[0].end());
  header.insert(header.end(), start.header[1].begin(), start.header[1].end());
  const at::Tensor result = op.call(as_tensor(header), bytes, start.crc32, start.sha256);
  std::array<std::byte, sizeof(Digests::crc32) + sizeof(Sha256Digest)> found;
  copy_result(result, found);
  Digests digests;
  std::memcpy(&digests.crc32, found.data(), sizeof(digests.crc32));
  std::copy_n(found.begin() + sizeof(digests.crc32), sizeof(Sha256Digest), digests.sha256.begin());
  return digests;
}

bool decrypt_on_device(const at::Tensor& bytes, const ChunkKey& key, ConstBytes mac) {
  static const auto op = find_typed<Decrypt>("tensorizer_device::decrypt");
  return op.call(bytes, as_tensor(key.key), as_tensor(key.nonce), as_tensor(mac));
}

Mac encrypt_on_device(const at::Tensor& bytes, const at::Tensor& out, const ChunkKey& key) {
  static const auto op = find_typed<Encrypt>("tensorizer_device::encrypt");
  Mac mac;
  copy_result(op.call(bytes, out, as_tensor(key.key), as_tensor(key.nonce)), mac);
  return mac;
}

}  // namespace tensorizer
