#!/bin/sh
# Runs a command as a named step, and prints how long it took: step.sh NAME COMMAND...
name=$1
shift
printf '\n=== %s\n' "$name"
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
