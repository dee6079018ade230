// Checks the bytes of tensors against their digests and MACs, with errors that name the tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/cancel.h"
#include "base/error.h"
#include "format/catalogue.h"
#include "io/source.h"
#include "tensorizer_ops/options.h"

namespace tensorizer {

// A tensor and its file, for messages.
struct TensorLocation {
  const Source& source;
  const Entry& entry;
  std::uint32_t number;
};

[[noreturn]] void fail(const TensorLocation& location, ErrorKind kind, const std::string& what);

// Rethrows the current exception. If it says that there is not enough memory, throws
// Error(OutOfMemory) that names the tensor instead. To be called in a `catch (...)` around code
// that allocates memory for a tensor.
[[noreturn]] void rethrow_naming(const TensorLocation& location);

// Returns those digests that a load compares of a tensor that is not checked by its chunks.
Digests compared(const TensorDetails& details, Verify verify);

// Returns what is wrong with a tensor, of which a digest is not the expected one; empty if all are
// right. `begin` is the offset of the first byte that the digests cover.
std::string compare_digests(const TensorLocation& location, std::uint64_t begin,
                            const Digests& expected, const Digests& found);

// Returns what is wrong with a chunk whose digest is not the one that the file lists. `position`
// is in the tensor's data.
std::string describe_damage(const TensorLocation& location, const ChunkDigests& listed,
                            std::uint64_t position);

// Calls `wrong` with the position of each chunk whose digest is not the one that the file lists.
// `found` has those of the chunks of the tensor `entry` from `position` on.
void compare_chunks(const ChunkDigests& listed, std::uint32_t entry, std::uint64_t position,
                    std::span<const Digest> found,
                    const std::function<void(std::uint64_t position)>& wrong);

// Called for a chunk that is damaged, with its position in the tensor's data.
using WrongChunk = std::function<void(std::uint64_t position, Bytes chunk)>;

// Compares the digests of the chunks in `bytes`, which begin at `position` in the tensor's data. A
// chunk from a server that is damaged is read once more; if it is damaged still, calls `wrong`.
void check_chunks(Source& source, const TensorLocation& location, const ChunkDigests& listed,
                  std::uint64_t position, Bytes bytes, std::span<const Digest> found,
                  Cancel& cancel, const WrongChunk& wrong);

// Returns what is wrong with a chunk whose MAC is wrong. `position` is in the tensor's data.
std::string describe_wrong_mac(const Entry& entry, std::uint64_t position, std::uint64_t size);

// Decrypts whole chunks in place. `position` is where the first one begins in the tensor's data. A
// chunk from a server whose MAC is wrong is read once more; if it is wrong still, calls `wrong` and
// leaves the chunk as it is.
void decrypt_chunks(Source& source, const Entry& entry, const CryptInfo& crypt, ConstBytes key,
                    std::uint64_t position, Bytes bytes, Cancel& cancel, const WrongChunk& wrong);

}  // namespace tensorizer
