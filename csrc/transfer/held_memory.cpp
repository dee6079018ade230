#include "transfer/held_memory.h"

#include <mutex>
#include <unordered_map>

namespace tensorizer {

namespace {

// The held storages that were resizable before, with the number of holders of each.
struct Register {
  std::mutex mutex;
  std::unordered_map<c10::StorageImpl*, std::size_t> holders;
};

Register& all_held() {
  static auto* const held = new Register;  // threads may still save when the process ends
  return *held;
}

}  // namespace

HeldMemory::HeldMemory(std::span<const at::Tensor> tensors) {
  storages_.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.has_storage()) storages_.push_back(tensor.storage());
  }
  Register& held = all_held();
  const std::lock_guard lock(held.mutex);
  for (const c10::Storage& storage : storages_) {
    c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
    if (impl->resizable()) {
      impl->set_resizable(false);
      held.holders.emplace(impl, 1);
    } else if (const auto found = held.holders.find(impl); found != held.holders.end()) {
      ++found->second;
    }
  }
}

HeldMemory::~HeldMemory() {
  Register& held = all_held();
  const std::lock_guard lock(held.mutex);
  for (const c10::Storage& storage : storages_) {
    c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
    const auto found = held.holders.find(impl);
    if (found == held.holders.end() || --found->second > 0) continue;
    held.holders.erase(found);
    // A storage that has moved to shared memory meanwhile has no allocator and cannot be resized.
    if (impl->allocator() != nullptr) impl->set_resizable(true);
  }
}

}  // namespace tensorizer
