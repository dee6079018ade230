#include "engine/load_mover.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace tensorizer {

namespace {

// Longer headers are those that hold the MACs of very much data. They come in a read of their own,
// which takes memory as they arrive.
constexpr std::uint64_t kLongHeader = 1 << 20;

}  // namespace

LoadMover::LoadMover(const LoadJob& job, const LoadPlan& plan, Progress& progress,
                     std::span<std::uint8_t> complete)
    : job_(job),
      plan_(plan),
      progress_(progress),
      complete_(complete),
      encrypted_(job.encrypted()),
      sliced_(job.items.size()),
      scratch_(plan.slice_size) {
  for (const SlicedTensor& sliced : plan.plan.sliced) {
    sliced_[sliced.tensor] = std::make_unique<SlicedHeader>();
  }
  if (job.digests()) expected_.resize(job.items.size());
}

void LoadMover::move_bundle(const Range& range, Worker& worker) try {
  const std::span<const LoadItem> items = job_.items.subspan(range.first, range.count);
  const Extent first = extent(items.front());
  if (items.size() == 1 && items[0].staged &&
      first.header_size + first.data_size > plan_.piece_size) {
    move_staged(range.first, worker);
    return;
  }
  const std::vector<BundledTensor> bundle = read_bundle(items, worker);
  std::vector<std::optional<TensorHeader>> headers(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!bundle[i].header.empty()) headers[i] = parse_header(items[i], bundle[i].header);
  }
  check_bundle(items, bundle, headers, worker);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].staged && !bundle[i].data.empty()) {
      const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Copy);
      worker.access.port->put(*items[i].staged, 0, bundle[i].data);
    }
    if (bundle[i].codec != nullptr) {
      finish_on_device(items[i], *bundle[i].codec, headers[i], worker);
    }
    moved(entry(items[i]).data_size);
    complete_[range.first + i] = 1;
  }
} catch (...) {
  rethrow_naming(location(job_.items[range.first]));
}

ConstBytes LoadMover::move_slice(const Range& range, SliceDigest& digest, Worker& worker) try {
  const LoadItem& item = job_.items[range.first];
  const Entry& e = entry(item);
  const bool header = range.position == 0 && needs_header(item);
  const Bytes target = item.staged         ? worker.access.port->take(range.size)
                       : job_.passes(item) ? scratch_.take(range.size)
                                           : item.memory.subspan(range.position, range.size);
  SlicedHeader& sliced = *sliced_[range.first];
  if (item.in_place) {
    if (header) sliced.bytes = copy_header(e);
  } else {
    const bool apart = header && e.header_size() > kLongHeader;
    if (apart) {
      read_arriving(job_.source, e.header_offset, e.header_size(), sliced.bytes, worker.cancel);
    } else if (header) {
      sliced.bytes.resize(e.header_size());
    }
    const Bytes before = header && !apart ? Bytes(sliced.bytes) : Bytes();
    read_slice(e.data_offset + range.position, before, target, encrypted_ ? nullptr : &digest,
               worker);
  }
  if (header) learn_header(item, sliced);
  if (encrypted_) {
    await_header(sliced, worker.cancel);
    if (has_whole_chunks(sliced))
      decrypt(item, sliced.parsed->crypt, range.position, target, worker);
  }
  if (item.in_place || encrypted_) digest.update(target);
  if (item.staged) {
    const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Copy);
    worker.access.port->put(*item.staged, range.position, target);
  }
  moved(range.size);
  return target;
} catch (...) {
  rethrow_naming(location(job_.items[range.first]));
}

void LoadMover::read_slice(std::uint64_t offset, Bytes before, Bytes target, SliceDigest* digest,
                           Worker& worker) {
  const bool at_once = digest == nullptr || !digest->wanted();
  offset -= before.size();
  while (!target.empty()) {
    const std::size_t size =
        at_once ? target.size() : std::min<std::uint64_t>(target.size(), plan_.part_size);
    const std::array<Bytes, 2> pieces{before, target.first(size)};
    job_.source.read(offset, pieces, worker.cancel);
    if (digest != nullptr) digest->update(pieces[1]);
    offset += before.size() + size;
    before = {};
    target = target.subspan(size);
  }
}

DigestStart LoadMover::digest_start(std::uint32_t tensor) {
  const SlicedHeader& sliced = *sliced_[tensor];
  // What is not plain yet is digested at the end.
  if (!job_.digests() || (encrypted_ && !has_whole_chunks(sliced))) return {};
  return digests_wanted(job_.items[tensor], sliced.parsed);
}

