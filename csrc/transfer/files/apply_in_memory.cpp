#include "transfer/files/apply_in_memory.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/redaction.h"
#include "engine/delta/changed_blocks.h"
#include "engine/delta/delta.h"
#include "engine/move/workers.h"
#include "transfer/files/wrappers.h"
#include "transfer/memory/dtype.h"
#include "transfer/memory/held_memory.h"
#include "transfer/memory/memory.h"
#include "transfer/memory/overlaps.h"
#include "transfer/memory/ties.h"

namespace tensorizer {

namespace {

// A tensor in memory, and its place in the delta.
struct Changing {
  std::string_view name;
  at::Tensor tensor;
  std::uint32_t entry = 0;
  bool whole = false;  // whether the delta has the new tensor itself
  DType dtype = DType::UInt8;
  std::vector<Digest> digests{};  // of its blocks

  std::uint64_t size() const { return tensor.nbytes(); }
  // Computes the digests, on the device of the tensor.
  void digest() {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("tensorizer::sha256_chunks", "")
                               .typed<at::Tensor(const at::Tensor&, std::int64_t)>();
    if (size() == 0) return;
    const at::Tensor found = op.call(tensor, static_cast<std::int64_t>(kChangesBlock)).cpu();
    digests.resize(static_cast<std::size_t>(found.size(0)));
    std::ranges::copy(const_bytes(found), std::as_writable_bytes(std::span(digests)).begin());
  }
};

[[noreturn]] void refuse(OpenFile& delta, const std::string& why) {
  throw Error(ErrorKind::InvalidArgument, delta.source().label() + ": " + why);
}

// Returns the tensors by the names in the delta, which must have the same.
std::vector<Changing> match(OpenFile& delta, const std::vector<std::string>& names,
                            const std::vector<at::Tensor>& tensors) {
  if (names.size() != tensors.size()) {
    refuse(delta, std::to_string(names.size()) + " names and " + std::to_string(tensors.size()) +
                      " tensors");
  }
  std::unordered_map<std::string_view, std::uint32_t> given;
  for (std::uint32_t i = 0; i < names.size(); ++i) {
    if (given.emplace(names[i], i).second) continue;
    refuse(delta, "two of the tensors in memory have the name " + quote(names[i]));
  }
  const DeltaNames in_delta(delta);
  std::vector<Changing> all;
  for (std::uint32_t i = 0; i < in_delta.clean.size(); ++i) {
    const auto found = given.find(in_delta.clean[i]);
    if (found == given.end()) {
      const std::string wrapper =
          wrapper_hint(names, {in_delta.clean.begin(), in_delta.clean.end()});
      refuse(delta, "the new model has the tensor " + quote(in_delta.clean[i]) +
                        ", which is not among those in memory" +
                        (wrapper.empty() ? ": load it instead" : wrapper));
    }
    const at::Tensor& tensor = tensors[found->second];
    const std::string name(in_delta.clean[i]);
    require_memory(tensor, "tensor " + quote(name));
    if (tensor.is_meta()) refuse(delta, "tensor " + quote(name) + " is on the meta device");
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
      refuse(delta, "tensor " + quote(name) + " has elements that share memory: give it a clone()");
    }
    const Entry& entry = delta.entry(i);
    Changing changing{names[found->second], tensor, delta.entry_number(i)};
    changing.whole = entry.name.starts_with(kWholePrefix);
    if (!changing.whole) require_data(delta, changing.entry, changing.size());
    changing.dtype = format_dtype(tensor.scalar_type(), name);
    const at::IntArrayRef shape(entry.shape.data(), entry.shape.size());
    if (changing.whole && (delta.dtype(i) != changing.dtype || tensor.sizes() != shape)) {
      refuse(delta, "tensor " + quote(name) +
                        " has another dtype or shape in the new model: load "
                        "it instead");
    }
    all.push_back(std::move(changing));
  }
  if (all.size() < given.size()) {
    refuse(delta, "there are " + std::to_string(given.size()) +
                      " tensors in memory, and the new model has " + std::to_string(all.size()) +
                      " of them: load it instead");
  }
  return all;
}

ModelDigest digest_of_all(const std::vector<Changing>& all, Cancel& cancel) {
  std::vector<DigestedTensor> tensors;
  for (const Changing& each : all) {
    tensors.push_back({each.name,
                       each.dtype,
                       {each.tensor.sizes().data(), each.tensor.sizes().size()},
                       each.size(),
                       std::as_bytes(std::span(each.digests))});
  }
  return model_digest(std::move(tensors), cancel);
}

// Returns the bytes of a tensor in row-major order, on its device: its own if it is contiguous.
at::Tensor bytes_of(const Changing& each) { return row_major_bytes(each.tensor, "a tensor"); }

// Writes back bytes that are not the tensor's own.
void store(const Changing& each, const at::Tensor& bytes) {
  if (each.tensor.is_contiguous() && !each.tensor.is_conj() && !each.tensor.is_neg()) return;
  at::Tensor target = each.tensor;
  target.copy_(bytes.view(each.tensor.scalar_type()).view(each.tensor.sizes()));
}

class MemoryApplier {
 public:
  MemoryApplier(OpenFile& delta, std::size_t blocks, std::atomic<bool>& touched, Progress& progress,
                Cancel& cancel)
      : file_{delta.source(), delta.catalogue(), delta.keys(), nullptr,
              !delta.catalogue().encrypted() &&
                  compares_chunks(delta.catalogue(), Verify::All, nullptr)},
        blocks_(blocks),
        touched_(touched),
        progress_(progress),
        cancel_(cancel) {}

