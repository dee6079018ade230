// Copies to, from and on devices, with the semantics of CUDA's copies.
//
// A copy between a device and suitable pinned memory (is_reachable()) is work for a stream, which
// accesses the memory when it gets to that work. All other memory of the host is copied and
// converted there, through a temporary tensor: before the stream starts a copy to the device, or
// after the host has waited for a copy from it.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <cstring>

#include "control.h"
#include "host_allocator.h"
#include "memory.h"
#include "streams.h"

namespace sim_device {

namespace {

// Returns a view of the same bytes with a dtype that has copy kernels, which some dtypes lack.
at::Tensor plain(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return tensor.view(c10::kByte);
    case 2:
      return tensor.view(c10::kShort);
    case 4:
      return tensor.view(c10::kInt);
    case 8:
      return tensor.view(c10::kLong);
    default:
      return tensor.view(c10::kComplexDouble);
  }
}

// Returns whether the elements must be conjugated or negated when they are read.
bool has_bits(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }

at::Tensor empty_on_host(const at::Tensor& like) {
  return at::empty(like.sizes(), at::TensorOptions().dtype(like.dtype()).device(c10::kCPU));
}

// Returns whether streams can access a tensor on the host directly.
bool is_reachable(const at::Tensor& host, const at::Tensor& device) {
  return is_pinned(host.const_data_ptr()) && host.is_contiguous() && !has_bits(host) &&
         host.dtype() == device.dtype();
}

// Makes pinned memory that is freed before its copy is over wait for that copy.
void keep_pinned(const at::Tensor& host, const c10::Stream& stream) {
  host_allocator().record_event(host.mutable_data_ptr(), host.storage().data_ptr().get_context(),
                                stream);
}

// Blocks until a copy is over. This wait is not one of those that a test can skip.
void finish(const Moment& end) {
  add(Counter::Blocking);
  wait_on_host(end);
}

// Returns a tensor over the memory of `host` that does not keep it alive: like a device, it knows
// only the address.
at::Tensor by_address(const at::Tensor& host) {
  return at::from_blob(host.mutable_data_ptr(), host.sizes(), host.strides(),
                       at::TensorOptions().dtype(host.dtype()));
}

Moment give_copy(const c10::Stream& stream, const at::Tensor& to, const at::Tensor& from) {
  const auto seen = [](const at::Tensor& tensor) {
    return tensor.is_privateuseone() ? as_seen_by_streams(tensor) : tensor;
  };
  return launch(stream, {to, from}, [to = seen(to), from = seen(from)] {
    const bool plain = to.dtype() == from.dtype() && !has_bits(to) && !has_bits(from);
    if (plain && to.is_contiguous() && from.is_contiguous()) {
      // Copies on this thread only; torch would use its thread pool.
      std::memmove(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
      return;
    }
    const at::NoGradGuard no_grad;
    to.copy_(from);
  });
}

void copy_to_device(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (!non_blocking) check_may_wait("a copy that blocks");
  const c10::Stream stream = current_stream(to.device().index());
  if (is_reachable(from, to)) {
    const Moment end = give_copy(stream, to, by_address(from));
    if (!non_blocking) return finish(end);
    keep_pinned(from, stream);
    add(Counter::AsyncToDevice);
    return;
  }
  at::Tensor staged = empty_on_host(to);
  staged.copy_(from);
  add(Counter::Staged);
  const Moment end = give_copy(stream, to, staged);
  if (!non_blocking) finish(end);
}

void copy_to_host(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const c10::Stream stream = current_stream(from.device().index());
  const bool reachable = is_reachable(to, from);
  if (!non_blocking || !reachable) check_may_wait("a copy that blocks");
  if (reachable) {
    const Moment end = give_copy(stream, by_address(to), from);
    if (!non_blocking) return finish(end);
    keep_pinned(to, stream);
    add(Counter::AsyncToHost);
    return;
  }
  const at::Tensor staged = empty_on_host(from);
  add(Counter::Staged);
  finish(give_copy(stream, staged, from));
  to.copy_(staged);
}

// Copies on the source's stream, which first waits for the destination's stream. The destination's
// stream then waits for the copy.
void copy_on_device(const at::Tensor& to, const at::Tensor& from) {
  const c10::Stream stream = current_stream(from.device().index());
  const c10::Stream other = current_stream(to.device().index());
  wait_in_stream(stream, end_of(other));
  const Moment end = give_copy(stream, to, from);
  wait_in_stream(other, end);
  add(Counter::OnDevice);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  if (destination.numel() == 0) return destination;
  const bool converts =
      self.dtype() != destination.dtype() || has_bits(self) || has_bits(destination);
  const at::Tensor expanded = self.expand_as(destination);
  const at::Tensor from = converts ? expanded : plain(expanded);
  const at::Tensor to = converts ? destination : plain(destination);
  if (from.is_privateuseone() && to.is_privateuseone()) {
    copy_on_device(to, from);
  } else if (to.is_privateuseone()) {
    copy_to_device(to, from, non_blocking);
  } else {
    copy_to_host(to, from, non_blocking);
  }
  return destination;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_copy_from", copy_from); }

// Torch's kernels for these bits copy the tensor, which would lead back here without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace

}  // namespace sim_device
