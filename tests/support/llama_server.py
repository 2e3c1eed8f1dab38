"""A real llama-server, if LLAMA_SERVER names one: a binary, or `xllamacpp`, the package that has the same server.

`python -m bench.engine_peers --build FOLDER` builds a binary. The package is in the group `bench`.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import httpx

from tests.support.ports import free_port
from tests.support.processes import wait_for

#: The binary, `xllamacpp`, or "" without one.
LLAMA_SERVER = os.environ.get("LLAMA_SERVER", "")
WHY_SKIPPED = "LLAMA_SERVER names no llama-server: make test-upstream runs one"


class LlamaServer:
    """One server, on the same port each time it is started."""

    def __init__(
        self, model: Path, folder: Path, *, slots: int = 4, ctx: int = 2048, more: tuple[str, ...] = ()
    ) -> None:
        self.port, self._log = free_port(), folder / f"llama-server-{model.stem}.log"
        # One client for all calls: to create one takes longer than a cancel may take.
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30)
        self._environ = os.environ | {"OMP_WAIT_POLICY": "passive"}
        if LLAMA_SERVER == "xllamacpp":
            command = [sys.executable, "-m", "tests.support.xllamacpp_server"]
        else:
            # Only a binary needs the libraries with which it was linked.
            import llama_cpp

            command = [LLAMA_SERVER]
            self._environ["LD_LIBRARY_PATH"] = str(Path(llama_cpp.__file__).parent / "lib")
        options = {"--model": str(model), "--host": "127.0.0.1", "--port": str(self.port), "--parallel": str(slots)}
        options |= {"--ctx-size": str(ctx * slots), "--threads": "2", "--cache-ram": "0", "--fit": "off"}
        flags = ("--no-kv-unified", "--no-warmup", "--no-repack", *more)
        self._arguments = [*command, *(word for pair in options.items() for word in pair), *flags]
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._http.close()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._popen = subprocess.Popen(self._arguments, env=self._environ, stdout=log, stderr=log)
        wait_for(self._is_ready, f"llama-server to serve ({self._log})", timeout_s=60)

    def kill(self) -> None:
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
            self._popen = None

    def busy_slots(self) -> int:
        """Return how many slots compute an answer."""
        return sum(slot["is_processing"] for slot in self._http.get("/slots").json())

    def token_of(self, text: str) -> int:
        """Return the id of the token for a text that has only one."""
        (token,) = self._http.post("/tokenize", json={"content": text}).json()["tokens"]
        return int(token)

    def pause(self) -> None:
        assert self._popen is not None
        self._popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._popen is not None
        self._popen.send_signal(signal.SIGCONT)

    def _is_ready(self) -> bool:
        assert self._popen is not None
        assert self._popen.poll() is None, self._log.read_text(errors="replace")[-2000:]
        try:
            return self._http.get("/health", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False
