// The memory of the devices, mapped twice. Tensors point into a mapping without access rights, so a
// host that accesses it gets a SIGSEGV. The threads of the streams use the other mapping, which is
// readable and writable.
//
// Everything here may be called from any thread.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

namespace sim_device {

// An address in the mapping that tensors point into.
using Address = std::uintptr_t;

inline Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }

// Returns the first address of a device.
Address first_address(c10::DeviceIndex device);
// These throw for an address that is not on a device.
c10::Device device_of(Address address);
std::byte* seen_by_streams(Address address);
// Returns the memory of these bytes to the system; they are zeros from then on.
void discard(Address address, std::size_t size);

}  // namespace sim_device
