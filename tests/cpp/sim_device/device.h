// The devices, as torch asks for them: the current one of each thread, guards, events.
#pragma once

#include <c10/core/Device.h>

namespace sim_device {

// Of the calling thread.
c10::DeviceIndex current_device();
// Throws where there is no such device.
c10::DeviceIndex exchange_current_device(c10::DeviceIndex device);
// As it is, or the current one where it says none.
c10::Device with_index(c10::Device device);

}  // namespace sim_device
