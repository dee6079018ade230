// Digests and ciphers that the device computes itself. Thread-safe.
#pragma once

namespace sim_device {

// Sets whether the device brings its own digests and ciphers. Initially it does not.
void set_codec(bool own);

}  // namespace sim_device
