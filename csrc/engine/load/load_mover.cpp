#include "engine/load/load_mover.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/error.h"

namespace tensorizer {

namespace {

// Longer headers hold the MACs of very much data. They are read on their own, by a read that
// allocates memory as bytes arrive.
constexpr std::uint64_t kLongHeader = 1 << 20;

}  // namespace

LoadMover::LoadMover(const LoadJob& job, const LoadPlan& plan, Progress& progress,
                     std::span<std::uint8_t> complete)
    : job_(job),
      plan_(plan),
      progress_(progress),
      complete_(complete),
      encrypted_(job.encrypted()),
      cut_(job.items.size()),
      right_on_device_(
          std::ranges::any_of(job.items, [](const LoadItem& i) { return i.staged.has_value(); })
              ? job.items.size()
              : 0),
      scratch_(plan.strip_size),
      part_sources_({job.source, job.catalogue, job.settings.keys, nullptr, job.checks_parts()}),
      check_(job) {
  for (const CutExtent& cut : plan.plan.cut) {
    cut_[cut.extent] = std::make_unique<CutDetails>();
  }
}

void LoadMover::move_bundle(const Task& task, Worker& worker) try {
  const std::span<const LoadItem> items = job_.items.subspan(task.first, task.count);
  const LoadItem& first = items.front();
  if (first.runs != nullptr || job_.is_part_of_chunks(first)) {
    move_part(first, worker);
    complete(first, worker);
    return;
  }
  if (items.size() == 1 && first.staged &&
      extent(first).header_size + extent(first).data_size > plan_.piece_size) {
    if (!move_staged(first, worker)) complete(first, worker);
    take_device_checks(false, worker);
    return;
  }
  std::vector<BundledItem> bundle = read_bundle(items, worker);
  std::vector<std::optional<TensorDetails>> details(items.size());
  std::vector<DigestStart> starts(items.size());
  std::vector<std::size_t> here;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (job_.needs_details(items[i])) details[i] = parse_details(items[i], bundle[i].header);
    starts[i] = digests_wanted(items[i], details[i]);
    bundle[i].on_device = checks_on_device(items[i], details[i], starts[i], worker);
    if (!bundle[i].on_device) here.push_back(i);
  }
  check_bundle(items, bundle, details, starts, here, worker);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].staged && !bundle[i].data.empty()) put(items[i], 0, bundle[i].data, worker);
    moved(items[i].size());
    if (bundle[i].on_device) {
      start_on_device(items[i], 0, items[i].size(), details[i], starts[i], worker);
    }
  }
  for (const std::size_t i : here) complete(items[i], worker);
  take_device_checks(false, worker);
} catch (...) {
  rethrow_naming(location(job_.items[task.first]));
}

ConstBytes LoadMover::move_strip(const Task& task, StripDigest& digest, Worker& worker) try {
  const LoadItem& item = job_.items[task.first];
  const Extent& read = extent(item);
  const bool first = task.position == 0 && job_.needs_details(item);
  const Bytes target = item.staged                  ? worker.access.port->take(task.size)
                       : job_.is_only_checked(item) ? scratch_.take(task.size)
                                                    : item.memory.subspan(task.position, task.size);
  CutDetails& cut = *cut_[task.first];
  if (job_.is_part_of_chunks(item)) {
    read_chunks(item, task.position, target, worker);
    moved(task.size);
    if (item.staged) put(item, task.position, target, worker);
    return target;
  }
  if (item.in_place) {
    if (first) cut.header = copy_header(item);
  } else if (item.runs != nullptr) {
    read_part(item, task.position, target, plain_data(item, worker), worker);
  } else {
    const bool apart = first && read.header_size > kLongHeader;
    if (apart) {
      read_arriving(job_.source, read.offset, read.header_size, cut.header, worker.cancel);
    } else if (first) {
      cut.header.resize(read.header_size);
    }
    const Bytes before = first && !apart ? Bytes(cut.header) : Bytes();
    read_strip(read.offset + read.header_size + task.position, before, target,
               encrypted_ ? nullptr : &digest, worker);
  }
  if (first) learn_details(item, cut);
  bool is_plain = true;
  if (encrypted_) {
    await_details(cut, worker.cancel);
    is_plain = has_whole_chunks(cut);
    if (is_plain) decrypt(item, cut.details->crypt, task.position, target, worker);
  }
  if (item.in_place || encrypted_) digest.update(target);
  const bool on_device = checks_on_device(item, std::nullopt, {}, worker);
  if (is_plain && !on_device) check_chunks(item, task.position, target, worker);
  if (item.staged) {
    put(item, task.position, target, worker);
    // The worker that completes the item cannot wait for this one's copies.
    if (item.arrived != nullptr) worker.access.port->wait();
  }
  moved(task.size);
  if (on_device) {
    start_on_device(item, task.position, task.size, std::nullopt, {}, worker);
    take_device_checks(false, worker);
  }
  return target;
} catch (...) {
  rethrow_naming(location(job_.items[task.first]));
}

