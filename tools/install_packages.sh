#!/bin/sh
# Installs the Debian packages in the given lists that the machine lacks.
set -eu

if ! command -v apt-get >/dev/null; then
    echo "This is not Debian: the equivalents of the packages in $* must be installed already."
    exit 0
fi
missing=""
for package in $(cat "$@"); do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

as_root=""
[ "$(id -u)" = 0 ] || as_root=sudo
echo "Installing$missing"
$as_root apt-get update -qq
# shellcheck disable=SC2086  # these are lists of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    $missing >/dev/null
