"""Plants one bug after another in a copy of the sources, and has `simulate` find each.

    python tools/planted.py [WORD]

Builds the layers without torch (build/planted/tree). Prints which seed found each bug, and fails if
one was not found. With WORD, plants only the bugs whose descriptions have it.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from copied_tree import ROOT, ChangedTree

TREE = ChangedTree(ROOT / "build" / "planted" / "tree")
SEEDS = "1-20000"


@dataclass(frozen=True)
class Bug:
    what: str
    file: str
    right: str
    wrong: str


HTTP_BUGS = (
    Bug(
        "a load takes ranges of another version",
        "io/http/source.cpp",
        "source_.check_same(answer.object);",
        "",
    ),
    Bug(
        "a first answer that breaks off counts as whole",
        "io/http/source.cpp",
        """      answer = outcome.answer;
      if (!outcome.failure) {""",
        """      answer = outcome.answer;
      if (true) {""",
    ),
    Bug(
        "a load goes on behind the wrong byte after a break",
        "io/http/source.cpp",
        "brought += bytes.size();",
        "brought = bytes.size();",
    ),
    Bug(
        "a repeated removal fails because the file is gone",
        "io/http/operation.cpp",
        "(outcome.answer.status == 404 || outcome.answer.status == 410)",
        "false",
    ),
    Bug(
        "a refusal in place of a range is no failure",
        "io/http/source.cpp",
        "if (answer.status != 206) return false;",
        "",
    ),
    Bug(
        "a stalled server is waited for without end",
        "io/stall.h",
        "return seconds >= patience_;",
        "return false;",
    ),
    Bug("retries never end", "io/retry.h", "return count_ >= retries_;", "return false;"),
    Bug(
        "the last byte of an upload is not held back",
        "io/http/sink.cpp",
        "(may_end ? 0 : 1)",
        "0",
    ),
    Bug(
        "a refused upload counts as saved",
        "io/http/sink.cpp",
        "if (outcome.failure || status < 200 || status > 299)",
        "if (outcome.failure)",
    ),
    Bug(
        "an upload whose connection broke counts as saved",
        "io/http/sink.cpp",
        "if (outcome.failure || status < 200 || status > 299)",
        "if (!outcome.failure && status > 299)",
    ),
    Bug(
        "a retry sends the rest of a body",
        "io/http/operation.cpp",
        "if (request.body != nullptr) request.body->rewind();",
        "",
    ),
    Bug(
        "an upload in parts whose answer was lost counts as complete",
        "io/s3/sink.cpp",
        "is_stored(size, stored, 0, cancel);",
        "true;",
    ),
    Bug(
        "the parts of an aborted upload stay",
        "io/s3/sink.cpp",
        "constexpr int kMostRemovals = 3;",
        "constexpr int kMostRemovals = 0;",
    ),
    Bug(
        "any object of the same size is the one that was uploaded",
        "io/s3/receipt.cpp",
        'return answer.header("x-amz-checksum-crc32") == joined_crc32(parts);',
        "return true;",
    ),
    Bug(
        "a wrong clock is noticed only if the server says so",
        "io/s3/endpoint.cpp",
        "is_refused && code.empty() && is_skewed(request, answer);",
        "false;",
    ),
    Bug(
        "the blocks of a blob are listed backwards",
        "io/azure/sink.cpp",
        'text += "<Latest>" + id + "</Latest>";',
        'text.insert(text.find("<BlockList>") + 11, "<Latest>" + id + "</Latest>");',
    ),
    Bug(
        "an answer for one status is taken for another",
        "io/http/retry.cpp",
        "status == 500 || (status >= 502 && status <= 504)",
        "status == 500",
    ),
    Bug(
        "a server that does not tell whether an upload is complete is asked once",
        "io/s3/sink.cpp",
        "is_stored(size, stored, client_.options().retries, cancel)",
        "is_stored(size, stored, 0, cancel)",
    ),
)

REDIS_BUGS = (
    Bug(
        "a save over another one does not watch the header",
        "io/redis/commit.cpp",
        "std::vector<std::string_view> names{header_key_};",
        "std::vector<std::string_view> names;",
    ),
    Bug(
        "the header appears before the transaction",
        "io/redis/commit.cpp",
        'connection_.add({"MULTI"});',
        """if (!moves_.empty()) {
      connection_.add({"RENAME", moves_[0].from, moves_[0].to});
      connection_.send(cancel_);
      connection_.receive_ok(cancel_);
    }
    connection_.add({"MULTI"});""",
    ),
    Bug(
        "keys of the old file stay",
        "io/redis/commit.cpp",
        'add_commands(connection_, "UNLINK", old);',
        "0;",
    ),
    Bug(
        "a transaction that did nothing counts as saved",
        "io/redis/commit.cpp",
        "Kind::Nothing) return false;",
        "Kind::Nothing) return true;",
    ),
    Bug(
        "a saved file expires within a day",
        "io/redis/commit.cpp",
        'connection_.add({"PERSIST", move.to});',
        'connection_.add({"STRLEN", move.to});',
    ),
    Bug(
        "keys whose bytes are missing are renamed",
        "io/redis/commit.cpp",
        """      check_what_was_written();
""",
        "",
    ),
    Bug(
        "broken connections are not ended before their keys are removed",
        "io/redis/sink.cpp",
        'for (const std::string& id : broken_) connection.add({"CLIENT", "KILL", "ID", id});',
        'for (const auto& id : broken_) connection.add({"CLIENT", "ID"});',
    ),
    Bug(
        "a transaction whose answer was lost counts as saved",
        "io/redis/sink.cpp",
        "const std::optional<bool> moved = have_moved(moves, cancel);",
        "const std::optional<bool> moved = true;",
    ),
    Bug(
        "an evicted key is filled with zeros",
        "io/redis/sink.cpp",
        "if (was_there) return;",
        "return;",
    ),
    Bug(
        "a stalled Redis is waited for without end",
        "io/redis/connection.cpp",
        "if (watch_.has_stalled(moved_)) {",
        "if (false) {",
    ),
    Bug(
        "a read does not ask whether the file was replaced",
        "io/redis/source.cpp",
        "if (hear_whether_replaced(connection, cancel)) throw_replaced();",
        "hear_whether_replaced(connection, cancel);",
    ),
    Bug(
        "a new connection does not ask whether the file was replaced",
        "io/redis/source.cpp",
        """    ask_guard(cancel);
    return connection;""",
        "    return connection;",
    ),
    Bug(
        "nobody watches between two commands of a listing",
        "io/redis/source.cpp",
        "client_.idle().give_back(std::move(next));",
        "",
    ),
    Bug(
        "a retry reads from the beginning",
        "io/redis/source.cpp",
        "fetch(offset + done(), offset + length, cursor, cancel);",
        "fetch(offset, offset + length - done(), cursor, cancel);",
    ),
    Bug(
        "a file with a longer prefix is part of this one",
        "io/redis/keys.cpp",
        " || lies_under(name, listing.inner)",
        "",
    ),
    Bug(
        "a transaction that a busy server refuses is no reason to retry",
        "io/redis/reply.cpp",
        "if (text.starts_with(kAborted)) text.remove_prefix(kAborted.size());",
        "",
    ),
    Bug(
        "the keys of an abandoned save stay",
        "io/redis/sink.cpp",
        "if (keys.empty()) return;",
        "return;",
    ),
    Bug(
        "a read whose connection breaks leaves no doubt",
        "io/redis/source.cpp",
        "is_guard_in_doubt_ = true;",
        "",
    ),
    Bug(
        "a guard in doubt is not asked",
        "io/redis/source.cpp",
        "if (is_replaced(*next, cancel)) throw_replaced();",
        "if (!is_in_doubt && is_replaced(*next, cancel)) throw_replaced();",
    ),
    Bug(
        "a lost transaction that has not run counts as run",
        "io/redis/sink.cpp",
        "if (removed > 0) return false;",
        "",
    ),
    Bug(
        "a removal does not notice a file that was saved meanwhile",
        "io/redis/commit.cpp",
        "if (!is_file(there) || replace(there)) return;",
        """if (is_file(there)) replace(there);
      return;""",
    ),
)

UPDATE_BUGS = (
    Bug(
        "an update fetches what the local file has",
        "engine/rewrite/patched_source.cpp",
        "if (found != offsets.end()) common_",
        "if (false) common_",
    ),
    Bug(
        "an update fetches what follows a chunk that the local file lacks",
        "engine/rewrite/patched_source.cpp",
        ": common->offset;",
        ": offset + out.size();",
    ),
    Bug(
        "an update takes a stale answer for a chunk",
        "engine/digest/check.cpp",
        "if (!right) wrong(at, chunk);",
        "static_cast<void>(right);",
    ),
    Bug(
        "an update that fails replaces the file",
        "engine/save/save.cpp",
        "  write_file(sink, layout, items, settings, progress, cancel);",
        """  try {
    write_file(sink, layout, items, settings, progress, cancel);
  } catch (...) {
    sink.finish(layout.file_size(), cancel);
    throw;
  }""",
    ),
)

DELTA_BUGS = (
    Bug(
        "the blocks of a base are not compared",
        "engine/delta/apply_delta.cpp",
        "if (window_.digests[i] == changes_.table()[first + i].base) continue;",
        "if (window_.digests[i] != Digest{}) continue;",
    ),
    Bug(
        "the digest of a base is not compared",
        "engine/delta/apply_delta.cpp",
        'if (base_digests_.model_digest(cancel()) != ends_.base) refuse_base("");',
        "",
    ),
    Bug(
        "the blocks that a delta makes are not compared",
        "engine/delta/changed_blocks.cpp",
        "if (window.digests[i] == table_[first + i].target) continue;",
        "if (window.digests[i] != Digest{}) continue;",
    ),
    Bug(
        "the digest of the model that a delta makes is not compared",
        "engine/delta/apply_delta.cpp",
        "if (model_digest(std::move(tensors), cancel()) != ends_.target) {",
        "if (false) {",
    ),
    Bug(
        "a delta that cannot be applied replaces the file",
        "engine/save/save.cpp",
        "  write_file(sink, layout, items, settings, progress, cancel);",
        """  try {
    write_file(sink, layout, items, settings, progress, cancel);
  } catch (...) {
    sink.finish(layout.file_size(), cancel);
    throw;
  }""",
    ),
    Bug(
        "the changes of all blocks are read from the first one",
        "engine/delta/changed_blocks.cpp",
        "taken_ += size;",
        "",
    ),
    Bug(
        "changes that were not kept are made again from where the last ones end",
        "engine/delta/make_delta.cpp",
        "      pairs_.restart();",
        "",
    ),
)

SWAP_BUGS = (
    Bug(
        "a file is replaced without a condition",
        "io/http/swap.cpp",
        'operation.request.headers.end(), {condition, "Expect:"}',
        'operation.request.headers.end(), {"Expect:"}',
    ),
    Bug(
        "a file is replaced that is not the known one",
        "io/http/swap.cpp",
        "if (!there || there->text != as_text(*known)) return false;",
        "if (!there) return false;",
    ),
    Bug(
        "a refusal is believed after a response that was lost",
        "io/http/swap.cpp",
        "    return is_there();\n  }\n\n private:",
        "    return false;\n  }\n\n private:",
    ),
    Bug(
        "a refusal counts as a success",
        "io/http/swap.cpp",
        "return !refused;",
        "return true;",
    ),
    Bug(
        "a key is replaced that nobody watches",
        "io/redis/open.cpp",
        'connection.add({"WATCH", key});',
        'connection.add({"WATCH", "other"});',
    ),
    Bug(
        "a transaction counts that has not run",
        "io/redis/open.cpp",
        "if (done.kind == RedisReply::Kind::Nothing) return std::nullopt;",
        "",
    ),
    Bug(
        "a transaction of the save itself is not recognized",
        "io/redis/open.cpp",
        "if (exists && there.text == as_text(next)) return true;",
        "",
    ),
)

SIGNED_BUGS = (
    Bug(
        "a part of a shard is given out before the shard is compared",
        "io/signed/signed_source.cpp",
        "check(first, all, cancel);",
        "if (edges.empty()) check(first, all, cancel);",
    ),
    Bug(
        "what is read anew counts as signed",
        "io/signed/signed_source.cpp",
        "if (is_signed(first + i, digests[i])) {",
        "if (true) {",
    ),
    Bug(
        "the bundle is read again for the second file",
        "io/signed/open.cpp",
        "access ? access->get<JobBundle>(&make_bundle) : make_bundle();",
        "make_bundle();",
    ),
    Bug(
        "what is left of a file that was signed in whole is not compared",
        "io/signed/one_pass_source.cpp",
        "while (frontier_ < size_) {",
        "while (false) {",
    ),
    Bug(
        "bytes of a file that was signed in whole may change before they are read again",
        "io/signed/one_pass_source.cpp",
        "if (states[i].finish() == blocks[i].after) continue;",
        "continue;",
    ),
)

LOADS = ("http-load", "s3-load", "azure-load")
SAVES = ("http-save", "s3-save", "azure-save")
REDIS_CASES = ("redis-load", "redis-save", "redis-remove")
UPDATE_CASES = ("http-update", "s3-update", "redis-update")
SWAP_CASES = ("http-swap", "s3-swap", "azure-swap", "redis-swap")
DELTA_CASES = ("http-apply", "s3-apply", "redis-apply", "http-delta", "s3-delta", "redis-delta")
SIGNED_CASES = ("http-signed", "http-whole", "s3-signed", "s3-whole", "redis-signed")
# The cases that find each bug. Each gets all seeds.
CASES: dict[Bug, tuple[str, ...]] = (
    dict.fromkeys(HTTP_BUGS, (*LOADS, *SAVES, "http-remove"))
    | dict.fromkeys(REDIS_BUGS, REDIS_CASES)
    | dict.fromkeys(UPDATE_BUGS, UPDATE_CASES)
    | dict.fromkeys(DELTA_BUGS, DELTA_CASES)
    | dict.fromkeys(SWAP_BUGS, SWAP_CASES)
    | dict.fromkeys(SIGNED_BUGS, SIGNED_CASES)
)


def build() -> None:
    if (done := TREE.make("simulate")).returncode != 0:
        sys.exit(done.stdout)


def simulate(*words: str) -> str:
    """Return what the simulation prints; nothing if it finds no broken promise."""
    done = TREE.run(str(TREE.build / "simulate"), SEEDS, *words)
    return done.stdout if done.returncode != 0 else ""


def find(bug: Bug) -> str:
    name = f"csrc/{bug.file}"
    original = (TREE.tree / name).read_text()
    if original.count(bug.right) != 1:
        sys.exit(f"{bug.file} has {original.count(bug.right)} times: {bug.right}")
    with TREE.changed(name, original.replace(bug.right, bug.wrong)):
        build()
        return next(filter(None, (simulate("--case", case) for case in CASES[bug])), "")


def main() -> None:
    TREE.prepare()
    build()
    if said := simulate():
        sys.exit("the simulation fails without a bug\n" + said)
    missed = 0
    for bug in CASES:
        if len(sys.argv) > 1 and sys.argv[1] not in bug.what:
            continue
        begin = time.monotonic()
        said = find(bug)
        missed += not said
        seconds = time.monotonic() - begin
        first = said.partition("\n")[0] or "NOT FOUND"
        print(f"{bug.what} ({bug.file}): {first}, {seconds:.0f} s", flush=True)
    sys.exit(f"{missed} bugs were not found" if missed else None)


if __name__ == "__main__":
    main()
