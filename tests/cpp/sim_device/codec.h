// Digests and ciphers of the device's own. Any thread.
#pragma once

namespace sim_device {

// Whether the device brings its own; at first it does not.
void set_codec(bool own);

}  // namespace sim_device
