#!/bin/sh
# Copies the append-only file of a running store, so that a store that is started on the copy has all data of one moment.
# Usage: backup_store.sh DATA COPY [CLIENT...]. DATA is the store's folder, which has `appendonlydir`. COPY is a folder
# that does not exist yet. CLIENT is the command that sends a command to the store as its administrator (valkey-cli).
set -eu
data=$1 copy=$2
shift 2
[ $# -gt 0 ] || set -- valkey-cli
[ -d "$data/appendonlydir" ] || { echo "$data has no appendonlydir: this is not the store's folder" >&2; exit 1; }
[ ! -e "$copy" ] || { echo "$copy exists already" >&2; exit 1; }

# While the server rewrites its file, it replaces the parts that are copied, so no rewrite may begin until the copy is
# complete. The server then reads the copy as after a crash: it leaves out an incomplete command at its end, and with it
# all writes of the script that it belongs to.
percentage=$("$@" CONFIG GET auto-aof-rewrite-percentage | tail -n 1)
restore() {
  "$@" CONFIG SET auto-aof-rewrite-percentage "$percentage" >/dev/null
}
trap 'restore "$@"' EXIT
trap 'exit 1' HUP INT TERM
"$@" CONFIG SET auto-aof-rewrite-percentage 0 >/dev/null
while "$@" INFO persistence | grep -q '^aof_rewrite_\(in_progress\|scheduled\):1'; do
  sleep 1
done

umask 077
mkdir -p "$copy.part"
cp -R "$data/appendonlydir" "$copy.part/"
# Somebody may have begun a rewrite by hand. It replaces the list of the parts.
cmp -s "$data"/appendonlydir/*.manifest "$copy.part"/appendonlydir/*.manifest || {
  rm -rf "$copy.part"
  echo "the store rewrote its file during the copy; run this program again" >&2
  exit 1
}
mv "$copy.part" "$copy"
