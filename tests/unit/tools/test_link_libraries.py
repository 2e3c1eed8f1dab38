"""Tests that copies of a shared library become links to one file."""

from pathlib import Path

from tools.link_libraries import link


def test_each_library_is_kept_once_under_the_name_with_its_whole_version(tmp_path: Path) -> None:
    for folder in ("lib", "llama_cpp/lib"):
        (tmp_path / folder).mkdir(parents=True)
        for library, content in (("libggml", b"g" * 1000), ("libllama", b"l" * 10)):
            for ending in (".so", ".so.0", ".so.0.25.3"):
                (tmp_path / folder / f"{library}{ending}").write_bytes(content)
    (tmp_path / "lib" / "libcommon.so").write_bytes(b"only here")
    assert link(tmp_path) == 5 * 1000 + 5 * 10
    kept = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.so*") if not path.is_symlink())
    assert kept == ["lib/libcommon.so", "llama_cpp/lib/libggml.so.0.25.3", "llama_cpp/lib/libllama.so.0.25.3"]
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert (moved / "lib" / "libggml.so.0").read_bytes() == b"g" * 1000
    assert (moved / "llama_cpp" / "lib" / "libllama.so").read_bytes() == b"l" * 10
    assert link(moved) == 0


def test_a_folder_without_these_libraries_is_left_as_it_is(tmp_path: Path) -> None:
    assert link(tmp_path) == 0
