// Saves a file to Redis: writes it under private keys, which then replace those of an older file.
#include <algorithm>
#include <condition_variable>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/number.h"
#include "base/world.h"
#include "io/redis/client.h"
#include "io/redis/commit.h"
#include "io/redis/keys.h"
#include "io/redis/open.h"
#include "io/retry.h"

namespace tensorizer {

namespace {

// The default limit of a server on the size of a value.
constexpr std::uint64_t kUsualLimit = 512 << 20;
// The time to live of private keys, so that those that could not be removed expire.
constexpr std::string_view kLeftoverSeconds = "86400";

std::string random_name() {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string name;
  for (int i = 0; i < 16; ++i) name += kHex[random_number() % kHex.size()];
  return name;
}

// One named part of the body, which has its own key. The sink's mutex guards the members that
// change.
struct Value {
  std::string key;   // the private key, until finish()
  std::string name;  // of the part
  std::uint64_t size = 0;
  bool is_sent = false;  // the server may have the key
  // Whether the key exists, for a value that is written piece by piece.
  enum class State : std::uint8_t { New, BeingMade, Made } state = State::New;
  // Pieces in the caller's memory that wait for the rest of the value, by their offset in it.
  std::map<std::uint64_t, ConstBytes> kept;
  std::uint64_t kept_size = 0;
};

// The bytes of a write that belong to one value.
struct ValueBytes {
  Value* value;
  std::uint64_t offset;  // in the value
  std::vector<ConstBytes> pieces;

  bool is_whole() const { return total_size(pieces) == value->size; }
};

class RedisSink final : public Sink {
 public:
  RedisSink(RedisAddress address, const RedisOptions& options, Cancel& cancel)
      : client_(std::move(address), options),
        // Without a colon behind the prefix: a listing of the file's keys must not find it.
        private_prefix_(client_.address().prefix + ".saving-" + random_name()) {
    std::unique_ptr<RedisConnection> connection = client_.connect_first(cancel);
    connection->identify(cancel);
    ask_for_limit(*connection, cancel);
    check_redis_target(*connection, client_.address(), client_.options(), cancel);
    client_.idle().give_back(std::move(connection));
  }
  ~RedisSink() override { abort(); }

  bool sequential() const override { return false; }
  int writes_in_flight(KeptUntil) const override { return client_.options().connections; }

  void begin(std::uint64_t head_size, std::optional<std::uint64_t>) override {
    check_size("the head", head_size);
    head_size_ = head_size;
  }

  void announce(std::span<const NamedRange> parts) override {
    for (const NamedRange& part : parts) {
      if (part.size > limit_) check_size("part " + quote(part.name), part.size);
      Value& value = values_[part.offset];
      value.key = private_prefix_ + "." + std::to_string(part.offset);
      value.name = part.name;
      value.size = part.size;
    }
  }

  // Offsets in the file become part of the keys in finish().
  bool can_resize_head(std::uint64_t, std::uint64_t) const override { return true; }

  void write_head(ConstBytes head, Cancel& cancel) override {
    check_size("the head", head.size());
    head_size_ = head.size();
    is_head_sent_ = true;
    use_connection(cancel, [&](RedisConnection& connection) {
      connection.add({"SETEX", private_prefix_, kLeftoverSeconds}, {&head, 1});
      connection.send(cancel);
      connection.receive_ok(cancel);
    });
  }

  void write(std::uint64_t offset, std::span<const ConstBytes> pieces, KeptUntil kept,
             Cancel& cancel) override {
    std::vector<ValueBytes> whole;
    std::vector<ValueBytes> incomplete;
    for (ValueBytes& bytes : split_by_value(offset, pieces)) {
      // A value in one piece costs the server much less than one in several pieces.
      if (!bytes.is_whole() && kept == KeptUntil::End && !keep(bytes)) continue;
      (bytes.is_whole() ? whole : incomplete).push_back(std::move(bytes));
    }
    if (whole.empty() && incomplete.empty()) return;
    use_connection(cancel, [&](RedisConnection& connection) {
      if (!whole.empty()) set_values(connection, whole, cancel);
      for (const ValueBytes& bytes : incomplete) set_range(connection, bytes, cancel);
    });
  }

