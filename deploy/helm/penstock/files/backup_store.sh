#!/bin/sh
# Copies the append-only file of a running store, so that a store that is started on the copy has all data of one moment.
# Usage: backup_store.sh DATA COPY. DATA is the store's folder, which has `appendonlydir`. COPY is a folder that does not
# exist yet.
#
# The file consists of parts, which a manifest lists. The server replaces parts only when it rewrites the file, and it
# changes the manifest when a rewrite begins and when it ends. So if the manifest is the same before and after, the copied
# parts belong together. The last part may end in the middle of a write: the server reads it as after a crash, and leaves
# out the incomplete command at its end, together with all other writes of the same script.
set -eu
data=$1 copy=$2
[ -d "$data/appendonlydir" ] || { echo "$data has no appendonlydir: this is not the store's folder" >&2; exit 1; }
[ ! -e "$copy" ] || { echo "$copy exists already" >&2; exit 1; }

umask 077
trap 'rm -rf "$copy.part"' EXIT
trap 'exit 1' HUP INT TERM
for try in 1 2 3 4 5; do
  rm -rf "$copy.part"
  mkdir -p "$copy.part"
  cat "$data"/appendonlydir/*.manifest > "$copy.part/manifest"
  # A part that is removed during the copy makes it fail.
  if cp -R "$data/appendonlydir" "$copy.part/" &&
    cmp -s "$copy.part/manifest" "$data"/appendonlydir/*.manifest &&
    cmp -s "$copy.part/manifest" "$copy.part"/appendonlydir/*.manifest; then
    rm "$copy.part/manifest"
    mv "$copy.part" "$copy"
    exit 0
  fi
  echo "the store rewrote its file during the copy (try $try of 5)" >&2
done
echo "nothing was copied; try again when the store has less to do" >&2
exit 1
