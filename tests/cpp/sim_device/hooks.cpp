// The hooks that torch calls on every accelerator.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "device.h"
#include "host_allocator.h"
#include "mapping.h"
#include "memory.h"
#include "streams.h"

namespace sim_device {

namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}

  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return exchange_current_device(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchange_current_device(device);
  }

  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &host_allocator(); }
  c10::Device getDeviceFromPtr(void* address) const override {
    return device_of(address_of(address));
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t size) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), size);
  }
};

const bool registered = [] {
  c10::register_privateuse1_backend("sim");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

}  // namespace sim_device