  void finish(std::uint64_t, Cancel& cancel) override {
    const std::string& prefix = client_.address().prefix;
    std::vector<RedisMove> moves;
    moves.push_back({private_prefix_, redis_header_key(prefix), head_size_});
    for (const auto& [offset, value] : values_) {
      moves.push_back({value.key, redis_key(prefix, value.name, head_size_ + offset), value.size});
    }
    try {
      use_connection(cancel, [&](RedisConnection& connection) {
        commit_redis_keys(connection, client_.address(), client_.options(), moves, cancel);
      });
    } catch (const RedisTransactionLost& error) {
      const std::optional<bool> moved = have_moved(moves, cancel);
      if (!moved) {
        throw Error(error.kind(),
                    std::string(error.message()) + ": whether the new file is there is not known");
      }
      if (!*moved) throw;
    }
    over_ = true;
  }

  void abort() noexcept override {
    if (over_) return;
    over_ = true;
    try {
      const std::vector<std::string_view> keys = sent_keys();
      if (keys.empty()) return;
      Cancel cancel{Cancel::Unattended()};
      const bool hurries = !broken_.empty() && !has_failed_;
      const double patience = hurries ? redis_abort_seconds.hurried : redis_abort_seconds.usual;
      const Clock::time_point deadline =
          Clock::now() + std::chrono::milliseconds(static_cast<int>(patience * 1000));
      Tries tries(0);
      while (!remove_keys(keys, patience, cancel) && tries.wait(cancel, {}, deadline)) {
      }
    } catch (const std::exception&) {
      // Ignored: the keys expire.
    }
  }

  const std::string& label() const override { return client_.label(); }

 private:
  template <typename Work>
  void use_connection(Cancel& cancel, Work&& work) {
    std::unique_ptr<RedisConnection> connection = client_.idle().take();
    try {
      if (!connection) {
        std::unique_ptr<RedisConnection> fresh = client_.connect(cancel);
        fresh->identify(cancel);
        connection = std::move(fresh);
      }
      work(*connection);
    } catch (const Error& error) {
      drop(connection.get(), error.kind() != ErrorKind::Cancelled);
      throw;
    } catch (...) {
      drop(connection.get(), false);
      throw;
    }
    client_.idle().give_back(std::move(connection));
  }

  // Drops a connection after an error, and remembers its id, because commands that were sent over
  // it may still reach the server and run. `connection` is null if connecting failed.
  void drop(RedisConnection* connection, bool has_failed) {
    if (connection != nullptr) connection->drop();
    const std::lock_guard lock(mutex_);
    if (connection != nullptr) broken_.push_back(connection->id());
    has_failed_ = has_failed_ || has_failed;
  }

  void ask_for_limit(RedisConnection& connection, Cancel& cancel) {
    connection.add({"CONFIG", "GET", "proto-max-bulk-len"});
    connection.send(cancel);
    // An error is ignored: the user may lack the right.
    const RedisReply reply = connection.receive_any(cancel);
    if (reply.kind != RedisReply::Kind::List || reply.list.size() != 2) return;
    limit_ = parse_number(reply.list[1].text).value_or(kUsualLimit);
  }

  void check_size(const std::string& what, std::uint64_t size) const {
    if (size <= limit_) return;
    throw Error(ErrorKind::InvalidArgument,
                "cannot save " + label() + ": " + what + " has " + std::to_string(size) +
                    " bytes, and the server accepts values of up to " + std::to_string(limit_) +
                    ": raise its setting proto-max-bulk-len, split the part, or save to a file");
  }

