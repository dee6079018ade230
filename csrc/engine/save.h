// Saves the data of tensors from memory into a Sink.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/move.h"
#include "format/tensors/layout.h"
#include "io/sink.h"

namespace tensorizer {

// The data of one placed tensor.
struct SaveItem {
  ConstBytes memory;  // empty if it is staged or read
  // The number that ports know the tensor by, if its data is not in memory as it is stored.
  std::optional<std::uint32_t> staged{};
  // The number that readers know the tensor by, if its data comes from there.
  std::optional<std::uint32_t> read{};
};

struct SaveSettings {
  int threads = 1;
  // The memory that a job may take beyond its inputs.
  std::uint64_t memory_ceiling = 0;
  // Where the prefix ends in the target.
  std::uint64_t begin = 0;
  // Whether the inputs stay as they are until the sink is finished.
  bool memory_stays = false;
  // How many workers move data; those that do not compute wait for what is staged.
  int moves_in_flight = 1;
  OpenAccess open_access = default_access;
  // Called by save_file when all data has come; where it throws, the file does not appear.
  std::function<void()> confirm{};
};

// Writes headers and data of the layout's tensors from number `first` on, to a sink that is not
// sequential and has begun; items[i] is the data of tensor `first + i`. The layout learns what its
// records need.
void save_tensors(Sink& sink, Layout& layout, std::size_t first, std::span<const SaveItem> items,
                  const SaveSettings& settings, Progress& progress, Cancel& cancel);

// Writes what stands behind the last tensor.
void write_terminator(Sink& sink, const Layout& layout, Cancel& cancel);

// Saves a whole file, prefix and all, and makes it appear.
void save_file(Sink& sink, Layout& layout, std::span<const SaveItem> items,
               const SaveSettings& settings, Progress& progress, Cancel& cancel);

}  // namespace tensorizer
