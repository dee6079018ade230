// Saves the data of tensors from memory into a Sink.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/move/move.h"
#include "format/layout.h"
#include "io/sink.h"

namespace tensorizer {

// The data of one placed tensor.
struct SaveItem {
  ConstBytes memory;  // empty if the tensor is staged or read
  // The number that ports know the tensor by, if its data is not in memory as it is stored.
  std::optional<std::uint32_t> staged{};
  // The number that a TensorReader knows the tensor by, if its data comes from one.
  std::optional<std::uint32_t> read{};
  // The SHA-256 of each chunk of kUsualChunk, if the TensorReader has checked them when it gives
  // the last byte; else empty.
  std::span<const Digest> checked_chunks{};
};

struct SaveSettings {
  int threads = 1;
  // The memory that a job may take beyond its inputs.
  std::uint64_t memory_ceiling = 0;
  // The offset in the target at which the prefix ends.
  std::uint64_t begin = 0;
  // Whether the inputs stay valid and unchanged until the sink is finished.
  bool memory_stays = false;
  // How many workers move data, at least. Those that do not compute wait for data from a device or
  // another file.
  int moves_in_flight = 1;
  // Whether the total of the progress has the bytes of these tensors already.
  bool counted = false;
  OpenAccess open_access = default_access;
  // Called by write_file() when all data has been read. If it throws, the file does not appear.
  std::function<void()> confirm{};
};

// Writes headers and data of the layout's tensors from number `first` on to a sink that has begun
// and is not sequential. items[i] is the data of tensor `first + i`. Sets the digests in the layout
// that its records need.
void save_tensors(Sink& sink, Layout& layout, std::size_t first, std::span<const SaveItem> items,
                  const SaveSettings& settings, Progress& progress, Cancel& cancel);

// Writes the terminator, if the format has one, behind the last tensor.
void write_terminator(Sink& sink, const Layout& layout, Cancel& cancel);

// Writes a whole file, with its prefix. The target appears when the caller finishes the sink.
void write_file(Sink& sink, Layout& layout, std::span<const SaveItem> items,
                const SaveSettings& settings, Progress& progress, Cancel& cancel);

// Saves a whole file, and finishes the sink.
void save_file(Sink& sink, Layout& layout, std::span<const SaveItem> items,
               const SaveSettings& settings, Progress& progress, Cancel& cancel);

}  // namespace tensorizer
