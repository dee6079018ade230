#!/bin/sh
# Runs a command as a named step, and prints how long it took: step.sh NAME COMMAND...
# Its temporary files, also those of processes that are killed, are in a folder that is removed.
name=$1
shift
printf '\n=== %s\n' "$name"
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/XXXXXX") # short, for paths of sockets
chmod 755 "$TMPDIR" # some tests become another user
TEST_TMPDIR=$TMPDIR # for GoogleTest
export TMPDIR TEST_TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
trap 'exit 130' INT TERM
start=$(date +%s)
"$@"
status=$?
seconds=$(($(date +%s) - start))
if [ $status -eq 0 ]; then
    echo "=== $name: $seconds s"
else
    echo "=== $name: failed after $seconds s"
fi
exit $status
