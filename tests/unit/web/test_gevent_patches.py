"""The patches of gevent are all applied, and packages that subscribe to them are still found."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
from importlib import metadata
find = metadata.entry_points
from web.server import gevent_patches
gevent_patches.apply()
gevent_patches.apply()
from gevent import monkey
assert metadata.entry_points is find
print([name for name in ("socket", "ssl", "threading", "time", "subprocess") if not monkey.is_module_patched(name)])
"""


def test_the_standard_library_is_patched_once_and_a_package_that_subscribes_is_told(tmp_path: Path) -> None:
    described = tmp_path / "told-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: told\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[gevent.plugins.monkey.did_patch_all]\ntell = told:tell\n")
    (tmp_path / "told.py").write_text("def tell(event):\n    print(type(event).__name__)\n")
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("GeventDidPatchAllEvent\n[]\n", "")