void LoadMover::finish(std::uint32_t tensor, const Digests& digests_found, Worker& worker) {
  const LoadItem& item = job_.items[tensor];
  SlicedHeader& sliced = *sliced_[tensor];
  if (encrypted_ && !has_whole_chunks(sliced)) {
    const Bytes data = item.memory.first(entry(item).data_size);
    decrypt(item, sliced.parsed->crypt, 0, data, worker);
    if (job_.digests()) {
      RunningDigests running(digests_wanted(item, sliced.parsed));
      running.update(data);
      compare(item, running.finish());
    }
  } else if (job_.digests()) {
    compare(item, digests_found);
  }
  sliced_[tensor].reset();
  complete_[tensor] = 1;
}

void LoadMover::let_go(std::uint32_t tensor, ConstBytes slice) {
  if (!job_.passes(job_.items[tensor])) return;
  // It is memory of the pool, and nobody else's.
  scratch_.give_back({const_cast<std::byte*>(slice.data()), slice.size()});
}

std::vector<LoadMover::BundledTensor> LoadMover::read_bundle(std::span<const LoadItem> items,
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
    if (job_.passes(item)) kept += e.data_size;
    end = e.offset + e.header_size + e.data_size;
  }
  const Bytes scratch = worker.access.scratch.take(kept + largest_gap);
  Bytes staged = staged_size > 0 ? worker.access.port->take(staged_size) : Bytes();
  const Bytes unused = scratch.subspan(kept);
  std::vector<BundledTensor> bundle;
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
    BundledTensor& arrived = bundle.emplace_back();
    arrived.codec = codec_of(item, worker);
    arrived.header = scratch.subspan(at, e.header_size);
    at += e.header_size;
    if (item.staged) {
      arrived.data = staged.first(e.data_size);
      staged = staged.subspan(align_up(e.data_size, kElementAlignment));
    } else if (job_.passes(item)) {
      arrived.data = scratch.subspan(at, e.data_size);
      at += e.data_size;
    } else {
      arrived.data = item.memory.first(e.data_size);
    }
    if (item.in_place) {
      // Its bytes are there, and so is its header.
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

void LoadMover::check_bundle(std::span<const LoadItem> items, std::span<const BundledTensor> bundle,
                             std::span<const std::optional<TensorHeader>> headers, Worker& worker) {
  std::vector<std::size_t> digested;
  std::vector<DigestStart> starts;
  std::vector<ConstBytes> data;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (bundle[i].codec != nullptr) continue;
    if (encrypted_ && !bundle[i].data.empty()) {
      decrypt(items[i], headers[i]->crypt, 0, bundle[i].data, worker);
    }
    if (!job_.digests()) continue;
    digested.push_back(i);
    starts.push_back(digests_wanted(items[i], headers[i]));
    data.push_back(bundle[i].data);
  }
  if (digested.empty()) return;
  const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Digest);
  const std::vector<Digests> found = digest_all(starts, data);
  for (std::size_t i = 0; i < digested.size(); ++i) compare(items[digested[i]], found[i]);
}

void LoadMover::finish_on_device(const LoadItem& item, DeviceCodec& codec,
                                 const std::optional<TensorHeader>& header, Worker& worker) {
  const std::uint64_t size = entry(item).data_size;
  if (encrypted_ && size > 0) {
    const CryptInfo& crypt = header->crypt;
    const SharedSecret key = job_.settings.keys->key_for(crypt.derivation, worker.cancel);
    for (std::uint64_t at = 0; at < size; at += crypt.chunk_size) {
      worker.cancel.check();
      const std::uint64_t chunk = at / crypt.chunk_size;
      const std::uint64_t length = std::min(crypt.chunk_size, size - at);
      const ChunkKey chunk_key{key->bytes(), nonce_after(crypt.nonce, chunk)};
      if (!codec.decrypt(*item.staged, at, length, chunk_key, crypt.mac(chunk))) {
        fail_to_decrypt(location(item), at, length);
      }
    }
  }
  if (job_.digests()) compare(item, codec.digest(*item.staged, digests_wanted(item, header)));
}

