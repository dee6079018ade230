// Operators that create, view and fill tensors. A missing operator raises an error: there is no
// fallback to the CPU, which would hide that it is missing.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "device.h"
#include "memory.h"
#include "streams.h"

namespace sim_device {

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::DeviceGuard guard_for(std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "sim: only memory of the host can be pinned");
  return c10::DeviceGuard(with_index(device.value_or(c10::Device(kSim))));
}

at::Tensor empty(at::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout>, std::optional<c10::Device> device,
                 std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard = guard_for(device, pin_memory);
  return at::detail::empty_generic(size, &device_allocator(), kKeys, c10::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  const c10::DeviceGuard guard = guard_for(device, pin_memory);
  return at::detail::empty_strided_generic(size, stride, &device_allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<c10::MemoryFormat> format) {
  const std::size_t bytes = at::detail::computeStorageNbytesContiguous(
      size, self.element_size(), static_cast<std::size_t>(self.storage_offset()));
  c10::StorageImpl& storage = *self.storage().unsafeGetStorageImpl();
  if (bytes > storage.nbytes()) resize_storage(storage, bytes);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_part_of_storage(at::Tensor& self, at::Storage source, std::int64_t offset,
                                at::IntArrayRef size, at::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  if (stride.data() != nullptr) {
    at::native::setStrided(self, size, stride, offset);
  } else {
    self.unsafeGetTensorImpl()->set_storage_offset(offset);
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<std::int64_t>(source.nbytes() / self.element_size());
  return set_part_of_storage(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_part_of_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                             source.strides());
}

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  if (self.numel() == 0) return self;
  launch(current_stream(self.device().index()), {self},
         [seen = as_seen_by_streams(self), value]() mutable {
           const at::NoGradGuard no_grad;
           seen.fill_(value);
         });
  return self;
}

at::Tensor& zero(at::Tensor& self) { return fill(self, 0); }

void record_stream(at::Tensor& self, c10::Stream stream) {
  c10::impl::getDeviceGuardImpl(kSim)->recordDataPtrOnStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", set_part_of_storage);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("fill_.Scalar", fill);
  m.impl("zero_", zero);
  m.impl("record_stream", record_stream);
}

}  // namespace

}  // namespace sim_device
