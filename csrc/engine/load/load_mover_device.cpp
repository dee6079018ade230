// Loads whose bytes are decrypted and verified on the destination device.
#include <algorithm>
#include <functional>

#include "base/error.h"
#include "engine/load/load_mover.h"

namespace tensorizer {

namespace {

// A device needs about 800 bytes of memory for each chunk that it decrypts, so tiny chunks would
// multiply the memory of a load.
constexpr std::uint64_t kLeastChunk = 256 << 10;

}  // namespace

bool LoadMover::checks_on_device(const MovingItem& moving) const {
  if (!job_.checks_on_device(moving.item)) return false;
  if (!kDeviceHashes.has_all(moving.wanted.hashes)) return false;
  if (encrypted_) return moving.details->crypt.chunk_size >= kLeastChunk;
  return !job_.hashes_chunks() || !is_near_end();
}

void LoadMover::refuse_small_chunks(const MovingItem& moving) const {
  fail(location(moving.item), ErrorKind::InvalidFormat,
       "it is encrypted in chunks of " + std::to_string(moving.details->crypt.chunk_size) +
           " bytes, which are not decrypted on the way to a device: load it to the CPU first");
}

bool LoadMover::is_near_end() const {
  const std::uint64_t left = plan_.size - progress_.done.load(std::memory_order_relaxed);
  return left <= job_.settings.last_chunks * job_.hashed_chunk() *
                     static_cast<std::uint64_t>(job_.settings.threads);
}

void LoadMover::start_on_device(const MovingItem& moving, std::uint64_t position,
                                std::uint64_t size, Worker& worker) {
  const LoadItem& item = moving.item;
  DeviceCheck check{item.staged->tensor, item.staged->position + position, size};
  check.item = static_cast<std::uint32_t>(number(item));
  if (encrypted_) {
    const CryptInfo& crypt = moving.details->crypt;
    const std::uint64_t first = position / crypt.chunk_size;
    const std::uint64_t chunks = (size + crypt.chunk_size - 1) / crypt.chunk_size;
    const ConstBytes macs = crypt.macs.subspan(first * kMacSize, chunks * kMacSize);
    check.cipher = {job_.settings.keys->key_for(crypt.derivation, worker.cancel),
                    nonce_after(crypt.nonce, first),
                    crypt.chunk_size,
                    {macs.begin(), macs.end()}};
  }
  if (job_.hashes_chunks()) check.hashed_chunk = job_.hashed_chunk();
  check.hashes = moving.wanted.hashes;
  check.before = RunningDigests(moving.wanted).finish();
  worker.access.port->start(std::move(check));
}

void LoadMover::take_device_checks(bool wait, Worker& worker) {
  std::vector<DeviceCheck> ended;
  do {
    ended = worker.access.port->ended(wait);
    for (DeviceCheck& check : ended) {
      const LoadItem& item = job_.items[check.item];
      try {
        end_on_device(std::move(check), worker);
      } catch (...) {
        rethrow_naming(location(item));
      }
    }
  } while (wait && !ended.empty());
}

void LoadMover::end_on_device(DeviceCheck check, Worker& worker) {
  const LoadItem& item = job_.items[check.item];
  const bool encrypted_anew = repair_encrypted(item, check, worker);
  const std::uint64_t position = check.position - item.staged->position;
  if (encrypted_anew || repair_hashed(item, position, check.digests, check.again, worker)) {
    // The bytes on the device are plaintext now, and are digested again.
    check.cipher.reset();
    check.again = true;
    worker.access.port->start(std::move(check));
    return;
  }
  if (!check.hashes.empty()) {
    check_.compare(item, join(check.before, check.found, check.size));
  }
  found_right(item, check.size, worker);
}

void LoadMover::found_right(const LoadItem& item, std::uint64_t size, Worker& worker) {
  if (right_[number(item)].fetch_add(size) + size == item.size()) complete(item, worker);
}

bool LoadMover::repair_encrypted(const LoadItem& item, const DeviceCheck& check, Worker& worker) {
  if (std::ranges::none_of(check.wrong_macs, std::identity())) return false;
  const DeviceCipher& cipher = *check.cipher;
  const std::uint64_t begin = check.position - item.staged->position;
  std::vector<std::byte> chunk;
  for (std::uint64_t i = 0; i < check.wrong_macs.size(); ++i) {
    if (!check.wrong_macs[i]) continue;
    const std::uint64_t at = begin + i * cipher.chunk_size;
    chunk.resize(std::min(cipher.chunk_size, begin + check.size - at));
    const ConstBytes mac = ConstBytes(cipher.macs).subspan(i * kMacSize, kMacSize);
    if (!job_.source.read_anew(entry(item).data_offset + at, chunk, worker.cancel) ||
        !decrypt_chunk(cipher.key->bytes(), nonce_after(cipher.nonce, i), mac, chunk)) {
      check_.found_damage(item, at, ErrorKind::Crypto,
                          describe_wrong_mac(entry(item), at, chunk.size()));
    }
    put_copied(item, at, chunk, worker);
  }
  return true;
}

bool LoadMover::repair_hashed(const LoadItem& item, std::uint64_t position,
                              std::span<const Digest> found, bool again, Worker& worker) {
  const std::uint64_t size = job_.hashed_chunk();
  bool damaged = false;
  std::vector<std::byte> chunk;
  check_.compare_chunks(item, position, found, [&](std::uint64_t at) {
    damaged = true;
    if (encrypted_) check_.found_wrong_chunk(item, at);
    if (again) {
      fail(location(item), ErrorKind::HashMismatch,
           "its bytes from " + std::to_string(at) +
               " on are damaged on the device, but were right when they were read");
    }
    chunk.resize(std::min(size, item.size() - at));
    tensorizer::check_chunks(job_.source, location(item), job_.catalogue.chunk_digests(), at, chunk,
                             found.subspan((at - position) / size, 1), worker.cancel,
                             [&](std::uint64_t, Bytes) { check_.found_wrong_chunk(item, at); });
    put_copied(item, at, chunk, worker);
  });
  return damaged;
}

}  // namespace tensorizer
