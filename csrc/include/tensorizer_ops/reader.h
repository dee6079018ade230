// Reader for C++ programs: loads tensors from a `.tensors` or safetensors file, whichever it is.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorizer_ops/fill.h"
#include "tensorizer_ops/options.h"
#include "tensorizer_ops/stored_tensor.h"
#include "tensorizer_ops/updated.h"

namespace tensorizer {

class FileReader;

struct LoadRequest {
  std::optional<c10::Device> device;     // the CPU if not given
  std::optional<c10::ScalarType> dtype;  // what real floating tensors are cast to
  Verify verify = Verify::None;
  // Whether tensors own their memory. On the CPU they share pages with a local file otherwise:
  // writing to them never changes the file, and truncating the file ends a process that reads them.
  bool copy = false;
  std::int64_t threads = 0;  // that compute; 0 is every CPU that the process may use
};

// The part of one dimension of a tensor that a load takes: `length` elements from `start` on, each
// `step` behind the one before.
struct SlicedDimension {
  std::int64_t tensor;  // its place among the names that are loaded, from 0 on
  std::int64_t dimension;
  std::int64_t start;
  std::int64_t length;
  std::int64_t step = 1;
};

// What a Reader has loaded since it was made.
struct LoadStats {
  std::uint64_t loads = 0;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;
  // Seconds of all threads together.
  double digest_seconds = 0;
  double copy_seconds = 0;
  double cipher_seconds = 0;
  // Of a file on a server; seconds of all connections together.
  std::uint64_t requests = 0;
  std::uint64_t connections = 0;
  std::uint64_t retries = 0;
  std::uint64_t received = 0;  // bytes
  double lookup_seconds = 0;   // of host names
  double connect_seconds = 0;
  double tls_seconds = 0;
  double first_byte_seconds = 0;  // from a request to the first byte of its response
  double transfer_seconds = 0;
};

// A file that is open for loading. The first method that needs the file opens it and reads its
// index.
//
// Thread-safe. Loads may run at the same time, except from a pipe, which can be read only once.
// Loaded tensors are owned by the caller and may outlive the Reader.
//
// Methods that read the file throw Error: NotFound, PermissionDenied, Unavailable, TimedOut and
// SystemError for a file that cannot be read, InvalidFormat for a malformed one, Crypto for a wrong
// key or modified encrypted data, Cancelled after cancel() and close(), and what the interrupt hook
// throws (hooks.h).
class Reader {
 public:
  // Takes a path, `fd:N`, or a URI: file://, http://, https://, s3://, gs://, az://, redis://,
  // rediss://, unix://. Of a safetensors model in several files, the index or the folder. Throws
  // Error(InvalidArgument) for a malformed option.
  explicit Reader(std::string uri, OptionList options = {});

  // Takes a file that lies in the memory of a contiguous, one-dimensional uint8 tensor on the CPU,
  // and shares that memory. Throws Error(InvalidArgument) for any other tensor.
  explicit Reader(at::Tensor data, OptionList options = {});

  ~Reader();
  // `other` may then only be destroyed or assigned to.
  Reader(Reader&& other) noexcept;
  Reader& operator=(Reader&& other) noexcept;

  // Returns the names of all tensors, in the order of the file.
  std::vector<std::string> names();

  // Returns the texts that were stored with the tensors, in the order of the file.
  Metadata metadata();

  // Return what the index says about one tensor. Throw Error(NoSuchTensor) for an unknown name.
  // dtype() throws Error(InvalidArgument) for an opaque dtype in a file that can be read only once.
  std::vector<std::int64_t> shape(const std::string& name);
  c10::ScalarType dtype(const std::string& name);

  // Returns where every tensor lies, in the order of the file.
  std::vector<ListedTensor> list();

  // Reads the header of one tensor and returns what it says. Throws Error(NoSuchTensor) for an
  // unknown name.
  StoredTensor stored(const std::string& name);

