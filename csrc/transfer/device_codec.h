// Digests and ciphers that a device brings along: kernels for the ops of the namespace
// `tensorizer_device`, which a library of the device registers with torch.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/tensor_port.h"

namespace tensorizer {

// Returns whether all ops have a kernel for the device.
bool has_device_codec(c10::Device device);

// As DeviceCodec says, for the bytes of a tensor on such a device; on its current stream, until all
// is done.
Digests digest_on_device(const at::Tensor& bytes, const DigestStart& start);
[[nodiscard]] bool decrypt_on_device(const at::Tensor& bytes, const ChunkKey& key, ConstBytes mac);
// `out` is memory of the host that the device writes by itself.
Mac encrypt_on_device(const at::Tensor& bytes, const at::Tensor& out, const ChunkKey& key);

}  // namespace tensorizer