  // Splits the pieces where values end. Drops bytes behind the last value: tensorizer does not
  // store the end of a file in Redis either.
  std::vector<ValueBytes> split_by_value(std::uint64_t offset, std::span<const ConstBytes> pieces) {
    std::vector<ValueBytes> split;
    auto next = values_.upper_bound(offset);
    if (next != values_.begin()) --next;
    for (ConstBytes left : pieces) {
      while (!left.empty()) {
        while (next != values_.end() && offset >= next->first + next->second.size) ++next;
        if (next == values_.end()) return split;
        auto& [begin, value] = *next;
        if (offset < begin) {
          throw Error(ErrorKind::Internal, "bytes for " + label() + " belong to no announced part");
        }
        if (split.empty() || split.back().value != &value) {
          split.push_back({&value, offset - begin, {}});
        }
        const ConstBytes piece =
            left.first(std::min<std::uint64_t>(left.size(), begin + value.size - offset));
        split.back().pieces.push_back(piece);
        offset += piece.size();
        left = left.subspan(piece.size());
      }
    }
    return split;
  }

  // Remembers bytes that stay in the caller's memory. If that completes the value, sets `bytes` to
  // all of it and returns true.
  bool keep(ValueBytes& bytes) {
    Value& value = *bytes.value;
    const std::lock_guard lock(mutex_);
    for (const ConstBytes piece : bytes.pieces) {
      value.kept[bytes.offset] = piece;
      value.kept_size += piece.size();
      bytes.offset += piece.size();
    }
    if (value.kept_size < value.size) return false;
    bytes.offset = 0;
    bytes.pieces.clear();
    for (const auto& [begin, piece] : value.kept) bytes.pieces.push_back(piece);
    value.kept.clear();
    return true;
  }

  void note_sent(Value& value) {
    const std::lock_guard lock(mutex_);
    value.is_sent = true;
  }

  void set_values(RedisConnection& connection, std::span<const ValueBytes> values, Cancel& cancel) {
    for (const ValueBytes& bytes : values) {
      note_sent(*bytes.value);
      connection.add({"SETEX", bytes.value->key, kLeftoverSeconds}, bytes.pieces);
    }
    connection.send(cancel);
    for (std::size_t i = 0; i < values.size(); ++i) connection.receive_ok(cancel);
  }

  void set_range(RedisConnection& connection, const ValueBytes& bytes, Cancel& cancel) {
    Value& value = *bytes.value;
    note_sent(value);
    make(connection, value, cancel);
    connection.add({"SETRANGE", value.key, std::to_string(bytes.offset)}, bytes.pieces);
    // If the server has evicted the key, SETRANGE creates it again, and it does not expire.
    connection.add({"TTL", value.key});
    // The same happens if SETRANGE runs after abort() has removed the key.
    connection.add({"EXPIRE", value.key, kLeftoverSeconds});
    connection.send(cancel);
    connection.receive_number(cancel);
    const bool was_there = connection.receive_number(cancel) >= 0;
    connection.receive_number(cancel);
    if (was_there) return;
    throw Error(ErrorKind::OutOfSpace,
                "cannot save " + label() + ": the server has removed a key of part " +
                    quote(value.name) + " before it was complete: check its maxmemory-policy");
  }

  // Creates a key that is written in pieces at its full size, so that the server allocates its
  // memory once. The first thread does so, and the others wait for it.
  void make(RedisConnection& connection, Value& value, Cancel& cancel) {
    std::unique_lock lock(mutex_);
    while (value.state == Value::State::BeingMade) {
      cancel.wait(made_, lock);
    }
    if (value.state == Value::State::Made) return;
    value.state = Value::State::BeingMade;
    lock.unlock();
    const std::string last = std::to_string(value.size - 1);
    connection.add({"SETRANGE", value.key, last, std::string_view("\0", 1)});
    connection.add({"EXPIRE", value.key, kLeftoverSeconds});
    connection.send(cancel);
    connection.receive_number(cancel);
    connection.receive_number(cancel);
    lock.lock();
    value.state = Value::State::Made;
    made_.notify_all();
  }

