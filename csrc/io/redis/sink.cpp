// A file that is written into keys of its own, which then take the places of an older file's.
#include <algorithm>
#include <condition_variable>
#include <map>
#include <random>

#include "base/error.h"
#include "base/number.h"
#include "io/redis/client.h"
#include "io/redis/commit.h"
#include "io/redis/keys.h"
#include "io/redis/open.h"
#include "io/retry.h"

namespace tensorizer {

namespace {

using Clock = std::chrono::steady_clock;

// What a server takes for a value unless it was told otherwise.
constexpr std::uint64_t kUsualLimit = 512 << 20;
// What is left over after all, because nobody could take it away, vanishes by itself.
constexpr std::string_view kLeftoverSeconds = "86400";
// How many seconds abort() tries, and when somebody waits who has cancelled.
constexpr double kPatience = 1;
constexpr double kHurry = 0.05;

std::string random_name() {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::random_device random;
  std::string name;
  for (int i = 0; i < 16; ++i) name += kHex[random() % kHex.size()];
  return name;
}

// One section, in a key of its own.
struct Value {
  std::string key;   // until the file is finished
  std::string name;  // the section's
  std::uint64_t size = 0;
  // Of one that is written in parts: its key.
  enum class State : std::uint8_t { New, BeingMade, Made } state = State::New;
  // Of one that is lent in parts: those that came, by where they begin in it, and their size.
  std::map<std::uint64_t, ConstBytes> lent;
  std::uint64_t lent_size = 0;
};

class RedisSink final : public Sink {
 public:
  RedisSink(RedisAddress address, const RedisOptions& options, Cancel& cancel)
      : client_(std::move(address), options),
        // Not behind a colon, where whoever lists the keys of a file would find it.
        private_prefix_(client_.address().prefix + ".saving-" + random_name()) {
    std::unique_ptr<RedisConnection> connection = client_.connect_first(cancel);
    connection->identify(cancel);
    ask_for_limit(*connection, cancel);
    check_redis_target(*connection, client_.address(), client_.options(), cancel);
    client_.give_back(std::move(connection));
  }
  ~RedisSink() override { abort(); }

  bool ascending() const override { return false; }
  int writes_in_flight(bool) const override { return client_.options().connections; }

  void reserve(std::uint64_t size) override {
    check_size("the index", size);
    prefix_size_ = size;
  }

  void announce(std::span<const Section> sections, Cancel&) override {
    for (const Section& section : sections) check_size(section);
  }

  // Where a key belongs is said in finish().
  bool takes_short_prefix(std::uint64_t) const override { return true; }

  void write_prefix(ConstBytes prefix, Cancel& cancel) override {
    check_size("the index", prefix.size());
    prefix_size_ = prefix.size();
    is_written_ = true;
    use_connection(cancel, [&](RedisConnection& connection) {
      connection.add({"SETEX", private_prefix_, kLeftoverSeconds}, {&prefix, 1});
      connection.send(cancel);
      connection.receive_ok(cancel);
    });
  }

  void write(std::span<const Section> sections, std::uint64_t offset,
             std::span<const ConstBytes> pieces, Cancel& cancel) override {
    // As tensorizer, which keeps no terminator here.
    if (sections.front().kind == SectionKind::Terminator) return;
    std::uint64_t size = 0;
    for (const ConstBytes piece : pieces) size += piece.size();
    use_connection(cancel, [&](RedisConnection& connection) {
      if (sections.size() == 1 && size < sections.front().size) {
        write_part(connection, sections.front(), offset, pieces, cancel);
      } else {
        write_whole(connection, sections, pieces, cancel);
      }
    });
  }

  // A value that comes in one piece costs the server much less than one that comes in parts.
  void lend(std::span<const Section> sections, std::uint64_t offset,
            std::span<const ConstBytes> pieces, Cancel& cancel) override {
    const Section& section = sections.front();
    if (sections.size() != 1 || pieces.size() != 1 || section.size == pieces.front().size()) {
      return write(sections, offset, pieces, cancel);
    }
    Value& value = value_of(section);
    std::vector<ConstBytes> whole;
    {
      const std::lock_guard lock(mutex_);
      value.lent[offset - section.offset] = pieces.front();
      value.lent_size += pieces.front().size();
      if (value.lent_size < section.size) return;
      for (const auto& [begin, piece] : value.lent) whole.push_back(piece);
      value.lent.clear();
    }
    write(sections, section.offset, whole, cancel);
  }

  void finish(std::uint64_t, Cancel& cancel) override {
    const std::string& prefix = client_.address().prefix;
    std::vector<RedisMove> moves;
    moves.push_back({private_prefix_, redis_header_key(prefix), prefix_size_});
    for (const auto& [offset, value] : values_) {
      moves.push_back(
          {value.key, redis_key(prefix, value.name, prefix_size_ + offset), value.size});
    }
    use_connection(cancel, [&](RedisConnection& connection) {
      commit_redis_keys(connection, client_.address(), client_.options(), moves, cancel);
    });
    over_ = true;
  }

  void abort() noexcept override {
    if (over_) return;
    over_ = true;
    if (!is_written_ && values_.empty()) return;
    try {
      Cancel cancel{Cancel::Unattended()};
      const bool hurries = !broken_.empty() && !has_failed_;
      const Clock::time_point start = Clock::now();
      const std::chrono::duration<double> patience(hurries ? kHurry : kPatience);
      for (int tries = 0; !remove_keys(patience.count(), cancel); ++tries) {
        const std::chrono::milliseconds pause = pause_after_tries(tries);
        if (Clock::now() + pause - start >= patience) return;
        sleep_unless_cancelled(pause, cancel);
      }
    } catch (const std::exception&) {
      // The keys go by themselves, in time.
    }
  }

