#include "transfer/memory/memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/COW.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "io/file_pages.h"

namespace tensorizer {

namespace {

constexpr std::uint64_t kHugePage = 2 << 20;
// Smaller tensors use torch's allocator.
constexpr std::uint64_t kSmallestOfPages = 128 << 10;
// The size of a block, which serves several tensors. Only the parts that tensors cover are touched.
constexpr std::uint64_t kBlock = 256 << 20;
// Smaller tensors of zeros are not worth a mapping of their own.
constexpr std::uint64_t kLazyZeros = 1 << 20;

struct MappedPart {
  std::shared_ptr<Mapping> mapping;
  Bytes part;
};

void release_mapped(void* context) {
  const std::unique_ptr<MappedPart> mapped(static_cast<MappedPart*>(context));
  mapped->mapping->discard(mapped->part);
}

// Unmaps memory. munmap() fails if it would split a mapping when the process has reached its limit
// of mappings. Then this frees the memory, and only the addresses stay taken.
void unmap(Bytes memory) noexcept {
  if (!memory.empty() && munmap(memory.data(), memory.size()) != 0) {
    madvise(memory.data(), memory.size(), MADV_DONTNEED);
  }
}

void release_pages(void* context) {
  const std::unique_ptr<Bytes> pages(static_cast<Bytes*>(context));
  unmap(*pages);
}

// The data begins `shift` bytes behind the start of the memory.
c10::DataPtr owned(Bytes memory, std::uint64_t shift = 0) {
  return {memory.data() + shift, new Bytes(memory), release_pages, c10::Device(c10::kCPU)};
}

// Returns fresh zero pages, or an empty span.
Bytes map_pages(std::uint64_t size, int flags) {
  void* memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (memory == MAP_FAILED) return {};
  return {static_cast<std::byte*>(memory), size};
}

at::Tensor over(c10::DataPtr data, std::uint64_t size, at::IntArrayRef shape,
                c10::ScalarType type) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<std::int64_t>(size), std::move(data),
      c10::GetCPUAllocator(), true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return tensor;
}

// Returns fresh pages that start at a huge page's boundary and are advised to be huge pages, or an
// empty span.
Bytes map_huge_pages(std::uint64_t size) {
  const Bytes mapped = map_pages(size + kHugePage, 0);
  if (mapped.empty()) return {};
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data());
  const std::uint64_t before = align_up(begin, kHugePage) - begin;
  unmap(mapped.first(before));
  unmap(mapped.last(kHugePage - before));
  const Bytes kept = mapped.subspan(before, size);
  // This is advice: if the kernel ignores it, only speed is lost.
  madvise(kept.data(), kept.size(), MADV_HUGEPAGE);
  return kept;
}

void require_contiguous(const at::Tensor& tensor, std::string_view what) {
  require_memory(tensor, what);
  if (tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return;
  throw Error(ErrorKind::Internal, "a tensor is not contiguous on the CPU");
}

// Returns a tensor from torch's allocator.
at::Tensor empty(at::IntArrayRef shape, c10::ScalarType type) {
  return taking_memory(byte_size(shape, type), "memory on cpu",
                       [&] { return at::detail::empty_cpu(shape, type); });
}

}  // namespace

bool says_out_of_memory(const c10::Error& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const std::string_view text = error.what_without_backtrace();
  return text.find("allocate memory") != text.npos || text.find("out of memory") != text.npos;
}

void throw_out_of_memory(std::uint64_t size, std::string_view what, const std::string& reason) {
  // For the CPU, torch's message only names a place in its sources.
  const bool says_why = !reason.empty() && !reason.starts_with("[enforce fail");
  throw Error(ErrorKind::OutOfMemory, std::to_string(size) + " bytes of " + std::string(what) +
                                          " cannot be allocated" + (says_why ? ": " + reason : ""));
}

std::uint64_t byte_size(at::IntArrayRef shape, c10::ScalarType type) {
  std::uint64_t size = c10::elementSize(type);
  for (const std::int64_t dimension : shape) size *= static_cast<std::uint64_t>(dimension);
  return size;
}

