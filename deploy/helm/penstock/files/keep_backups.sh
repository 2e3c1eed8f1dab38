#!/bin/sh
# Makes a copy of the store named after the time, and removes the oldest copies.
# Usage: keep_backups.sh DATA FOLDER KEEP. DATA is the store's folder (backup_store.sh), and FOLDER keeps the KEEP newest
# copies, such as store-2026-11-28T083000Z. If the new copy fails, no old one is removed.
set -eu
data=$1 folder=$2 keep=$3
case $keep in
  '' | 0* | *[!0-9]*) echo "KEEP=$keep is not a number from 1" >&2; exit 1 ;;
esac
# A copy that lost its power or was killed cannot remove its part.
[ ! -d "$folder" ] || find "$folder" -maxdepth 1 -type d -name 'store-*Z.part' -exec rm -rf {} +
copy="$folder/store-$(date -u +%Y-%m-%dT%H%M%SZ)"
sh "$(dirname "$0")/backup_store.sh" "$data" "$copy"
echo "copied to $copy"
# The names sort by time. The new copy stays although the clock may have gone back.
count=$(find "$folder" -maxdepth 1 -type d -name 'store-*Z' | wc -l)
find "$folder" -maxdepth 1 -type d -name 'store-*Z' ! -name "${copy##*/}" | sort | while read -r old; do
  [ "$count" -gt "$keep" ] || break
  rm -rf "$old"
  echo "removed $old"
  count=$((count - 1))
done
