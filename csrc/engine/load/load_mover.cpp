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
      large_(job.items.size()),
      right_(std::ranges::any_of(job.items, [](const LoadItem& i) { return i.staged.has_value(); })
                 ? job.items.size()
                 : 0),
      scratch_(plan.strip_size),
      part_sources_({job.source, job.catalogue, job.settings.keys, nullptr, job.checks_parts(),
                     [this](std::uint32_t entry, std::uint64_t at, const std::string& what) {
                       check_.found_damage({entry, {}}, at, ErrorKind::Crypto, what);
                     }}),
      check_(job) {
  for (const LargeExtent& large : plan.plan.large) {
    large_[large.extent] = std::make_unique<LargeItem>(LargeItem{{job.items[large.extent]}});
  }
}

void LoadMover::move_bundle(const Task& task, Worker& worker) try {
  const std::span<const LoadItem> items = job_.items.subspan(task.first, task.count);
  const LoadItem& first = items.front();
  const Extent& read = extent(first);
  if (read.alone ||
      (first.staged && items.size() == 1 && read.header_size + read.data_size > plan_.piece_size)) {
    move_pieces(first, worker);
  } else {
    std::vector<MovingItem> bundle = read_bundle(items, worker);
    for (MovingItem& each : bundle) learn(each);
    check_data(bundle, worker);
    for (const MovingItem& each : bundle) {
      const LoadItem& item = each.item;
      if (item.staged && !each.data.empty()) put(item, 0, each.data, worker);
      moved(item.size());
      if (each.on_device) start_on_device(each, 0, item.size(), worker);
    }
    for (const MovingItem& each : bundle) {
      if (!each.on_device) complete(each.item, worker);
    }
  }
  take_device_checks(false, worker);
} catch (...) {
  rethrow_naming(location(job_.items[task.first]));
}

