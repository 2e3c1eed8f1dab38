#!/bin/sh
# Creates the store's password at the first start: an ACL file for the store, and a file with the URL for the others.
# Usage: make_credentials.sh TEMPLATE ACL_FOLDER URL_FOLDER HOST [PREFIX]. A later start keeps the password that exists.
# PREFIX is PENSTOCK_KEY_PREFIX: the user then reaches only the keys that begin with it.
set -eu
template=$1 acl_folder=$2 url_folder=$3 host=$4 prefix=${5:-}
case $prefix in
  *[!A-Za-z0-9_.:{}-]*) echo "$prefix cannot be a key prefix" >&2; exit 1 ;;
esac
if [ -s "$acl_folder/users.acl" ] && [ -s "$url_folder/redis-url" ]; then
  exit 0
fi
password=$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
digest=$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)
# Each folder is a volume that is mounted only where its file is needed. The users of the containers differ from the
# user of this script, so the files are readable by all users who can reach them.
umask 022
sed "s/PASSWORD_SHA256/$digest/; s/\([~&]\)\(penstock\|rq\):/\1$prefix\2:/g" "$template" > "$acl_folder/users.acl"
printf 'redis://penstock:%s@%s/0\n' "$password" "$host" > "$url_folder/redis-url"