  const std::string& label() const override { return client_.label(); }

 private:
  template <typename Work>
  void use_connection(Cancel& cancel, Work&& work) {
    std::unique_ptr<RedisConnection> connection = client_.take_idle();
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
    client_.give_back(std::move(connection));
  }

  // What it was sent may still reach the server, and be run there. Null where none came about.
  void drop(RedisConnection* connection, bool has_failed) {
    if (connection != nullptr) connection->drop();
    const std::lock_guard lock(mutex_);
    if (connection != nullptr) broken_.push_back(connection->id());
    has_failed_ = has_failed_ || has_failed;
  }

  void ask_for_limit(RedisConnection& connection, Cancel& cancel) {
    connection.add({"CONFIG", "GET", "proto-max-bulk-len"});
    connection.send(cancel);
    // Not everybody may ask.
    const RedisReply reply = connection.receive_any(cancel);
    if (reply.kind != RedisReply::Kind::List || reply.list.size() != 2) return;
    limit_ = parse_number(reply.list[1].text).value_or(kUsualLimit);
  }

  void check_size(const std::string& what, std::uint64_t size) const {
    if (size <= limit_) return;
    throw Error(ErrorKind::InvalidArgument,
                "cannot save " + label() + ": " + what + " takes " + std::to_string(size) +
                    " bytes, and the server takes values of up to " + std::to_string(limit_) +
                    ": raise its setting proto-max-bulk-len, cut the tensor, or save to a file");
  }
  void check_size(const Section& section) const {
    if (section.size > limit_) check_size("tensor " + quote(section.name), section.size);
  }

  // The reference stays.
  Value& value_of(const Section& section) {
    check_size(section);
    const std::lock_guard lock(mutex_);
    Value& value = values_[section.offset];
    if (value.size == 0) {
      value.key = private_prefix_ + "." + std::to_string(section.offset);
      value.name = section.name;
      value.size = section.size;
    }
    return value;
  }

  void write_whole(RedisConnection& connection, std::span<const Section> sections,
                   std::span<const ConstBytes> pieces, Cancel& cancel) {
    for (const Section& section : sections) {
      std::vector<ConstBytes> own;
      for (std::uint64_t left = section.size; left > 0; pieces = pieces.subspan(1)) {
        own.push_back(pieces.front());
        left -= pieces.front().size();
      }
      connection.add({"SETEX", value_of(section).key, kLeftoverSeconds}, own);
    }
    connection.send(cancel);
    for (std::size_t i = 0; i < sections.size(); ++i) connection.receive_ok(cancel);
  }

  void write_part(RedisConnection& connection, const Section& section, std::uint64_t offset,
                  std::span<const ConstBytes> pieces, Cancel& cancel) {
    Value& value = value_of(section);
    make(connection, value, cancel);
    connection.add({"SETRANGE", value.key, std::to_string(offset - section.offset)}, pieces);
    // It may come after abort() has removed the key.
    connection.add({"EXPIRE", value.key, kLeftoverSeconds});
    connection.send(cancel);
    connection.receive_number(cancel);
    connection.receive_number(cancel);
  }

  // Gives a key that is written in parts all of its memory at once. The first who comes does.
  void make(RedisConnection& connection, Value& value, Cancel& cancel) {
    std::unique_lock lock(mutex_);
    while (value.state == Value::State::BeingMade) {
      made_.wait_for(lock, kPollInterval);
      lock.unlock();
      cancel.check();
      lock.lock();
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

  // True when no key is left, and none can come. A server that does not answer has been told, and
  // will do it when it goes on.
  bool remove_keys(double patience, Cancel& cancel) {
    // What has hung up on one, most likely has on all.
    if (has_failed_) client_.forget_idle();
    while (const std::unique_ptr<RedisConnection> idle = client_.take_idle()) {
      try {
        return remove_keys(*idle, patience, cancel);
      } catch (const TemporaryError& error) {
        if (error.kind() == ErrorKind::TimedOut) return false;
      }
    }
    try {
      RedisConnection connection(client_.address(), patience, patience, client_.counters(), cancel);
      return remove_keys(connection, patience, cancel);
    } catch (const TemporaryError&) {
      return false;
    }
  }

  // The server ends the connections that broke first.
  bool remove_keys(RedisConnection& connection, double patience, Cancel& cancel) {
    std::vector<std::string_view> keys{private_prefix_};
    for (const auto& [offset, value] : values_) keys.push_back(value.key);
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
  std::uint64_t prefix_size_ = 0;
  bool is_written_ = false;  // the prefix
  bool over_ = false;

  std::mutex mutex_;
  std::condition_variable made_;
  std::map<std::uint64_t, Value> values_;  // by their offsets
  std::vector<std::string> broken_;  // what the server calls the connections that were dropped
  bool has_failed_ = false;          // one did, which nobody had cancelled
};

}  // namespace

std::unique_ptr<Sink> open_redis_sink(const std::string& uri, const SinkOptions& options,
                                      Cancel& cancel) {
  const RedisOptions redis = options_from(options.given, &redis_options);
  return std::make_unique<RedisSink>(redis_address(uri, redis), redis, cancel);
}

}  // namespace tensorizer