std::string is_not_plain(const at::Tensor& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set();
  if (keys.has(c10::DispatchKey::FuncTorchBatched)) {
    return "it is inside torch.vmap(), which has many tensors in its place: call this outside";
  }
  if (keys.has(c10::DispatchKey::FuncTorchGradWrapper)) {
    return "it is inside a transform of torch.func, and has no memory of its own: call this "
           "outside";
  }
  if (keys.has(c10::DispatchKey::Functionalize)) {
    return "it is a functional tensor, which torch traces programs with";
  }
  if (tensor.is_nested()) return "it is nested, and has no shape: unbind() gives its tensors";
  if (tensor.unsafeGetTensorImpl()->is_python_dispatch()) {
    return "it is a tensor subclass without memory of its own; pass a plain tensor";
  }
  if (tensor.layout() != c10::kStrided) {
    return "its layout is " + c10::str(tensor.layout()) + ": to_dense() makes it strided";
  }
  if (tensor.is_quantized()) return "it is quantized: int_repr() gives its elements";
  if (tensor._is_zerotensor()) {
    return "it stands for zeros (torch._efficientzerotensor) and has no memory: clone() gives it "
           "some";
  }
  if (!tensor.has_storage()) return "it has no memory of its own; pass a plain tensor";
  return {};
}

std::string lacks_memory(const at::Tensor& tensor) {
  if (std::string why = is_not_plain(tensor); !why.empty()) return why;
  if (tensor.is_meta() || tensor.numel() == 0) return {};
  const std::size_t needed =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                       static_cast<std::size_t>(tensor.storage_offset()));
  const std::size_t there = tensor.storage().nbytes();
  if (there >= needed) return {};
  return "its storage has " + std::to_string(there) + " of the " + std::to_string(needed) +
         " bytes that its shape needs";
}

bool lacks_memory_for_all(const at::Tensor& tensor) {
  return tensor.is_meta() || tensor.storage().nbytes() < tensor.nbytes();
}

void require_memory(const at::Tensor& tensor, std::string_view what) {
  if (const std::string why = lacks_memory(tensor); !why.empty()) {
    throw Error(ErrorKind::InvalidArgument, std::string(what) + " has no bytes to use: " + why);
  }
}

Bytes tensor_bytes(const at::Tensor& tensor, std::string_view what) {
  require_contiguous(tensor, what);
  if (tensor.numel() == 0) return {};
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

ConstBytes const_bytes(const at::Tensor& tensor, std::string_view what) {
  require_contiguous(tensor, what);
  if (tensor.numel() == 0) return {};
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::uintptr_t address_of(const at::Tensor& tensor) {
  require_memory(tensor, "a tensor");
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
}

std::uint64_t extent(const at::Tensor& tensor) {
  std::uint64_t elements = 1;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    elements += static_cast<std::uint64_t>((tensor.size(i) - 1) * tensor.stride(i));
  }
  return elements * tensor.element_size();
}

void detach_from_files(std::span<const at::Tensor> tensors) {
  std::vector<Bytes> memory;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_cpu() || tensor.numel() == 0 || !lacks_memory(tensor).empty()) continue;
    // Torch's own memory is of no file, and the list of files is long.
    const c10::DeleterFnPtr deleter = tensor.storage().data_ptr().get_deleter();
    if (deleter == c10::GetCPUAllocator()->raw_deleter()) continue;
    memory.emplace_back(reinterpret_cast<std::byte*>(address_of(tensor)), extent(tensor));
  }
  detach_from_files(memory);
}

MemoryKey::MemoryKey(const at::Tensor& tensor)
    : kind_(Kind::Tensor), place_(reinterpret_cast<std::uintptr_t>(tensor.unsafeGetTensorImpl())) {
  if (!is_not_plain(tensor).empty()) return;
  // Copies on write have one address until one of them changes.
  const bool is_copy =
      !tensor.is_meta() && c10::impl::cow::is_cow_data_ptr(tensor.storage().data_ptr());
  if (!tensor.is_meta() && !is_copy && tensor.numel() > 0 && lacks_memory(tensor).empty()) {
    kind_ = Kind::Address;
    place_ = address_of(tensor);
  } else {
    kind_ = Kind::Storage;
    place_ = reinterpret_cast<std::uintptr_t>(tensor.storage().unsafeGetStorageImpl());
    layout_.push_back(tensor.storage_offset());
  }
  layout_.insert(layout_.end(), tensor.sizes().begin(), tensor.sizes().end());
  layout_.insert(layout_.end(), tensor.strides().begin(), tensor.strides().end());
  // A conjugate view has other values in the same memory.
  layout_.insert(layout_.end(), {static_cast<std::int64_t>(tensor.scalar_type()), tensor.is_conj(),
                                 tensor.is_neg(), static_cast<std::int64_t>(tensor.device().type()),
                                 tensor.device().index()});
}