void LoadMover::move_staged(std::uint32_t tensor, Worker& worker) {
  const LoadItem& item = job_.items[tensor];
  const Entry& e = entry(item);
  std::vector<std::byte> bytes;
  std::optional<TensorHeader> header;
  if (needs_header(item)) {
    read_arriving(job_.source, e.header_offset, e.header_size(), bytes, worker.cancel);
    header = parse_header(item, bytes);
  }
  DeviceCodec* const codec = codec_of(item, worker);
  const bool decrypts = encrypted_ && codec == nullptr;
  const bool digests = job_.digests() && codec == nullptr;
  RunningDigests running(digests ? digests_wanted(item, header) : DigestStart{});
  const auto pass = [&](std::uint64_t at, Bytes piece) {
    const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Copy);
    worker.access.port->put(*item.staged, at, piece);
  };
  const auto check = [&](std::uint64_t at, Bytes piece) {
    if (decrypts) decrypt(item, header->crypt, at, piece, worker);
    if (digests) {
      const ComputeSlots::Slot slot(worker.slots, ComputeSlots::Work::Digest);
      running.update(piece);
    }
    moved(piece.size());
  };
  // Of an empty tensor only the header moves, and that names no chunks.
  const std::uint64_t chunk = decrypts && e.data_size > 0 ? header->crypt.chunk_size : 1;
  if (chunk <= plan_.piece_size) {
    const std::uint64_t size = plan_.piece_size / chunk * chunk;
    for (std::uint64_t at = 0; at < e.data_size; at += size) {
      worker.cancel.check();
      const Bytes piece = worker.access.port->take(std::min(size, e.data_size - at));
      job_.source.read(e.data_offset + at, {&piece, 1}, worker.cancel);
      check(at, piece);
      pass(at, piece);
    }
  } else {
    // Not a byte of a chunk may pass before all of it is there.
    std::vector<std::byte> plain;
    for (std::uint64_t at = 0; at < e.data_size; at += chunk) {
      read_arriving(job_.source, e.data_offset + at, std::min(chunk, e.data_size - at), plain,
                    worker.cancel);
      check(at, plain);
      for (std::uint64_t passed = 0; passed < plain.size(); passed += plan_.piece_size) {
        worker.cancel.check();
        const Bytes piece =
            worker.access.port->take(std::min(plan_.piece_size, plain.size() - passed));
        std::memcpy(piece.data(), plain.data() + passed, piece.size());
        pass(at + passed, piece);
      }
    }
  }
  if (digests) compare(item, running.finish());
  if (codec != nullptr) finish_on_device(item, *codec, header, worker);
  complete_[tensor] = 1;
}

std::vector<std::byte> LoadMover::copy_header(const Entry& e) const {
  const ConstBytes header = job_.settings.mapping.subspan(e.header_offset, e.header_size());
  return {header.begin(), header.end()};
}

TensorHeader LoadMover::parse_header(const LoadItem& item, Bytes bytes) {
  const Entry& e = entry(item);
  const TensorHeader header = parse_authentic_header(bytes, job_.index, item.entry, job_.location);
  if (!e.dtype) job_.index.set_dtype(item.entry, *header.dtype.dtype);
  if (encrypted_ && e.data_size > 0) {
    const std::lock_guard lock(mutex_);
    if (nonces_.try_emplace(header.crypt.nonce, item.entry).first->second != item.entry) {
      fail(location(item), ErrorKind::Crypto, "it was encrypted with the nonce of another tensor");
    }
  }
  if (job_.settings.keep_header) job_.settings.keep_header(item.entry, header);
  return header;
}

void LoadMover::learn_header(const LoadItem& item, SlicedHeader& sliced) {
  TensorHeader header = parse_header(item, sliced.bytes);
  const std::lock_guard lock(mutex_);
  sliced.parsed = header;
  sliced.known = true;
  known_.notify_all();
}

void LoadMover::await_header(const SlicedHeader& sliced, Cancel& cancel) {
  std::unique_lock lock(mutex_);
  while (!sliced.known) {
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
  decrypt_chunks(location(item), crypt, key->bytes(), position, bytes, worker.cancel);
}

DigestStart LoadMover::digests_wanted(const LoadItem& item,
                                      const std::optional<TensorHeader>& header) {
  Expected& expected = expected_[number(item)];
  if (job_.settings.expected_digests != nullptr) {
    expected.sha256 = job_.settings.expected_digests->expected_of(item.entry);
    return {{}, false, true};
  }
  expected = {header->crc32, header->sha256};
  if (job_.settings.verify == Verify::Crc32 && header->crc32) expected.sha256.reset();
  if (!expected.crc32 && !expected.sha256) {
    fail(location(item), ErrorKind::InvalidFormat,
         "there is nothing to verify: the file was saved without hashes");
  }
  return {header->hashed, expected.crc32.has_value(), expected.sha256.has_value()};
}

void LoadMover::compare(const LoadItem& item, const Digests& found) const {
  check_digests(location(item), job_.settings.expected_digests, expected_[number(item)], found);
}

}  // namespace tensorizer