  // Loads the named tensors, in this order, or all of the file in its own order. Tensors with
  // different names that were saved as one (option `share`) share memory. Throws
  // Error(NoSuchTensor) for an unknown name, Error(HashMismatch) if a digest is not what was saved,
  // and Error(OutOfMemory).
  std::vector<at::Tensor> load(const std::optional<std::vector<std::string>>& names = std::nullopt,
                               const LoadRequest& request = {});

  // Fetches the named tensors, or all, so that loads of them are fast: those of a local file into
  // the page cache, all others into half of the memory that the option `memory_ceiling` allows,
  // where they stay until they are loaded or others need the room. Blocks until they are there, or
  // until cancel(); loads may run meanwhile. Throws Error(NoSuchTensor) for an unknown name, and
  // Error(InvalidArgument) if they are larger than that memory, or if the file can be read only
  // once.
  void prefetch(const std::optional<std::vector<std::string>>& names);

  // Loads the named tensors, in this order, or the parts of them that `slices` take; dimensions
  // without a slice are taken in whole. Reads little more of the file than these parts. A part that
  // is one run of bytes shares pages with a local file, as load() does. Throws what load() throws,
  // and Error(InvalidArgument) that names tensor and shape for a slice that does not fit, and for a
  // part that `request` says to verify if the file has no digests of chunks.
  std::vector<at::Tensor> load_slices(const std::vector<std::string>& names,
                                      const std::vector<SlicedDimension>& slices,
                                      const LoadRequest& request = {});

  // Fills existing tensors, which keep their memory. Checks every name, shape and dtype before it
  // touches any of them, and throws Error(InvalidArgument) if one does not fit. With `cast`, a real
  // floating tensor fits an output of any such dtype. A load that verifies and fails sets outputs
  // to zero that are not complete.
  void load_into(const std::vector<std::string>& names, const std::vector<at::Tensor>& outputs,
                 Verify verify = Verify::None, std::int64_t threads = 0, bool cast = false);

  // Returns what takes the place of each tensor: the tensor itself, filled, or a new one for
  // another device or dtype and for a placeholder, which has a shape but no memory for it (as on
  // the meta device). A tensor that the file lacks is returned as it is. Tensors that share memory
  // still do: the file needs one of their names only, and the same data for all that it has. Checks
  // names, shapes and dtypes before it touches anything; Error(InvalidArgument) lists all that does
  // not fit.
  Filled fill(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors,
              const FillRequest& request = {});

  // Reads all of the file and checks its digests. Throws Error(HashMismatch) that names the tensor.
  void verify(Verify verify = Verify::All, std::int64_t threads = 0);

  // Returns the digest of the names, dtypes, shapes and data, which is the same for every file that
  // holds the same model. Version 1 is 64 hex digits; version 2, made of the digests of chunks, has
  // "v2:" before them. Reads all of the file and does not compare saved digests. If `listed` is
  // set, makes it of the digests that the file lists, believes them, and reads no data; throws
  // Error(InvalidArgument) if the file lists none.
  std::string digest(std::int64_t threads = 0, std::int64_t version = 1, bool listed = false);

  // Writes the file anew to another place, with other digests, another key, or none, within the
  // memory that the option `memory_ceiling` allows. Checks every digest on the way; on an error
  // nothing appears at the target. `options` are those of a save.
  void rewrite(const std::string& to, HashKinds hashes = kUsualHashes,
               const OptionList& options = {}, std::int64_t threads = 0);

  // Brings the local file `to` up to date with this file, which must have been saved with digests
  // of chunks: reads only what `to` does not have, and replaces it by a file with the tensors,
  // digests and metadata of this one. Throws Error(InvalidArgument) if one of them is encrypted.
  Updated update(const std::string& to, std::int64_t threads = 0);

  // Returns how many bytes the running loads have moved, and how many they move in all. Returns
  // those of the last load if none is running.
  std::pair<std::uint64_t, std::uint64_t> progress() const;

  LoadStats stats() const;

  // Ends the running calls; they throw Error(Cancelled). Later calls work.
  void cancel();

  // Ends the running calls and closes the file. Later calls throw Error(InvalidArgument).
  void close();

 private:
  std::unique_ptr<FileReader> reader_;
};

}  // namespace tensorizer
