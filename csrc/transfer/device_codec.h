// Calls the digests and ciphers of a device: kernels for the ops of `tensorizer_device`
// (ops/library.cpp), which a library for the device registers with torch.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/tensor_port.h"

namespace tensorizer {

// Returns whether all ops have a kernel for the device.
bool has_device_codec(c10::Device device);

// Do what DeviceCodec declares, on the bytes of a tensor on a device with has_device_codec(). Run
// on the current stream and block until they are done. Throw Error(Internal) if a kernel returns a
// malformed result.
Digests digest_on_device(const at::Tensor& bytes, const DigestStart& start);
[[nodiscard]] bool decrypt_on_device(const at::Tensor& bytes, const ChunkKey& key, ConstBytes mac);
// `out` is pinned memory of the host, which the device writes directly.
Mac encrypt_on_device(const at::Tensor& bytes, const at::Tensor& out, const ChunkKey& key);

}  // namespace tensorizer
