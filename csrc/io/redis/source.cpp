// A file in Redis. It is read in pieces of its keys, several of which are requested ahead.
#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/gate.h"
#include "base/redaction.h"
#include "base/world.h"
#include "io/redis/client.h"
#include "io/redis/keys.h"
#include "io/redis/open.h"
#include "io/retry.h"

namespace tensorizer {

namespace {

// The bytes of one command: few enough to stay in the cache of the server's processor.
constexpr std::uint64_t kPiece = 1 << 20;
// The bytes and commands that may be outstanding on one connection.
constexpr std::uint64_t kMostAsked = 4 * kPiece;
constexpr std::size_t kMostCommands = 500;
// A command, its reply and a round trip to a server nearby, in bytes.
constexpr std::uint64_t kReadCost = 64 << 10;
// How often to list the keys again because the file was replaced meanwhile.
constexpr int kMostListings = 20;

// Every save replaces the header's key. A connection that watches this key (WATCH) learns by an
// empty transaction whether that has happened. So no load mixes the bytes of two saves.
class RedisSource final : public Source {
 public:
  RedisSource(RedisAddress address, const RedisOptions& options, bool any_bytes, Cancel& cancel)
      : client_(std::move(address), options),
        header_key_(redis_header_key(client_.address().prefix)) {
    Tries tries(client_.options().retries);
    for (;;) {
      try {
        std::unique_ptr<RedisConnection> guard = client_.connect_first(cancel);
        keys_ = list(*guard, cancel);
        guard_.give_back(std::move(guard));
        break;
      } catch (const TemporaryError& error) {
        client_.counters().retries += 1;
        tries.failed(error, 0, cancel);
      }
    }
    check_redis_keys(keys_, client_.address(), any_bytes);
  }

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    const std::uint64_t wanted = total_size(pieces);
    IoCursor cursor(pieces);
    const std::uint64_t done = fill(offset, cursor, cancel);
    if (done < wanted) throw_source_ended(label(), offset + done, wanted - done);
  }

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    IoCursor cursor(std::span<const Bytes>(&out, 1));
    return fill(offset, cursor, cancel);
  }

  std::optional<std::uint64_t> size() const override { return keys_.back().end(); }
  bool remote() const override { return true; }
  ReadHints hints(std::uint64_t, std::uint64_t) override {
    ReadHints hints;
    hints.reads_in_flight = hints.most_reads = client_.options().connections;
    hints.read_cost = kReadCost;
    return hints;
  }
  SourceStats stats() const override { return client_.stats(); }
  const std::string& label() const override { return client_.label(); }
  void redact(Redaction& text) const override { client_.address().redact(text); }

 private:
  // A part of a key.
  struct KeyRange {
    const RedisKey& key;
    std::uint64_t begin;
    std::uint64_t size;
  };

  // Throws the first change that was noticed, so that all threads report the same one.
  [[noreturn]] void throw_changed(const std::string& what) {
    const std::lock_guard lock(change_mutex_);
    if (change_.empty()) change_ = what;
    throw_change();
  }
  void check_unchanged() {
    const std::lock_guard lock(change_mutex_);
    if (!change_.empty()) throw_change();
  }
  // change_mutex_ must be locked.
  [[noreturn]] void throw_change() {
    throw Error(ErrorKind::Unavailable, label() + " has changed while it was loaded: " + change_);
  }
  [[noreturn]] void throw_replaced() { throw_changed("it was saved again"); }

  void watch(RedisConnection& connection, Cancel& cancel) {
    connection.add({"WATCH", header_key_});
    connection.send(cancel);
    connection.receive_ok(cancel);
  }

  // Send and receive the question whether the file was replaced, on a connection that watches.
  // Between EXEC and WATCH the connection does not watch: the server usually reads both at once,
  // but if they arrive separately, it also runs them separately.
  void ask_whether_replaced(RedisConnection& connection) {
    connection.add({"MULTI"});
    connection.add({"EXEC"});
    connection.add({"WATCH", header_key_});
  }
  bool hear_whether_replaced(RedisConnection& connection, Cancel& cancel) {
    connection.receive_ok(cancel);
    const RedisReply reply = connection.receive_any(cancel);
    if (reply.kind == RedisReply::Kind::Error) throw_redis_error(reply.text, label());
    connection.receive_ok(cancel);
    return reply.kind != RedisReply::Kind::List;
  }
  bool is_replaced(RedisConnection& connection, Cancel& cancel) {
    ask_whether_replaced(connection);
    connection.send(cancel);
    return hear_whether_replaced(connection, cancel);
  }

