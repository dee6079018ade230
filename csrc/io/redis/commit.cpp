#include "io/redis/commit.h"

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/error.h"
#include "base/redaction.h"
#include "io/redis/keys.h"

namespace tensorizer {

namespace {

constexpr std::size_t kNamesPerCommand = 1000;

class Commit {
 public:
  Commit(RedisConnection& connection, const RedisAddress& address, const RedisOptions& options,
         std::span<const RedisMove> moves, Cancel& cancel)
      : connection_(connection),
        address_(address),
        options_(options),
        moves_(moves),
        cancel_(cancel),
        quotes_(address),
        header_key_(redis_header_key(address.prefix)) {}

  void run() {
    for (int tries = 0; tries < kMostRedisTries; ++tries) {
      watch();
      check_what_was_written();
      const RedisListing there = list_redis_keys(connection_, address_, cancel_);
      check_target(there);
      check_names(there);
      if (replace(there)) return;
    }
    throw_redis_rivals("save", address_);
  }

  void remove() {
    for (int tries = 0; tries < kMostRedisTries; ++tries) {
      watch();
      const RedisListing there = list_redis_keys(connection_, address_, cancel_);
      if (!is_file(there) || replace(there)) return;
    }
    throw_redis_rivals("remove", address_);
  }

  void check_target(const RedisListing& there) {
    if (there.keys.empty()) return;
    if (!options_.overwrite) {
      throw Error(ErrorKind::SystemError,
                  "cannot save " + address_.label +
                      ": there is a file already, and option 'overwrite' is 'false'",
                  EEXIST);
    }
    if (!is_file(there)) check_outer(there.keys.front().name);
  }

 private:
  bool is_file(const RedisListing& there) const {
    return std::any_of(there.keys.begin(), there.keys.end(),
                       [&](const RedisKey& key) { return key.name == header_key_; });
  }

  // Throws if `key` may belong to a file with a shorter prefix. If that file has parts whose names
  // begin with the rest of our prefix, its keys look like ours.
  void check_outer(const std::string& key) {
    const std::string& prefix = address_.prefix;
    for (std::size_t colon = prefix.find(':'); colon != std::string::npos;
         colon = prefix.find(':', colon + 1)) {
      const std::string outer = prefix.substr(0, colon);
      connection_.add({"EXISTS", redis_header_key(outer)});
      connection_.send(cancel_);
      if (connection_.receive_number(cancel_) == 0) continue;
      throw Error(ErrorKind::InvalidArgument, "cannot save " + address_.label + ": key " +
                                                  quote(key) +
                                                  " may belong to the file whose prefix is " +
                                                  quote(outer) + ": choose another prefix");
    }
  }

  // Throws if a key of ours would look like one of a file with a longer prefix.
  void check_names(const RedisListing& there) {
    if (there.inner.empty()) return;
    for (const RedisMove& move : moves_) {
      if (!lies_under(move.to, there.inner)) continue;
      throw Error(ErrorKind::InvalidArgument,
                  "cannot save " + address_.label + ": key " + quote(move.to) +
                      " would lie among those of a file with a longer prefix: choose another one");
    }
  }

  // Watches the header's key and the written keys: the transaction does nothing if one of them
  // changes before it.
  void watch() {
    std::vector<std::string_view> names{header_key_};
    for (const RedisMove& move : moves_) names.push_back(move.from);
    const std::size_t commands = add_commands(connection_, "WATCH", names);
    connection_.send(cancel_);
    for (std::size_t i = 0; i < commands; ++i) connection_.receive_ok(cancel_);
  }

  void check_what_was_written() {
    std::vector<RedisKey> keys;
    keys.reserve(moves_.size());
    for (const RedisMove& move : moves_) keys.push_back({move.from, 0, 0});
    measure_redis_keys(connection_, keys, address_.label, cancel_);
    for (std::size_t i = 0; i < moves_.size(); ++i) {
      if (keys[i].size == moves_[i].size) continue;
      throw Error(ErrorKind::Unavailable, "cannot save " + address_.label + ": of the " +
                                              std::to_string(moves_[i].size) + " bytes for key " +
                                              quote(moves_[i].to) + ", the server has kept " +
                                              std::to_string(keys[i].size));
    }
  }

  // Runs the transaction. Returns false if another client has changed a watched key.
  bool replace(const RedisListing& there) {
    std::vector<std::string_view> old;
    for (const RedisKey& key : there.keys) old.push_back(key.name);
    connection_.add({"MULTI"});
    std::size_t commands = add_commands(connection_, "UNLINK", old);
    const std::string ttl = std::to_string(options_.ttl);
    for (const RedisMove& move : moves_) {
      connection_.add({"RENAME", move.from, move.to});
      if (options_.ttl > 0) {
        connection_.add({"EXPIRE", move.to, ttl});
      } else {
        connection_.add({"PERSIST", move.to});
      }
      commands += 2;
    }
    connection_.add({"EXEC"});
    try {
      return exec(commands);
    } catch (const TemporaryError& error) {
      throw RedisTransactionLost(error.kind(), std::string(error.message()), error.system_errno());
    }
  }

  bool exec(std::size_t commands) {
    connection_.send(cancel_);
    // The server replies QUEUED to each. After an error here, EXEC does nothing.
    for (std::size_t i = 0; i < commands + 1; ++i) connection_.receive_ok(cancel_);
    const RedisReply done = connection_.receive_any(cancel_);
    if (done.kind == RedisReply::Kind::Nothing) return false;
    if (done.kind == RedisReply::Kind::Error) throw_redis_error(done.text, address_.label);
    for (const RedisReply& reply : done.list) {
      if (reply.kind == RedisReply::Kind::Error) throw_redis_error(reply.text, address_.label);
    }
    return true;
  }

  RedisConnection& connection_;
  const RedisAddress& address_;
  const RedisOptions& options_;
  const std::span<const RedisMove> moves_;
  Cancel& cancel_;
  const RedactedQuotes quotes_;  // other clients may have named keys
  const std::string header_key_;
};

}  // namespace

void throw_redis_rivals(const std::string& doing, const RedisAddress& address) {
  throw Error(ErrorKind::Unavailable,
              "cannot " + doing + " " + address.label + ": other clients keep saving it");
}

void check_redis_target(RedisConnection& connection, const RedisAddress& address,
                        const RedisOptions& options, Cancel& cancel) {
  Commit(connection, address, options, {}, cancel)
      .check_target(list_redis_keys(connection, address, cancel));
}

void commit_redis_keys(RedisConnection& connection, const RedisAddress& address,
                       const RedisOptions& options, std::span<const RedisMove> moves,
                       Cancel& cancel) {
  Commit(connection, address, options, moves, cancel).run();
}

void remove_redis_keys(RedisConnection& connection, const RedisAddress& address, Cancel& cancel) {
  const RedisOptions options;
  Commit(connection, address, options, {}, cancel).remove();
}

std::size_t add_commands(RedisConnection& connection, std::string_view command,
                         std::span<const std::string_view> names) {
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < names.size(); begin += kNamesPerCommand, ++count) {
    const auto some = names.subspan(begin, std::min(kNamesPerCommand, names.size() - begin));
    std::vector<std::string_view> words{command};
    words.insert(words.end(), some.begin(), some.end());
    connection.add(words);
  }
  return count;
}

}  // namespace tensorizer
