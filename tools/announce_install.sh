#!/usr/bin/env bash
# Says what `make install` and `make up` are about to do, before they do it.
# Usage: announce_install.sh cpu|cuda|rocm|vulkan|metal|none [UPSTREAM]
set -euo pipefail

gpu=${1:?usage: announce_install.sh cpu|cuda|rocm|vulkan|metal|none [UPSTREAM]}
upstream=${2:-}

if [ "$gpu" = none ]; then
    echo 'This installs Penstock without llama.cpp into .venv, which takes about a minute. Nothing is compiled.'
    echo "Workers pass their jobs to ${upstream:-the server that PENSTOCK_UPSTREAM_URL names, or make up UPSTREAM=URL}."
else
    echo "This installs Penstock into .venv, and builds llama.cpp for $gpu unless pip has built it before."
    case $gpu in
        cpu) echo 'The build takes four minutes on two free cores, and longer where others use them.' ;;
        *) echo "A build for $gpu takes several times as long as the four minutes of a build for two CPU cores." ;;
    esac
    echo 'To use a server that computes already instead: GPU=none make up UPSTREAM=http://127.0.0.1:8080/v1'
fi
