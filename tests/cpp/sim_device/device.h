// The devices as torch sees them: the current device of each thread, guards, events.
#pragma once

#include <c10/core/Device.h>

namespace sim_device {

// Returns the calling thread's current device.
c10::DeviceIndex current_device();
// Sets the calling thread's current device, and returns the previous one. A negative index changes
// nothing. Throws if the device does not exist.
c10::DeviceIndex exchange_current_device(c10::DeviceIndex device);
// Returns `device`, with the index of the current device if it has none.
c10::Device with_index(c10::Device device);

}  // namespace sim_device
