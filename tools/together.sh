#!/bin/sh
# Runs two commands side by side: together.sh COMMAND COMMAND
# Fails if one of them fails. What the first one prints comes last.
set -u
output=$(mktemp)
trap 'rm -f "$output"' EXIT
sh -c "$1" >"$output" 2>&1 &
status=0
sh -c "$2" || status=$?
wait $! || status=$?
cat "$output"
exit $status
