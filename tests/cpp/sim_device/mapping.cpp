#include "mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "streams.h"

namespace sim_device {

namespace {

// Address space only: memory is allocated where it is written to. ThreadSanitizer has no room for
// much more.
constexpr std::size_t kSpace = std::size_t{256} << 30;
constexpr std::size_t kAllSpace = kSpace * kDevices;

void* map(int descriptor, int protection) {
  void* const memory =
      mmap(nullptr, kAllSpace, protection, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  TORCH_CHECK(memory != MAP_FAILED, "sim: no address space: ", std::strerror(errno));
  madvise(memory, kAllSpace, MADV_DONTDUMP);
  return memory;
}

struct Mapping {
  Mapping() {
    descriptor = memfd_create("sim_device", MFD_CLOEXEC);
    TORCH_CHECK(descriptor >= 0 && ftruncate(descriptor, kAllSpace) == 0,
                "sim: no memory: ", std::strerror(errno));
    for_tensors = address_of(map(descriptor, PROT_NONE));
    for_streams = static_cast<std::byte*>(map(descriptor, PROT_READ | PROT_WRITE));
  }

  std::size_t offset(Address address) const {
    const std::size_t offset = address - for_tensors;
    TORCH_CHECK(offset < kAllSpace, "sim: that address is not on a device");
    return offset;
  }

  int descriptor;
  Address for_tensors;
  std::byte* for_streams;
};

// Never destroyed, because the threads of the streams never end and may still use it.
const Mapping& mapping() {
  static const Mapping* const leaked = new Mapping;
  return *leaked;
}

}  // namespace

Address first_address(c10::DeviceIndex device) {
  return mapping().for_tensors + static_cast<std::size_t>(device) * kSpace;
}

c10::Device device_of(Address address) {
  return c10::Device(kSim, static_cast<c10::DeviceIndex>(mapping().offset(address) / kSpace));
}

std::byte* seen_by_streams(Address address) {
  return mapping().for_streams + mapping().offset(address);
}

void discard(Address address, std::size_t size) {
  fallocate(mapping().descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(mapping().offset(address)), static_cast<off_t>(size));
}

}  // namespace sim_device
