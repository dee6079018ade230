// torch.ops.sim: the controls for tests in Python.
#include <torch/library.h>

#include "codec.h"
#include "control.h"
#include "host_allocator.h"
#include "streams.h"

namespace sim_device {

namespace {

// Restores the initial state, except for what is still alive.
void reset() {
  reset_control();
  set_codec(false);
  set_lazy(true);
  settle();
  host_allocator().empty_cache();
  // Work left over from before may have caused violations only when settle() ran it.
  reset_control();
}

void skip_named(const std::string& name, std::int64_t nth) {
  if (name.empty()) {
    skip_nothing();
  } else {
    skip(counter_named(name), nth);
  }
}

TORCH_LIBRARY(sim, m) {
  m.def("device_count() -> int", [] { return std::int64_t{kDevices}; });
  m.def("counter(str name) -> int",
        [](const std::string& name) { return value(counter_named(name)); });
  m.def("counters() -> str[]", counter_names);
  m.def("waits() -> str[]", wait_names);
  m.def("violations() -> str[]", violations);
  m.def("reset() -> ()", reset);
  m.def("set_lazy(bool lazy) -> ()", set_lazy);
  m.def("skip(str what, int nth=0) -> ()", skip_named);
  m.def("set_limit(int bytes) -> ()", set_limit);
  m.def("set_codec(bool own) -> ()", set_codec);
  m.def("set_pooled(bool pooled) -> ()", set_pooled);
  m.def("set_capturing(bool capturing) -> ()", set_capturing);
}

}  // namespace

}  // namespace sim_device