void LoadMover::read_strip(std::uint64_t offset, Bytes before, Bytes target, StripDigest* digest,
                           Worker& worker) {
  const bool at_once = digest == nullptr || !digest->wanted();
  offset -= before.size();
  while (!target.empty()) {
    const std::size_t size =
        at_once ? target.size() : std::min<std::uint64_t>(target.size(), plan_.cached_size);
    const std::array<Bytes, 2> pieces{before, target.first(size)};
    job_.source.read(offset, pieces, worker.cancel);
    if (digest != nullptr) digest->update(pieces[1]);
    offset += before.size() + size;
    before = {};
    target = target.subspan(size);
  }
}

DigestStart LoadMover::digest_start(std::uint32_t tensor) {
  const CutDetails& cut = *cut_[tensor];
  // A part has no digests but those of its chunks, and data that is not decrypted yet is digested
  // at the end.
  const bool part = !job_.is_whole(job_.items[tensor]);
  if (!job_.digests() || part || (encrypted_ && !has_whole_chunks(cut))) return {};
  return check_.digests_wanted(job_.items[tensor], cut.details);
}

void LoadMover::finish(std::uint32_t tensor, const Digests& digests_found, Worker& worker) {
  const LoadItem& item = job_.items[tensor];
  CutDetails& cut = *cut_[tensor];
  if (encrypted_ && !has_whole_chunks(cut)) {
    const Bytes data = item.memory;
    decrypt(item, cut.details->crypt, 0, data, worker);
    check_chunks(item, 0, data, worker);
    if (job_.digests()) {
      RunningDigests running(check_.digests_wanted(item, cut.details));
      running.update(data);
      check_.compare(item, running.finish());
    }
  } else if (job_.digests() && job_.is_whole(item)) {
    check_.compare(item, digests_found);
  }
  cut_[tensor].reset();
  if (!checks_on_device(item, std::nullopt, {}, worker)) complete(item, worker);
}

void LoadMover::complete(const LoadItem& item, Worker& worker) {
  complete_[number(item)] = 1;
  if (item.arrived == nullptr) return;
  if (item.staged) worker.access.port->wait();
  std::atomic_ref(*item.arrived).store(1, std::memory_order_release);
}

void LoadMover::let_go(std::uint32_t tensor, ConstBytes strip) {
  if (!job_.is_only_checked(job_.items[tensor])) return;
  // The strip is memory of the pool, and nothing else refers to it.
  scratch_.give_back({const_cast<std::byte*>(strip.data()), strip.size()});
}