ConstBytes LoadMover::move_strip(const Task& task, StripDigest& digest, Worker& worker) try {
  const LoadItem& item = job_.items[task.first];
  const Extent& read = extent(item);
  const bool first = task.position == 0;
  const Bytes target = item.staged                  ? worker.access.port->take(task.size)
                       : job_.is_only_checked(item) ? scratch_.take(task.size)
                                                    : item.memory.subspan(task.position, task.size);
  LargeItem& large = *large_[task.first];
  if (item.in_place || read.alone) {
    if (first && item.in_place) {
      const ConstBytes header = job_.settings.mapping.subspan(read.offset, read.header_size);
      large.header.assign(header.begin(), header.end());
    }
    const PartSources::Taken chunks = open_chunks(item, worker);
    fetch(item, task.position, target, reader(item, chunks.get(), worker), worker);
  } else {
    const bool apart = first && read.header_size > kLongHeader;
    if (apart) {
      read_arriving(job_.source, read.offset, read.header_size, large.header, worker.cancel);
    } else if (first) {
      large.header.resize(read.header_size);
    }
    const Bytes before = first && !apart ? Bytes(large.header) : Bytes();
    read_strip(read.offset + read.header_size + task.position, before, target,
               encrypted_ ? nullptr : &digest, worker);
  }
  if (first) {
    large.moving.header = large.header;
    learn(large.moving);
    const std::lock_guard lock(mutex_);
    large.known = true;
    known_.notify_all();
  }
  bool is_complete = true;  // whether no chunk goes on in another strip
  if (encrypted_) {
    await_details(large, worker.cancel);
    is_complete = has_whole_chunks(large);
  }
  // Only strips of encrypted tensors wait for what the first one learns.
  const MovingItem unknown{item};
  const MovingItem& moving = encrypted_ ? large.moving : unknown;
  const bool on_device = checks_on_device(moving);
  if (item.staged && !is_complete && !on_device) refuse_small_chunks(moving);
  const bool on_host = is_complete && !on_device;
  if (encrypted_ && on_host) {
    decrypt(item, large.moving.details->crypt, task.position, target, worker);
  }
  if (item.in_place || encrypted_) digest.update(target);
  if (on_host) check_chunks(item, task.position, target, worker);
  if (item.staged) {
    put(item, task.position, target, worker);
    // The worker that completes the item cannot wait for this one's copies.
    if (item.arrived != nullptr) worker.access.port->wait();
  }
  moved(task.size);
  if (job_.checks_on_device(item) && is_complete) {
    if (on_device) {
      start_on_device(moving, task.position, task.size, worker);
    } else {
      found_right(item, task.size, worker);
    }
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
  const LargeItem& large = *large_[tensor];
  // Data that is not decrypted yet is digested at the end.
  return encrypted_ && !has_whole_chunks(large) ? DigestStart{} : large.moving.wanted;
}

void LoadMover::finish(std::uint32_t tensor, const Digests& digests_found, Worker& worker) {
  const LoadItem& item = job_.items[tensor];
  LargeItem& large = *large_[tensor];
  if (encrypted_ && !has_whole_chunks(large)) {
    if (item.staged) {
      start_on_device(large.moving, 0, item.size(), worker);
    } else {
      large.moving.data = item.memory;
      check_data({&large.moving, 1}, worker);
    }
  } else if (job_.digests() && job_.is_whole(item)) {
    check_.compare(item, digests_found);
  }
  large_[tensor].reset();
  if (!job_.checks_on_device(item)) complete(item, worker);
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

std::vector<LoadMover::MovingItem> LoadMover::read_bundle(std::span<const LoadItem> items,
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
  std::vector<MovingItem> bundle;
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
    MovingItem& arrived = bundle.emplace_back(MovingItem{item, scratch.subspan(at, e.header_size)});
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

void LoadMover::learn(MovingItem& moving) {
  const LoadItem& item = moving.item;
  if (job_.needs_details(item)) {
    std::optional<TensorDetails>& details = moving.details;
    if (!details) details = job_.catalogue.details(item.entry, moving.header, job_.location);
    if (!entry(item).dtype) job_.catalogue.set_dtype(item.entry, details->dtype);
    check_nonce(item, *details);
    if (job_.settings.keep_details) job_.settings.keep_details(item.entry, *details);
  }
  if (job_.digests() && job_.is_whole(item)) {
    moving.wanted = check_.digests_wanted(item, moving.details);
  }
  moving.on_device = checks_on_device(moving);
}

void LoadMover::check_data(std::span<const MovingItem> items, Worker& worker) {
  std::vector<const LoadItem*> digested;
  std::vector<DigestStart> wanted;
  std::vector<ConstBytes> data;
  std::vector<ChunksOfItem> chunked;
  for (const MovingItem& each : items) {
    if (each.on_device) continue;
    if (encrypted_ && !each.data.empty()) {
      decrypt(each.item, each.details->crypt, 0, each.data, worker);
    }
    // An empty part has nothing to digest.
    if (!job_.digests() || !job_.is_whole(each.item)) continue;
    if (job_.hashes_chunks()) chunked.push_back({each.item, 0, each.data});
    digested.push_back(&each.item);
    wanted.push_back(each.wanted);
    data.push_back(each.data);
  }
  if (digested.empty()) return;
  if (!chunked.empty()) check_chunks(chunked, worker);
  const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Digest);
  const std::vector<Digests> found = digest_all(wanted, data);
  for (std::size_t i = 0; i < digested.size(); ++i) check_.compare(*digested[i], found[i]);
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

void LoadMover::check_nonce(const LoadItem& item, const TensorDetails& details) {
  if (!encrypted_ || entry(item).data_size == 0) return;
  const std::lock_guard lock(mutex_);
  if (nonces_.try_emplace(details.crypt.nonce, item.entry).first->second != item.entry) {
    fail(location(item), ErrorKind::Crypto, "it was encrypted with the nonce of another tensor");
  }
}

void LoadMover::await_details(const LargeItem& large, Cancel& cancel) {
  std::unique_lock lock(mutex_);
  while (!large.known) {
    cancel.wait(known_, lock);
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
