#include "transfer/files/load_counters.h"

#include <cstdio>
#include <string>
#include <utility>

#include "base/log.h"

namespace tensorizer {

namespace {

// Says where the time of a load from a server went, for the log.
std::string describe_load(const std::string& label, const Progress& progress, double seconds,
                          const SourceStats& source) {
  char text[400];
  std::snprintf(text, sizeof(text),
                ": %.1f MiB in %.3f s; %llu requests over %llu new connections, %llu tried again; "
                "seconds of all connections together: look-up %.3f, connect %.3f, TLS %.3f, first "
                "byte %.3f, transfer %.3f; of all threads: verify %.3f, copy %.3f, decrypt %.3f",
                static_cast<double>(progress.total) / (1 << 20), seconds,
                static_cast<unsigned long long>(source.requests),
                static_cast<unsigned long long>(source.connections),
                static_cast<unsigned long long>(source.retries), source.lookup, source.connect,
                source.tls, source.first_byte, source.transfer, progress.computed.digests,
                progress.computed.copies, progress.computed.ciphers);
  return "loaded " + label + text;
}

}  // namespace

void LoadCounters::add(const Source& source, const Progress& progress, std::size_t tensors,
                       double seconds) {
  std::unique_lock lock(mutex_);
  stats_.loads += 1;
  stats_.tensors += tensors;
  stats_.bytes += progress.total;
  stats_.seconds += seconds;
  stats_.digest_seconds += progress.computed.digests;
  stats_.copy_seconds += progress.computed.copies;
  stats_.cipher_seconds += progress.computed.ciphers;
  const SourceStats now = source.stats();
  const SourceStats since = now - std::exchange(logged_, now);
  lock.unlock();
  if (since.requests == 0 || !is_logged()) return;
  log(describe_load(source.label(), progress, seconds, since));
}

LoadStats LoadCounters::stats(const SourceStats& source) const {
  const std::lock_guard lock(mutex_);
  LoadStats stats = stats_;
  stats.requests = source.requests;
  stats.connections = source.connections;
  stats.retries = source.retries;
  stats.received = source.received;
  stats.lookup_seconds = source.lookup;
  stats.connect_seconds = source.connect;
  stats.tls_seconds = source.tls;
  stats.first_byte_seconds = source.first_byte;
  stats.transfer_seconds = source.transfer;
  return stats;
}

}  // namespace tensorizer