std::vector<LoadMover::BundledItem> LoadMover::read_bundle(std::span<const LoadItem> items,
                                                           Worker& worker) {
  std::size_t kept = 0;
  std::size_t staged_size = 0;
  std::size_t largest_gap = 0;
  std::uint64_t begin = extent(items.front()).offset;
  std::uint64_t end = begin;
  for (const LoadItem& item : items) {
    const Extent e = extent(item);
    largest_gap = std::max<std::size_t>(largest_gap, e.offset - end);
    kept += e.header_size;
    if (item.staged) staged_size += align_up(e.data_size, kElementAlignment);
    if (job_.is_only_checked(item)) kept += e.data_size;
    end = e.offset + e.header_size + e.data_size;
  }
  const Bytes scratch = worker.access.scratch.take(kept + largest_gap);
  Bytes staged = staged_size > 0 ? worker.access.port->take(staged_size) : Bytes();
  const Bytes unused = scratch.subspan(kept);
  std::vector<BundledItem> bundle;
  bundle.reserve(items.size());
  std::vector<Bytes> pieces;
  pieces.reserve(3 * items.size());
  const auto read_pieces = [&] {
    if (!pieces.empty()) job_.source.read(begin, pieces, worker.cancel);
    pieces.clear();
  };
  std::size_t at = 0;
  for (const LoadItem& item : items) {
    const Extent e = extent(item);
    BundledItem& arrived = bundle.emplace_back();
    arrived.header = scratch.subspan(at, e.header_size);
    at += e.header_size;
    if (item.staged) {
      arrived.data = staged.first(e.data_size);
      staged = staged.subspan(align_up(e.data_size, kElementAlignment));
    } else if (job_.is_only_checked(item)) {
      arrived.data = scratch.subspan(at, e.data_size);
      at += e.data_size;
    } else {
      arrived.data = item.memory;
    }
    if (item.in_place) {
      // The mapping holds the data and the header of this item.
      read_pieces();
      if (e.header_size > 0) {
        std::memcpy(arrived.header.data(), job_.settings.mapping.data() + e.offset, e.header_size);
      }
      continue;
    }
    if (pieces.empty()) begin = end = e.offset;
    if (e.offset > end) pieces.push_back(unused.first(e.offset - end));
    if (e.header_size > 0) pieces.push_back(arrived.header);
    if (e.data_size > 0) pieces.push_back(arrived.data);
    end = e.offset + e.header_size + e.data_size;
  }
  read_pieces();
  return bundle;
}

void LoadMover::check_bundle(std::span<const LoadItem> items, std::span<const BundledItem> bundle,
                             std::span<const std::optional<TensorDetails>> details,
                             std::span<const DigestStart> starts, std::span<const std::size_t> here,
                             Worker& worker) {
  std::vector<std::size_t> digested;
  std::vector<DigestStart> wanted;
  std::vector<ConstBytes> data;
  std::vector<ChunksOfItem> chunked;
  for (const std::size_t i : here) {
    if (encrypted_ && !bundle[i].data.empty()) {
      decrypt(items[i], details[i]->crypt, 0, bundle[i].data, worker);
    }
    // An empty part has nothing to digest.
    if (!job_.digests() || !job_.is_whole(items[i])) continue;
    if (job_.hashes_chunks()) chunked.push_back({items[i], 0, bundle[i].data});
    digested.push_back(i);
    wanted.push_back(starts[i]);
    data.push_back(bundle[i].data);
  }
  if (digested.empty()) return;
  if (!chunked.empty()) check_chunks(chunked, worker);
  const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Digest);
  const std::vector<Digests> found = digest_all(wanted, data);
  for (std::size_t i = 0; i < digested.size(); ++i) check_.compare(items[digested[i]], found[i]);
}

void LoadMover::put(const LoadItem& item, std::uint64_t position, Bytes bytes,
                    Worker& worker) const {
  const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Copy);
  worker.access.port->put(item.staged->tensor, item.staged->position + position, bytes);
}

void LoadMover::put_copied(const LoadItem& item, std::uint64_t position, ConstBytes bytes,
                           Worker& worker) {
  for (std::uint64_t at = 0; at < bytes.size(); at += plan_.piece_size) {
    worker.cancel.check();
    const Bytes piece = worker.access.port->take(std::min(plan_.piece_size, bytes.size() - at));
    std::memcpy(piece.data(), bytes.data() + at, piece.size());
    put(item, position + at, piece, worker);
  }
}

