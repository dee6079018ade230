#include "transfer/memory/held_memory.h"

#include <c10/core/StorageImpl.h>

#include <mutex>
#include <unordered_map>

#include "base/hooks.h"
#include "transfer/memory/memory.h"

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
  tensors_.reserve(tensors.size());
  held_.reserve(tensors.size());
  run_alone([&] {
    for (const at::Tensor& tensor : tensors) {
      held_.push_back(tensor.defined() && is_not_plain(tensor).empty());
      tensors_.push_back(held_.back() ? same_memory(tensor) : tensor);
    }
    Register& held = all_held();
    const std::lock_guard lock(held.mutex);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!held_[i]) continue;
      c10::StorageImpl* const impl = tensors_[i].storage().unsafeGetStorageImpl();
      if (impl->resizable()) {
        impl->set_resizable(false);
        held.holders.emplace(impl, 1);
      } else if (const auto found = held.holders.find(impl); found != held.holders.end()) {
        ++found->second;
      }
    }
  });
}

HeldMemory::~HeldMemory() { release(); }

void HeldMemory::release() noexcept {
  {
    Register& held = all_held();
    const std::lock_guard lock(held.mutex);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!held_[i]) continue;
      c10::StorageImpl* const impl = tensors_[i].storage().unsafeGetStorageImpl();
      const auto found = held.holders.find(impl);
      if (found == held.holders.end() || --found->second > 0) continue;
      held.holders.erase(found);
      // A storage that has moved to shared memory meanwhile has no allocator and cannot be resized.
      if (impl->allocator() != nullptr) impl->set_resizable(true);
    }
  }
  tensors_.clear();
}

}  // namespace tensorizer
