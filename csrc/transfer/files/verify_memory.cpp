#include "transfer/files/verify_memory.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/redaction.h"
#include "engine/digest/check.h"
#include "engine/digest/data_digests.h"
#include "engine/load/load.h"
#include "engine/move/workers.h"
#include "transfer/files/tracing.h"
#include "transfer/memory/dtype.h"
#include "transfer/memory/held_memory.h"
#include "transfer/memory/memory.h"

namespace tensorizer {

namespace {

bool is_signed(const LoadOptions& options) {
  return std::ranges::any_of(options.source.given,
                             [](const auto& option) { return option.first == "trust"; });
}

// Bytes that come from a device at a time.
constexpr std::int64_t kPiece = 16 << 20;
constexpr std::size_t kMostNamed = 100;

template <typename Signature>
c10::TypedOperatorHandle<Signature> op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

Digest crc32_of(const at::Tensor& tensor) {
  static const auto crc32 = op<c10::SymInt(const at::Tensor&)>("tensorizer::crc32");
  const auto crc = static_cast<std::uint32_t>(crc32.call(tensor).expect_int());
  return digest_of(std::as_bytes(std::span(&crc, 1)));
}

// Returns the digests as bytes on the CPU.
at::Tensor chunk_digests_of(const at::Tensor& tensor, std::uint64_t chunk) {
  static const auto sha256_chunks =
      op<at::Tensor(const at::Tensor&, std::int64_t)>("tensorizer::sha256_chunks");
  return sha256_chunks.call(tensor, static_cast<std::int64_t>(chunk)).cpu();
}

// Returns the digests of a tensor that lies anywhere, with its header.
Digests digests_of(const at::Tensor& tensor, const DigestStart& start, Cancel& cancel) {
  RunningDigests running(start);
  if (start.hashes == HashSet{Hash::Crc32}) {
    Digests data;
    data[Hash::Crc32] = crc32_of(tensor);
    return join(running.finish(), data, tensor.nbytes());
  }
  const at::Tensor bytes = row_major_bytes(tensor, "a tensor");
  for (std::int64_t at = 0; at < bytes.numel(); at += kPiece) {
    cancel.check();
    const at::Tensor piece = bytes.narrow(0, at, std::min(kPiece, bytes.numel() - at)).cpu();
    running.update(const_bytes(piece));
  }
  return running.finish();
}

// Returns whether the digests of chunks are compared: those that the digest of the file is made of,
// if it must have one.
bool compares_listed(OpenFile& file, Verify verify) {
  const std::optional<ModelDigest>& pinned = file.options().digest;
  if (!pinned) return compares_chunks(file.catalogue(), verify, nullptr);
  return pinned->version == DigestVersion::Chunks &&
         DataDigests::are_listed(file.catalogue(), pinned->version);
}

class MemoryCheck {
 public:
  MemoryCheck(OpenFile& file, Verify verify, const LoadTensor& load, Cancel& cancel)
      : file_(file), verify_(verify), load_(load), cancel_(cancel) {}

  void check(std::uint32_t number, const at::Tensor& tensor,
             const std::optional<TensorDetails>& details) {
    cancel_.check();
    if (tensor.numel() == 0) return;
    if (file_.entry(number).data_size == 0) {  // it loads as zeros
      check_loaded(number, tensor);
      return;
    }
    if (!details) {
      check_chunks(number, tensor);
      return;
    }
    const Digests expected = compared(*details, verify_);
    if (!suffice(expected, file_.options())) {
      check_loaded(number, tensor);
      return;
    }
    const DigestStart start{details->hashed, hashes_of(expected)};
    if (start.hashes.empty()) {
      throw Error(ErrorKind::InvalidArgument,
                  file_.describe_entry(number) +
                      " has nothing to verify: the file was saved without hashes of tensors, and "
                      "convert() with hashes=\"sha256\" writes a copy with them");
    }
    if (const auto* const hash = differing(expected, digests_of(tensor, start, cancel_))) {
      differs(number, std::string("it does not have the ") + hash->name + " that was saved");
    }
  }

  void finish() const {
    if (count_ == 0) return;
    std::string message = file_.source().label() + " has other values:" + differences_;
    if (count_ > kMostNamed) message += "\nand " + std::to_string(count_ - kMostNamed) + " more";
    throw Error(ErrorKind::HashMismatch, message);
  }