bool LoadMover::move_staged(const LoadItem& item, Worker& worker) {
  const Extent& read = extent(item);
  std::vector<std::byte> header;
  std::optional<TensorDetails> details;
  if (job_.needs_details(item)) {
    read_arriving(job_.source, read.offset, read.header_size, header, worker.cancel);
    details = parse_details(item, header);
  }
  const std::uint64_t begin = read.offset + read.header_size;
  const std::uint64_t size = read.data_size;
  const DigestStart wanted = digests_wanted(item, details);
  const bool on_device = checks_on_device(item, details, wanted, worker);
  const bool decrypts = encrypted_ && !on_device;
  const bool digests = job_.digests() && !on_device;
  RunningDigests running(digests ? wanted : DigestStart{});
  std::vector<Sha256Digest> found;
  if (digests && job_.hashes_chunks()) found.resize(chunk_count(size, job_.hashed_chunk()));
  RunningChunks chunks(job_.hashed_chunk(), found);
  const auto check = [&](std::uint64_t at, Bytes piece) {
    if (decrypts) decrypt(item, details->crypt, at, piece, worker);
    if (digests) {
      const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Digest);
      running.update(piece);
      chunks.update(piece);
    }
    moved(piece.size());
  };
  // Only the header of an empty tensor moves, and it has no chunk size.
  const std::uint64_t chunk = decrypts && size > 0 ? details->crypt.chunk_size : 1;
  if (chunk <= plan_.piece_size) {
    const std::uint64_t most = plan_.piece_size / chunk * chunk;
    for (std::uint64_t at = 0; at < size; at += most) {
      worker.cancel.check();
      const Bytes piece = worker.access.port->take(std::min(most, size - at));
      job_.source.read(begin + at, {&piece, 1}, worker.cancel);
      check(at, piece);
      put(item, at, piece, worker);
    }
  } else {
    // No byte of a chunk may be passed on before the MAC of the whole chunk was checked.
    std::vector<std::byte> plain;
    for (std::uint64_t at = 0; at < size; at += chunk) {
      read_arriving(job_.source, begin + at, std::min(chunk, size - at), plain, worker.cancel);
      check(at, plain);
      put_copied(item, at, plain, worker);
    }
  }
  chunks.finish();
  repair_hashed(item, 0, found, false, worker);
  if (digests) check_.compare(item, running.finish());
  if (on_device) start_on_device(item, 0, size, details, wanted, worker);
  return on_device;
}

std::vector<std::byte> LoadMover::copy_header(const LoadItem& item) const {
  const Extent& read = extent(item);
  const ConstBytes header = job_.settings.mapping.subspan(read.offset, read.header_size);
  return {header.begin(), header.end()};
}

TensorDetails LoadMover::parse_details(const LoadItem& item, Bytes header) {
  const TensorDetails details = job_.catalogue.details(item.entry, header, job_.location);
  if (!entry(item).dtype) job_.catalogue.set_dtype(item.entry, details.dtype);
  check_nonce(item, details);
  if (job_.settings.keep_details) job_.settings.keep_details(item.entry, details);
  return details;
}

void LoadMover::check_nonce(const LoadItem& item, const TensorDetails& details) {
  if (!encrypted_ || entry(item).data_size == 0) return;
  const std::lock_guard lock(mutex_);
  if (nonces_.try_emplace(details.crypt.nonce, item.entry).first->second != item.entry) {
    fail(location(item), ErrorKind::Crypto, "it was encrypted with the nonce of another tensor");
  }
}

void LoadMover::learn_details(const LoadItem& item, CutDetails& cut) {
  TensorDetails details = parse_details(item, cut.header);
  const std::lock_guard lock(mutex_);
  cut.details = details;
  cut.known = true;
  known_.notify_all();
}

void LoadMover::await_details(const CutDetails& cut, Cancel& cancel) {
  std::unique_lock lock(mutex_);
  while (!cut.known) {
    known_.wait_for(lock, kPollInterval);
    lock.unlock();
    cancel.check();
    lock.lock();
  }
}

void LoadMover::decrypt(const LoadItem& item, const CryptInfo& crypt, std::uint64_t position,
                        Bytes bytes, Worker& worker) {
  const SharedSecret key = job_.settings.keys->key_for(crypt.derivation, worker.cancel);
  const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Cipher);
  decrypt_chunks(job_.source, entry(item), crypt, key->bytes(), position, bytes, worker.cancel,
                 [&](std::uint64_t at, Bytes chunk) {
                   check_.found_damage(item, at, ErrorKind::Crypto,
                                       describe_wrong_mac(entry(item), at, chunk.size()));
                 });
}

}  // namespace tensorizer