  // Returns whether the transaction has run whose response was lost; null if that stays unknown.
  std::optional<bool> have_moved(std::span<const RedisMove> moves, Cancel& cancel) {
    client_.idle().clear();
    std::vector<std::string_view> names;
    for (const RedisMove& move : moves) names.push_back(move.from);
    try {
      const std::unique_ptr<RedisConnection> connection = client_.connect(cancel);
      // The transaction watches these keys: if there is one to remove, it has not run, and will do
      // nothing when it runs.
      const std::size_t commands = add_commands(*connection, "UNLINK", names);
      connection->add({"EXISTS", moves.front().to});
      connection->send(cancel);
      std::int64_t removed = 0;
      for (std::size_t i = 0; i < commands; ++i) removed += connection->receive_number(cancel);
      const bool is_there = connection->receive_number(cancel) == 1;
      if (removed > 0) return false;
      return is_there ? std::optional(true) : std::nullopt;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Cancelled) throw;
      return std::nullopt;
    }
  }

  std::vector<std::string_view> sent_keys() const {
    std::vector<std::string_view> keys;
    if (is_head_sent_) keys.push_back(private_prefix_);
    for (const auto& [offset, value] : values_) {
      if (value.is_sent) keys.push_back(value.key);
    }
    return keys;
  }

  // Returns true if no key is left and none can be created any more. Returns false if a retry is
  // needed. A server that does not respond has received the commands, and runs them when it
  // continues.
  bool remove_keys(std::span<const std::string_view> keys, double patience, Cancel& cancel) {
    // If one connection broke, the server has most likely closed the others as well.
    if (has_failed_) client_.idle().clear();
    while (const std::unique_ptr<RedisConnection> idle = client_.idle().take()) {
      try {
        return remove_keys(*idle, keys, patience, cancel);
      } catch (const TemporaryError& error) {
        if (error.kind() == ErrorKind::TimedOut) return false;
      }
    }
    try {
      return remove_keys(*client_.connect_within(patience, cancel), keys, patience, cancel);
    } catch (const TemporaryError&) {
      return false;
    }
  }

  // Has the server end the broken connections before it removes the keys.
  bool remove_keys(RedisConnection& connection, std::span<const std::string_view> keys,
                   double patience, Cancel& cancel) {
    connection.set_patience(patience);
    for (const std::string& id : broken_) connection.add({"CLIENT", "KILL", "ID", id});
    const std::size_t commands = add_commands(connection, "UNLINK", keys);
    connection.send(cancel);
    bool all_ended = true;
    for (std::size_t i = 0; i < broken_.size(); ++i) {
      all_ended = connection.receive_any(cancel).kind == RedisReply::Kind::Number && all_ended;
    }
    for (std::size_t i = 0; i < commands; ++i) connection.receive_number(cancel);
    return all_ended;
  }

  RedisClient client_;
  const std::string private_prefix_;
  std::uint64_t limit_ = kUsualLimit;
  std::uint64_t head_size_ = 0;
  bool is_head_sent_ = false;
  bool over_ = false;

  std::mutex mutex_;
  std::condition_variable made_;
  std::map<std::uint64_t, Value> values_;  // by offset in the body; grows in announce() only
  std::vector<std::string> broken_;        // the ids of the connections that were dropped
  bool has_failed_ = false;                // one broke, or could not be opened, without a cancel
};

}  // namespace

RedisAbortSeconds redis_abort_seconds{.usual = 1, .hurried = 0.05};

std::unique_ptr<Sink> open_redis_sink(const std::string& uri, const SinkOptions& options,
                                      Cancel& cancel) {
  const RedisOptions redis = options_from(options.given, &redis_options);
  return std::make_unique<RedisSink>(redis_address(uri, redis), redis, cancel);
}

}  // namespace tensorizer