  // Returns the digests of the blocks that a tensor must have in the new model.
  std::vector<Digest> targets(const Changing& each) const {
    std::vector<Digest> digests(chunk_count(each.size(), kChangesBlock));
    if (digests.empty()) return digests;
    if (!each.whole) {
      ChangedBlocks changes(file_);
      changes.open(each.entry, each.dtype, each.size(), cancel_);
      std::ranges::transform(changes.table(), digests.begin(), &BlockChange::target);
      return digests;
    }
    TensorSource source(file_);
    Window window;
    while (window.end() < each.size()) {
      window.advance(each.size(), blocks_);
      source.read(each.entry, window.position, window.bytes, cancel_);
      window.digest();
      std::ranges::copy(window.digests, digests.begin() + static_cast<std::ptrdiff_t>(
                                                              window.position / kChangesBlock));
    }
    return digests;
  }

  // Changes a tensor, and sets its digests to those that it must have then.
  void apply(Changing& each) {
    const at::NoGradGuard no_grad;
    const at::Tensor bytes = bytes_of(each);
    TensorSource source(file_);
    ChangedBlocks changes(file_);
    if (each.size() == 0) return;
    if (!each.whole) changes.open(each.entry, each.dtype, each.size(), cancel_);
    bool changed = false;
    Window window;
    while (window.end() < each.size()) {
      window.advance(each.size(), blocks_);
      const std::size_t first = window.position / kChangesBlock;
      const at::Tensor there = bytes.narrow(0, static_cast<std::int64_t>(window.position),
                                            static_cast<std::int64_t>(window.bytes.size()));
      at::Tensor here = at::from_blob(window.bytes.data(), there.sizes(), at::kByte);
      if (each.whole) {
        source.read(each.entry, window.position, window.bytes, cancel_);
      } else if (has_changes(changes, first, window.count())) {
        here.copy_(there);
        std::copy_n(each.digests.begin() + static_cast<std::ptrdiff_t>(first), window.count(),
                    window.digests.begin());
        changes.apply(window, cancel_);
      } else {
        progress_.done += window.bytes.size();
        continue;
      }
      touched_ = true;
      changed = true;
      at::Tensor target = there;
      target.copy_(here);
      progress_.done += window.bytes.size();
    }
    if (changed) store(each, bytes);
    if (each.whole) {
      each.digest();
    } else {
      std::ranges::transform(changes.table(), each.digests.begin(), &BlockChange::target);
    }
  }

 private:
  static bool has_changes(const ChangedBlocks& changes, std::size_t first, std::size_t count) {
    return std::ranges::any_of(std::span(changes.table()).subspan(first, count),
                               [](const BlockChange& block) { return block.code_size > 0; });
  }

  const TensorFile file_;
  const std::size_t blocks_;
  std::atomic<bool>& touched_;
  Progress& progress_;
  Cancel& cancel_;
};

}  // namespace

bool apply_in_memory(OpenFile& delta, const std::vector<std::string>& names,
                     const std::vector<at::Tensor>& tensors, int threads, Progress& progress,
                     Cancel& cancel) {
  const at::NoGradGuard no_grad;
  const HeldMemory held(tensors);
  const RedactedQuotes quotes(delta.source());
  const DeltaEnds ends = need_delta(delta);
  std::vector<Changing> all = match(delta, names, held.tensors());
  if (delta.source().signed_as()) detach_from_files(held.tensors());
  for (const Changing& each : all) progress.total += each.size();
  for (Changing& each : all) {
    cancel.check();
    each.digest();
  }
  const ModelDigest found = digest_of_all(all, cancel);
  if (found == ends.target) return false;
  if (found != ends.base) {
    refuse(delta,
           "the tensors in memory are not the model that it was made from, whose digest is " +
               to_text(ends.base) + ": theirs is " + to_text(found) +
               "; load one of the two models anew");
  }
  std::vector<at::Tensor> memory;
  for (const Changing& each : all) memory.push_back(each.tensor);
  const OverlappingOutputs overlapping(memory);
  overlapping.copy_outputs(cancel);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].tensor = memory[i];
  const std::vector<std::size_t> ties = find_ties(memory);

  std::atomic<bool> touched = false;
  try {
    MemoryApplier applier(delta, blocks_at_once(delta.options().memory_ceiling / 2, threads),
                          touched, progress, cancel);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (ties[i] == i || applier.targets(all[i]) == applier.targets(all[ties[i]])) continue;
      refuse(delta, "tensor " + quote(all[i].name) + " shares its memory with " +
                        quote(all[ties[i]].name) +
                        ", and differs from it in the new model: load it instead");
    }
    for_each_number(all.size(), threads, cancel, [&](std::size_t i) {
      if (ties[i] == i) {
        applier.apply(all[i]);
      } else {
        progress.done += all[i].size();
      }
    });
    for (std::size_t i = 0; i < all.size(); ++i) all[i].digests = all[ties[i]].digests;
    delta.source().confirm(cancel);
    if (digest_of_all(all, cancel) != ends.target) {
      throw Error(ErrorKind::HashMismatch,
                  delta.source().label() +
                      ": the model that it makes is not the one with the digest " +
                      to_text(ends.target) + ": the delta is damaged, or was changed");
    }
    const std::size_t wrong = overlapping.fill(cancel);
    if (wrong != OverlappingOutputs::none) {
      refuse(delta, "tensor " + quote(all[wrong].name) +
                        " overlaps one with different data: give each tensor memory of its own");
    }
  } catch (const Error& error) {
    if (!touched) throw;
    throw Error(error.kind(), std::string(error.message()) +
                                  "; some of the tensors in memory have changed, so they are "
                                  "between two models: load one of them anew");
  }
  return true;
}

}  // namespace tensorizer
