// The loads of a FileReader: into new tensors, existing tensors, and ranges of these.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/world.h"
#include "engine/digest/data_digests.h"
#include "transfer/files/file_reader_job.h"
#include "transfer/files/slices.h"
#include "transfer/files/targets.h"
#include "transfer/files/tracing.h"
#include "transfer/memory/held_memory.h"
#include "transfer/memory/memory.h"
#include "transfer/memory/overlaps.h"

namespace tensorizer {

namespace {

void refuse_gradients(const OpenFile& file, std::span<const std::uint32_t> selected,
                      std::span<const at::Tensor> outputs) {
  if (!at::GradMode::is_enabled()) return;
  for (std::size_t i = 0; i < selected.size(); ++i) {
    if (!outputs[i].requires_grad()) continue;
    throw Error(ErrorKind::InvalidArgument,
                file.describe_entry(selected[i]) +
                    " has an output that requires grad: load under torch.no_grad()");
  }
}

}  // namespace

void FileReader::run(OpenFile& file, Targets& targets, Verify verify, std::int64_t threads,
                     Job& job) {
  if (!file.options().digest) {
    run(file, targets, verify, threads, job, nullptr);
    return;
  }
  // The list of digests in the file, if any, was checked when the file was opened.
  DataDigests digests = file.pinned_digests();
  const std::size_t entries = file.catalogue().entries().size();
  if (!digests.listed()) {
    std::vector<bool> loaded(entries);
    for (const LoadItem& item : targets.items) loaded[item.entry] = true;
    if (std::find(loaded.begin(), loaded.end(), false) != loaded.end()) {
      throw Error(ErrorKind::InvalidArgument,
                  file.source().label() +
                      ": the file keeps no digests that its own digest is made of, so this can "
                      "only be checked when all tensors are loaded at once, into new tensors on "
                      "one device or into existing tensors: " +
                      how_to_list(file.options().digest->version));
    }
  }
  run(file, targets, verify, threads, job, &digests);
  if (digests.listed()) return;
  try {
    file.check_digest(digests, job.cancel);
  } catch (...) {
    blank(targets, std::vector<bool>(entries, true));
    throw;
  }
}

void FileReader::run(OpenFile& file, Targets& targets, Verify verify, std::int64_t threads,
                     Job& job, DataDigests* data_digests) {
  check_wants(file.source(), file.takes_all(targets.items) ? Wants::All : Wants::Parts);
  const std::shared_ptr<WholeFilesSource> whole = file.source_of_whole(targets.items, verify);
  LoadSettings settings;
  settings.verify = whole ? Verify::None : verify;
  settings.threads = parse_threads(threads);
  settings.data_digests = data_digests;
  settings.keys = file.keys();
  std::vector<bool> incomplete;
  settings.zero_incomplete = [&](std::uint32_t entry) {
    incomplete.resize(file.catalogue().entries().size());
    incomplete[entry] = true;
  };
  settings.keep_details = targets.keep_details;
  targets.staging.begin();
  for (LoadItem& item : targets.items) {
    if (item.staged) item.staged->checked_there = targets.staging.can_check(item.staged->tensor);
  }
  settings.last_chunks = targets.staging.last_chunks();
  settings.memory_ceiling =
      targets.staging.is_pinned() ? file.options().staging : file.options().memory_ceiling;
  settings.open_access = [&targets] { return TensorAccess{.port = targets.staging.open_port()}; };
  if (targets.mapping) settings.mapping = targets.mapping->bytes();
  const auto begin = Clock::now();
  bool loaded = false;
  try {
    const std::shared_ptr<Source> source =
        whole ? whole : file.source_to_load(targets.items, settings.threads > 1, job.cancel);
    // Bytes in memory that were read ahead or prefetched use the other half.
    const bool in_memory = !whole && source.get() != &file.source();
    if (in_memory || file.keeps_prefetched()) settings.memory_ceiling /= 2;
    tensorizer::load(*source, file.catalogue(), targets.items, settings, job.progress, job.cancel);
    loaded = true;
    if (whole) whole->check(job.cancel);
    file.source().confirm(job.cancel);
  } catch (...) {
    if (loaded || whole) incomplete.assign(file.catalogue().entries().size(), true);
    if (!incomplete.empty() && !targets.outputs.empty()) {
      targets.staging.finish();
      blank(targets, incomplete);
    }
    throw;
  }
  targets.staging.finish();
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  counters_.add(file.source(), job.progress, targets.items.size(), seconds.count());
}

std::vector<at::Tensor> FileReader::load(const std::optional<std::vector<std::string>>& names,
                                         const LoadRequest& request,
                                         const std::optional<std::vector<std::string>>& traced,
                                         Ties ties) {
  const std::shared_ptr<OpenFile> open = file_for_all();
  const std::vector<std::uint32_t> selected = open->select(names);
  if (traced) check_traced(*open, selected, request.dtype, *traced);
  return load(*open, selected, request, ties, /*headers=*/false);
}

std::vector<at::Tensor> FileReader::load_slices(
    const std::vector<std::string>& names, const std::vector<SlicedDimension>& slices,
    const LoadRequest& request, const std::optional<std::vector<std::string>>& traced, Ties ties) {
  const std::shared_ptr<OpenFile> open = file();
  const std::vector<std::uint32_t> selected = open->select(names);
  if (traced) check_traced(*open, selected, request.dtype, *traced);
  Job job(*this);
  const TensorSlices parts = slices_of(*open, selected, slices, job.cancel);
  return load(*open, selected, request, ties, /*headers=*/false, parts);
}

std::vector<at::Tensor> FileReader::load_numbered(
    const std::optional<std::vector<std::uint32_t>>& numbers, const LoadRequest& request) {
  const std::shared_ptr<OpenFile> open = file();
  const std::vector<std::uint32_t> selected = numbers ? *numbers : open->select(std::nullopt);
  for (const std::uint32_t number : selected) {
    if (number < open->names().size()) continue;
    throw Error(ErrorKind::InvalidArgument,
                open->source().label() + " has no tensor number " + std::to_string(number));
  }
  return load(*open, selected, request, Ties::Shared, /*headers=*/true);
}

std::vector<at::Tensor> FileReader::load(OpenFile& file, std::span<const std::uint32_t> selected,
                                         const LoadRequest& request, Ties ties, bool headers,
                                         const TensorSlices& slices) {
  const at::NoGradGuard no_grad;
  LoadRequest checked = request;
  checked.verify = file.checked(request.verify);
  Job job(*this);
  NewTensors tensors(file, selected, slices, checked, ties, headers, job.cancel);
  const Catalogue& catalogue = file.catalogue();
  if (headers) {
    tensors.targets().keep_details = [&](std::uint32_t entry, const TensorDetails& details) {
      headers_.keep(catalogue.number_of(entry), details);
    };
  }
  run(file, tensors.targets(), checked.verify, request.threads, job);
  if (headers && !catalogue.ties().empty()) {
    for (const std::uint32_t number : selected) {
      const Tie* const tie = catalogue.tie(number);
      if (tie == nullptr) continue;
      headers_.keep_tied(number, catalogue.number_of(tie->entry), tie->module_index);
    }
  }
  return tensors.finish(job.cancel);
}

void FileReader::load_into(const std::vector<std::string>& names,
                           const std::vector<at::Tensor>& outputs, Verify verify,
                           std::int64_t threads, bool cast) {
  if (names.size() != outputs.size()) {
    throw Error(ErrorKind::InvalidArgument, std::to_string(names.size()) + " names and " +
                                                std::to_string(outputs.size()) + " outputs");
  }
  const std::shared_ptr<OpenFile> open = file_for_all();
  const std::vector<std::uint32_t> selected = open->select(names);
  const HeldMemory held(outputs);
  Job job(*this);
  check_outputs(*open, selected, held.tensors(), cast, job.cancel);
  refuse_gradients(*open, selected, outputs);
  if (open->source().signed_as()) detach_from_files(held.tensors());
  std::vector<at::Tensor> loaded = held.tensors();
  const OverlappingOutputs overlapping(loaded);
  const Verify checked = open->checked(verify);
  Targets targets = given_tensors(*open, selected, loaded, checked);
  const bool checks = checked != Verify::None || open->catalogue().encrypted();
  try {
    run(*open, targets, checked, threads, job);
    copy_tied(targets, checks, job.cancel);
    const std::size_t wrong = overlapping.fill(job.cancel);
    if (wrong != OverlappingOutputs::none) {
      throw Error(ErrorKind::InvalidArgument,
                  open->describe_entry(selected[wrong]) +
                      " has an output that overlaps that of a tensor with different data: give "
                      "each tensor memory of its own");
    }
  } catch (...) {
    if (checks) overlapping.blank();
    throw;
  }
}

void FileReader::load_ranges(const std::vector<std::string>& names,
                             const std::vector<std::int64_t>& starts,
                             const std::vector<at::Tensor>& outputs,
                             const std::optional<at::Tensor>& arrived, Verify verify,
                             std::int64_t threads) {
  if (names.size() != outputs.size() || names.size() != starts.size()) {
    throw Error(ErrorKind::Internal, "ranges without a name, a start or an output");
  }
  std::span<std::uint8_t> flags;
  if (arrived) {
    const bool fits = arrived->is_cpu() && arrived->scalar_type() == at::kByte &&
                      arrived->is_contiguous() && arrived->nbytes() == names.size();
    if (!fits) throw Error(ErrorKind::Internal, "ranges without a byte each");
    flags = {reinterpret_cast<std::uint8_t*>(tensor_bytes(*arrived).data()), names.size()};
  }
  const std::shared_ptr<OpenFile> open = file();
  const std::vector<std::uint32_t> selected = open->select(names);
  const HeldMemory held(outputs);
  Job job(*this);
  Targets targets = ranges_of_tensors(*open, selected, starts, held.tensors(), flags);
  if (open->source().signed_as()) detach_from_files(held.tensors());
  run(*open, targets, open->checked(verify), threads, job);
}

}  // namespace tensorizer