at::Tensor same_memory(const at::Tensor& tensor) {
  // VIEW keeps the keys, also in inference mode: they decide whether a tensor counts its versions.
  at::Tensor other = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
  c10::TensorImpl* const impl = other.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  // Those of inference mode count no versions.
  if (!other.is_inference()) {
    impl->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  }
  return other;
}

NewMemory::~NewMemory() { unmap(left_); }

at::Tensor NewMemory::tensor(at::IntArrayRef shape, c10::ScalarType type, std::uint64_t shift) {
  const std::uint64_t size = byte_size(shape, type);
  if (size < kSmallestOfPages || of_the_job_ < kHugePage) {
    return empty(shape, type);
  }
  const std::uint64_t needed =
      align_up(size + shift, static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
  if (left_.size() < needed) {
    const Bytes block = map_huge_pages(std::max(needed, kBlock));
    if (block.empty()) return empty(shape, type);
    unmap(left_);
    left_ = block;
  }
  const Bytes memory = left_.first(needed);
  left_ = left_.subspan(needed);
  return over(owned(memory, shift), size, shape, type);
}

at::Tensor new_on(c10::Device device, at::IntArrayRef shape, c10::ScalarType type) {
  return taking_memory(byte_size(shape, type), "memory on " + device.str(),
                       [&] { return at::empty(shape, at::TensorOptions(device).dtype(type)); });
}

at::Tensor new_zeros(at::IntArrayRef shape, c10::ScalarType type) {
  const std::uint64_t size = byte_size(shape, type);
  if (size < kLazyZeros) {
    // Some dtypes have no fill kernel, but in all of them zero bytes are the value zero.
    at::Tensor tensor = empty(shape, type);
    const Bytes bytes = tensor_bytes(tensor);
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    return tensor;
  }
  const Bytes memory = map_pages(size, MAP_NORESERVE);
  if (memory.empty()) throw_out_of_memory(size, "memory on cpu");
  return over(owned(memory), size, shape, type);
}

at::Tensor mapped_tensor(std::shared_ptr<Mapping> mapping, Bytes part, at::IntArrayRef shape,
                         c10::ScalarType type) {
  auto* context = new MappedPart{std::move(mapping), part};
  return over(c10::DataPtr(part.data(), context, release_mapped, c10::Device(c10::kCPU)),
              part.size(), shape, type);
}

at::Tensor contiguous_bytes(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}).view(at::kByte);
}

at::Tensor as_plain(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Float4_e2m1fn_x2:
    case c10::ScalarType::UInt1:
    case c10::ScalarType::UInt2:
    case c10::ScalarType::UInt3:
    case c10::ScalarType::UInt4:
    case c10::ScalarType::UInt5:
    case c10::ScalarType::UInt6:
    case c10::ScalarType::UInt7:
    case c10::ScalarType::Int1:
    case c10::ScalarType::Int2:
    case c10::ScalarType::Int3:
    case c10::ScalarType::Int4:
    case c10::ScalarType::Int5:
    case c10::ScalarType::Int6:
    case c10::ScalarType::Int7:
    case c10::ScalarType::Bits1x8:
    case c10::ScalarType::Bits2x4:
    case c10::ScalarType::Bits4x2:
    case c10::ScalarType::Bits8:
    case c10::ScalarType::Bool:
      return tensor.view(c10::ScalarType::Byte);
    case c10::ScalarType::Bits16:
      return tensor.view(c10::ScalarType::Short);
    default:
      return tensor;
  }
}

at::Tensor row_major_bytes(const at::Tensor& tensor, std::string_view what) {
  require_memory(tensor, what);
  return contiguous_bytes(as_plain(tensor.detach().resolve_conj().resolve_neg()).contiguous());
}

}  // namespace tensorizer
