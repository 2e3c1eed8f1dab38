"""Replaces copies of shared libraries by links: python tools/link_libraries.py SITE_PACKAGES. The images run it.

A wheel cannot hold links, so that of llama-cpp-python has each library under its three names in two folders: a library
with kernels for CUDA takes gigabytes that way.
"""

import hashlib
import os
import sys
from pathlib import Path

#: The folder whose copy stays, because `llama_cpp` loads its libraries from there, and the other one.
_FOLDERS = ("llama_cpp/lib", "lib")


def link(site_packages: Path) -> int:
    """Keep one file for each library, and make its copies relative links to it. Return how many bytes that frees."""
    kept: dict[bytes, Path] = {}
    freed = 0
    for folder in _FOLDERS:
        # The longest name is the one with the whole version.
        for path in sorted((site_packages / folder).glob("*.so*"), key=lambda path: (-len(path.name), path.name)):
            if path.is_symlink() or not path.is_file():
                continue
            digest = hashlib.sha256(path.read_bytes()).digest()
            original = kept.setdefault(digest, path)
            if original is not path:
                freed += path.stat().st_size
                path.unlink()
                path.symlink_to(os.path.relpath(original, path.parent))
    return freed


if __name__ == "__main__":
    sys.stdout.write(f"links instead of copies of libraries free {link(Path(sys.argv[1])) / 2**20:.0f} MiB\n")