 private:
  void check_chunks(std::uint32_t number, const at::Tensor& tensor) {
    const ChunkDigests& listed = file_.catalogue().chunk_digests();
    const at::Tensor found = chunk_digests_of(tensor, listed.chunk_size());
    const std::span digests(reinterpret_cast<const Digest*>(const_bytes(found).data()),
                            static_cast<std::size_t>(found.size(0)));
    compare_chunks(listed, file_.entry_number(number), 0, digests, [&](std::uint64_t at) {
      const std::uint64_t end = std::min(at + listed.chunk_size(), file_.entry(number).data_size);
      differs(number, "its bytes from " + std::to_string(at) + " to " + std::to_string(end) +
                          " do not have the SHA-256 that was saved");
    });
  }

  void check_loaded(std::uint32_t number, const at::Tensor& tensor) {
    if (has_same_bytes(tensor, load_(number), cancel_)) return;
    differs(number, "it does not have the bytes that were saved");
  }

  void differs(std::uint32_t number, const std::string& how) {
    if (++count_ > kMostNamed) return;
    differences_ += "\n" + describe(file_.names()[number], file_.entry_number(number)) + ": " + how;
  }

  OpenFile& file_;
  const Verify verify_;
  const LoadTensor& load_;
  Cancel& cancel_;
  std::size_t count_ = 0;
  std::string differences_;
};

void check_shape(const OpenFile& file, std::uint32_t number, const at::Tensor& tensor) {
  const std::string why =
      tensor.is_meta() ? "it is on the meta device and has no data" : lacks_memory(tensor);
  if (!why.empty()) {
    throw Error(ErrorKind::InvalidArgument,
                file.describe_entry(number) + ": the tensor in memory cannot be verified: " + why);
  }
  const Entry& entry = file.entry(number);
  const c10::ScalarType stored = scalar_type(file.dtype(number));
  const std::vector<std::int64_t> shape(entry.shape.begin(), entry.shape.end());
  if (tensor.scalar_type() == stored && tensor.sizes() == at::IntArrayRef(shape)) return;
  throw Error(ErrorKind::InvalidArgument, file.describe_entry(number) + " is " +
                                              describe_shape(stored, shape) +
                                              ", and the tensor in memory " +
                                              describe_shape(tensor.scalar_type(), tensor.sizes()));
}

// Returns what is compared: all hashes if the options say which tensors the file must have.
Verify checked_verify(const OpenFile& file, Verify asked) {
  if (is_signed(file.options()) && asked != Verify::All) {
    throw Error(
        ErrorKind::InvalidArgument,
        "verify=\"crc32\" is not for the option 'trust': tensors that differ from those that "
        "were signed may have the same CRC32");
  }
  return file.checked(asked);
}

}  // namespace

bool suffice(const Digests& digests, const LoadOptions& options) {
  return !options.digest && (digests[Hash::Sha256] || !is_signed(options));
}

bool has_same_bytes(const at::Tensor& tensor, const at::Tensor& expected, Cancel& cancel) {
  const at::Tensor own = row_major_bytes(tensor, "a tensor");
  const at::Tensor other = row_major_bytes(expected, "a tensor");
  if (own.numel() != other.numel()) return false;
  for (std::int64_t at = 0; at < own.numel(); at += kPiece) {
    cancel.check();
    const std::int64_t size = std::min(kPiece, own.numel() - at);
    const at::Tensor piece = own.narrow(0, at, size).cpu();
    if (!std::ranges::equal(const_bytes(piece), const_bytes(other.narrow(0, at, size)))) {
      return false;
    }
  }
  return true;
}

void verify_memory(OpenFile& file, const std::vector<std::string>& names,
                   const std::vector<at::Tensor>& tensors, Verify verify, const LoadTensor& load,
                   Cancel& cancel) {
  verify = checked_verify(file, verify);
  if (names.size() != tensors.size()) {
    throw Error(ErrorKind::InvalidArgument, std::to_string(names.size()) + " names and " +
                                                std::to_string(tensors.size()) + " tensors");
  }
  const at::NoGradGuard no_grad;
  const HeldMemory held(tensors);
  const RedactedQuotes quotes(file.source());
  const std::vector<std::uint32_t> numbers = file.select(names);
  // Without a list of digests, they are in the headers, which may be far away.
  const bool chunked = compares_listed(file, verify);
  std::vector<std::vector<std::byte>> headers(chunked ? 0 : numbers.size());
  std::vector<std::optional<TensorDetails>> details(numbers.size());
  for_each_number(headers.size(), kWaitingWorkers, cancel, [&](std::size_t i) {
    details[i] = file.read_details(numbers[i], headers[i], cancel);
  });
  const std::vector<at::Tensor>& own = held.tensors();
  for (std::size_t i = 0; i < numbers.size(); ++i) check_shape(file, numbers[i], own[i]);
  MemoryCheck check(file, verify, load, cancel);
  for (std::size_t i = 0; i < numbers.size(); ++i) check.check(numbers[i], own[i], details[i]);
  check.finish();
}

}  // namespace tensorizer
