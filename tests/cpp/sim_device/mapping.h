// The memory of the devices, mapped twice: where tensors point, nobody can access it, so that the
// host that tries gets a SIGSEGV; where the threads of the streams look, they can.
//
// Everything here may be called from any thread.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

namespace sim_device {

// Where tensors point.
using Address = std::uintptr_t;

inline Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }

// The addresses of a device start here.
Address first_address(c10::DeviceIndex device);
// These throw for an address that is not on a device.
c10::Device device_of(Address address);
std::byte* seen_by_streams(Address address);
// The system gets back the memory of these bytes, which are zeros from now on.
void discard(Address address, std::size_t size);

}  // namespace sim_device