  std::vector<RedisKey> list_once(RedisConnection& connection, Cancel& cancel) {
    std::vector<RedisKey> keys = list_redis_keys(connection, client_.address(), cancel).keys;
    measure_redis_keys(connection, keys, label(), cancel);
    return keys;
  }

  void check_same(std::vector<RedisKey> keys) {
    std::erase_if(keys, [](const RedisKey& key) { return key.size == 0; });
    if (keys != keys_) throw_changed("its keys are different");
  }

  // Returns the keys as they were at one moment. The connection watches from then on.
  std::vector<RedisKey> list(RedisConnection& connection, Cancel& cancel) {
    watch(connection, cancel);
    for (int listings = 0; listings < kMostListings; ++listings) {
      std::vector<RedisKey> keys = list_once(connection, cancel);
      // The next read uses this connection. It watches while the other one does not.
      std::unique_ptr<RedisConnection> next = client_.connect(cancel);
      watch(*next, cancel);
      if (is_replaced(connection, cancel)) continue;
      client_.idle().give_back(std::move(next));
      return keys;
    }
    throw Error(ErrorKind::Unavailable, label() + " is saved again and again");
  }

  // Returns a connection that watches, after a check that nothing has changed since the keys were
  // listed.
  std::unique_ptr<RedisConnection> take(Cancel& cancel) {
    check_unchanged();
    std::unique_ptr<RedisConnection> connection = client_.idle().take();
    if (!connection) {
      connection = client_.connect(cancel);
      watch(*connection, cancel);
    }
    ask_guard(cancel);
    return connection;
  }

  // Throws if the file was replaced since the keys were listed. The guard is a connection that has
  // watched since then, also while other connections did not; and while the guard itself does not
  // (between EXEC and WATCH), the connection for which it is asked does, and is asked after its
  // read. If either connection has broken, the keys are listed again, and must be the same.
  void ask_guard(Cancel& cancel) {
    const Clock::time_point since = Clock::now();
    std::optional<Gate::Entry> entry;
    // A signal handler that interrupts its own thread in this function does not enter the gate, and
    // opens a guard of its own.
    if (!asking_guard_.holds_up(cancel)) {
      entry.emplace(asking_guard_, std::this_thread::get_id(), cancel);
    }
    const bool is_in_doubt = is_guard_in_doubt_.exchange(false);
    // Another thread has asked the guard since this call began.
    if (!is_in_doubt && guard_asked_ > since) return;
    const Clock::time_point now = Clock::now();
    std::unique_ptr<RedisConnection> guard;
    while (std::unique_ptr<RedisConnection> next = guard_.take()) {
      try {
        if (is_replaced(*next, cancel)) throw_replaced();
        if (is_in_doubt) check_same(list_once(*next, cancel));
        guard = std::move(next);
        // In doubt, all guards are asked: what one did not watch, another may have.
        if (!is_in_doubt) break;
      } catch (const TemporaryError&) {
      }
    }
    if (!guard) {
      guard = client_.connect(cancel);
      check_same(list(*guard, cancel));
    }
    guard_.give_back(std::move(guard));
    guard_asked_ = now;
  }

  using Keys = std::vector<RedisKey>;

  // Returns the first key that begins behind the byte at `offset`. The key before it holds that
  // byte, if any does.
  Keys::const_iterator behind(std::uint64_t offset) const {
    return std::upper_bound(
        keys_.begin(), keys_.end(), offset,
        [](std::uint64_t at, const RedisKey& other) { return at < other.offset; });
  }

  // Returns how many of `most` bytes the file has from `offset` on without a gap.
  std::uint64_t count_bytes(std::uint64_t offset, std::uint64_t most) const {
    auto key = behind(offset);
    if (key == keys_.begin()) return 0;
    std::uint64_t end = std::prev(key)->end();
    if (end <= offset) return 0;
    for (; end - offset < most && key != keys_.end() && key->offset == end; ++key) end = key->end();
    return std::min(most, end - offset);
  }

