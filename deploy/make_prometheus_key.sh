#!/bin/sh
# Creates an admin key with the name `prometheus` and writes it into a file, unless the file has one already.
# Usage: make_prometheus_key.sh FILE. Needs the command `penstock` and the settings of the store.
set -eu
file=$1
if [ -s "$file" ]; then
  exit 0
fi
# A key of this name whose file is gone cannot be shown again, so a new one replaces it.
penstock admin-keys rm prometheus >/dev/null 2>&1 || true
key=$(penstock admin-keys add --name prometheus)
# Prometheus has another user than this script, so the file is readable by all users who can reach its folder.
umask 022
printf '%s\n' "$key" > "$file.new"
mv "$file.new" "$file"
