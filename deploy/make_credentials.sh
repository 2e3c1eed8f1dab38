#!/bin/sh
# Creates the store's password at the first start: an ACL file for the store, and a file with the URL for the others.
# Usage: make_credentials.sh TEMPLATE ACL_FOLDER URL_FOLDER HOST [PREFIXES [URL_FILE]]. A later start keeps the password
# that exists. PREFIXES are those of the store's cells (PENSTOCK_KEY_PREFIX), separated by spaces: the user then reaches
# only the keys that begin with one of them. URL_FILE is the redis-url of another cell, whose password is used here too.
set -eu
template=$1 acl_folder=$2 url_folder=$3 host=$4 prefixes=${5:-} url_file=${6:-}
case $prefixes in
  *[!A-Za-z0-9_.:{}\ -]*) echo "$prefixes cannot be key prefixes" >&2; exit 1 ;;
esac
if [ -s "$acl_folder/users.acl" ] && [ -s "$url_folder/redis-url" ]; then
  exit 0
fi
if [ -n "$url_file" ]; then
  password=$(sed -n 's|^redis://penstock:\([0-9a-f]\{64\}\)@.*|\1|p' "$url_file")
  [ -n "$password" ] || { echo "$url_file has no URL that this program has written" >&2; exit 1; }
else
  password=$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
fi
digest=$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)
keys='' channels=''
[ -n "$prefixes" ] || prefixes=none
for prefix in $prefixes; do
  [ "$prefix" != none ] || prefix=''
  keys="$keys ~${prefix}penstock:* ~${prefix}rq:*" channels="$channels \\&${prefix}rq:*"
done
# Each folder is a volume that is mounted only where its file is needed. The users of the containers differ from the
# user of this script, so the files are readable by all users who can reach them.
umask 022
sed "s/PASSWORD_SHA256/$digest/; s/ ~penstock:\* ~rq:\*/$keys/; s/ &rq:\*/$channels/" "$template" > "$acl_folder/users.acl"
printf 'redis://penstock:%s@%s/0\n' "$password" "$host" > "$url_folder/redis-url"