  // Fills as much as the file has, and returns the number of bytes.
  std::uint64_t fill(std::uint64_t offset, IoCursor& cursor, Cancel& cancel) {
    const std::uint64_t wanted = cursor.left();
    const std::uint64_t length = count_bytes(offset, wanted);
    if (length == 0) return 0;
    const auto done = [&] { return wanted - cursor.left(); };
    Tries tries(client_.options().retries);
    for (;;) {
      const std::uint64_t before = done();
      try {
        fetch(offset + done(), offset + length, cursor, cancel);
        return length;
      } catch (const TemporaryError& error) {
        client_.idle().clear();
        client_.counters().retries += 1;
        tries.failed(error, done() - before, cancel);
      }
    }
  }

  void fetch(std::uint64_t begin, std::uint64_t end, IoCursor& cursor, Cancel& cancel) {
    try {
      std::unique_ptr<RedisConnection> connection = take(cancel);
      fetch(*connection, begin, end, cursor, cancel);
      client_.idle().give_back(std::move(connection));
    } catch (...) {
      is_guard_in_doubt_ = true;
      throw;
    }
  }

  void fetch(RedisConnection& connection, std::uint64_t begin, std::uint64_t end, IoCursor& cursor,
             Cancel& cancel) {
    const Clock::time_point start = Clock::now();
    Clock::time_point first = start;
    auto key = std::prev(behind(begin));
    std::deque<KeyRange> asked;
    std::uint64_t next = begin;  // the first byte that was not requested yet
    std::uint64_t done = begin;
    bool all_asked = false;
    while (!all_asked || !asked.empty()) {
      if (!all_asked && next - done <= kMostAsked / 2 && asked.size() <= kMostCommands / 2) {
        while (next < end && next - done < kMostAsked && asked.size() < kMostCommands) {
          if (next == key->end()) ++key;
          asked.push_back(
              {*key, next - key->offset, std::min({kPiece, key->end() - next, end - next})});
          ask(connection, asked.back());
          next += asked.back().size;
        }
        all_asked = next == end;
        if (all_asked) ask_whether_replaced(connection);
        connection.send(cancel);
      }
      if (asked.empty()) break;
      receive(connection, asked.front(), cursor, cancel);
      if (done == begin) first = Clock::now();
      done += asked.front().size;
      asked.pop_front();
    }
    if (hear_whether_replaced(connection, cancel)) throw_replaced();
    client_.counters().first_byte += static_cast<std::uint64_t>((first - start).count());
    client_.counters().transfer += static_cast<std::uint64_t>((Clock::now() - first).count());
  }

  void ask(RedisConnection& connection, const KeyRange& piece) {
    // At the end of a key, asks for one byte more, to notice if the key has become longer.
    const std::uint64_t end = piece.begin + piece.size;
    const std::uint64_t last = end == piece.key.size ? end : end - 1;
    connection.add({"GETRANGE", piece.key.name, std::to_string(piece.begin), std::to_string(last)});
  }

  void receive(RedisConnection& connection, const KeyRange& piece, IoCursor& cursor,
               Cancel& cancel) {
    const std::uint64_t size = connection.receive_into(cursor, piece.size, cancel);
    if (size == piece.size) return;
    const RedactedQuotes quotes(*this);
    throw_changed("key " + quote(piece.key.name) +
                  (size == 0 ? " was removed" : " has a different size"));
  }

  RedisClient client_;
  const std::string header_key_;
  std::vector<RedisKey> keys_;  // that make up the file, by offset

  std::mutex change_mutex_;
  std::string change_;  // the first change that was noticed, or empty

  Gate asking_guard_{"the guard is asked already"};
  IdlePool<RedisConnection> guard_;  // holds the guard while it is not asked
  Clock::time_point guard_asked_;    // used inside asking_guard_ only
  // Whether a connection broke before it could say that nothing changed while the guard did not
  // watch.
  std::atomic<bool> is_guard_in_doubt_{false};
};

}  // namespace

std::unique_ptr<Source> open_redis_source(const std::string& uri, const SourceOptions& options,
                                          Cancel& cancel) {
  const RedisOptions redis = options_from(options.given, &redis_options);
  return std::make_unique<RedisSource>(redis_address(uri, redis), redis, options.any_bytes, cancel);
}

}  // namespace tensorizer
