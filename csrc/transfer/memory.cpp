#include "transfer/memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StorageImpl.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/error.h"

namespace tensorizer {

namespace {

constexpr std::uint64_t kHugePage = 2 << 20;
// Smaller zeros are not worth a mapping of their own.
constexpr std::uint64_t kLazyZeros = 1 << 20;

struct MappedPart {
  std::shared_ptr<Mapping> mapping;
  Bytes part;
};

void release_mapped(void* context) {
  const std::unique_ptr<MappedPart> mapped(static_cast<MappedPart*>(context));
  mapped->mapping->discard(mapped->part);
}

void release_zeros(void* context) {
  const std::unique_ptr<Bytes> memory(static_cast<Bytes*>(context));
  munmap(memory->data(), memory->size());
}

at::Tensor over(c10::DataPtr data, std::uint64_t size, at::IntArrayRef shape,
                c10::ScalarType type) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                       static_cast<std::int64_t>(size),
                                                       std::move(data), nullptr, false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return tensor;
}

void advise_huge_pages(Bytes memory) {
  const auto begin = align_up(reinterpret_cast<std::uintptr_t>(memory.data()), kHugePage);
  const auto end =
      (reinterpret_cast<std::uintptr_t>(memory.data()) + memory.size()) / kHugePage * kHugePage;
  // Advice: where it is not taken, nothing is lost but speed.
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

at::Tensor new_tensor(at::IntArrayRef shape, c10::ScalarType type) {
  at::Tensor tensor = at::detail::empty_cpu(shape, type);
  if (const Bytes bytes = tensor_bytes(tensor); bytes.size() >= kHugePage) {
    advise_huge_pages(bytes);
  }
  return tensor;
}

at::Tensor new_zeros(at::IntArrayRef shape, c10::ScalarType type) {
  std::uint64_t size = c10::elementSize(type);
  for (const std::int64_t dimension : shape) size *= static_cast<std::uint64_t>(dimension);
  if (size < kLazyZeros) {
    // Some types have no fill kernel, but all of them are zero where their bytes are.
    at::Tensor tensor = at::detail::empty_cpu(shape, type);
    const Bytes bytes = tensor_bytes(tensor);
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    return tensor;
  }
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorKind::SystemError,
                "no address space for a tensor of " + std::to_string(size) + " bytes of zeros",
                ENOMEM);
  }
  auto* context = new Bytes(static_cast<std::byte*>(memory), size);
  return over(c10::DataPtr(memory, context, release_zeros, c10::Device(c10::kCPU)), size, shape,
              type);
}

at::Tensor mapped_tensor(std::shared_ptr<Mapping> mapping, Bytes part, at::IntArrayRef shape,
                         c10::ScalarType type) {
  auto* context = new MappedPart{std::move(mapping), part};
  return over(c10::DataPtr(part.data(), context, release_mapped, c10::Device(c10::kCPU)),
              part.size(), shape, type);
}

Bytes tensor_bytes(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

}  // namespace tensorizer
