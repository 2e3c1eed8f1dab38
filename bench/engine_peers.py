"""(d) A C++ llama.cpp HTTP server with the same number of slots: a built `llama-server`, or the one in `xllamacpp`.

`python -m bench.engine_peers --build FOLDER` builds `llama-server` from the llama.cpp source of the installed
llama-cpp-python, with the same (native) instructions and the same libraries. That takes half an hour on two cores.
Without a built server, the benchmark uses `xllamacpp` (bench group), whose wheel supports AVX2 and nothing newer.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import time
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path

import llama_cpp
import psutil

from bench.engine_stack import free_port
from workers.engine.backend import Facts
from workers.engine.llama.load import ModelShape, is_quantized
from workers.engine.sizing import Sizes
from workers.gguf_header import read_local_header
from workers.plan.layout import layout_of

#: Substrings that identify the server's object files among the targets of llama.cpp's build.
_PARTS = ("common/", "tools/server/", "cpp-httplib", "tools/ui")
_OPTIONS = ("TESTS=OFF", "EXAMPLES=OFF", "UI=OFF", "APP=OFF")


class Peer:
    """One server on loopback. It splits its KV cache as the worker does and has no additional prompt cache in RAM."""

    def __init__(
        self, model: Path, facts: Facts, server: Path | None, log: Path, *, backend_sampling: bool = False
    ) -> None:
        """Start the server. With `backend_sampling`, `llama-server` chooses tokens where the model computes."""
        self.name = "llama-server" if server else f"xllamacpp {version('xllamacpp')}"
        self.port = free_port()
        environ = os.environ | {"OMP_WAIT_POLICY": "passive"}
        if server:
            libraries = Path(llama_cpp.__file__).parent / "lib"
            environ["LD_LIBRARY_PATH"] = f"{server.parent}:{libraries}"
        arguments = _llama_server(server, model, facts, self.port) if server else _xllamacpp(model, facts, self.port)
        if server and backend_sampling:
            self.name += " -bs"
            arguments.append("--backend-sampling")
        with log.open("ab") as output:
            self._popen = subprocess.Popen(arguments, env=environ, stdout=output, stderr=output)
        self.processes = {"server": psutil.Process(self._popen.pid)}
        until = time.monotonic() + 120
        while not self._ready():
            if self._popen.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{self.name} did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.05)

    def _ready(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def close(self) -> None:
        """Kill the server."""
        self._popen.kill()
        self._popen.wait()


def _llama_server(server: Path, model: Path, facts: Facts, port: int) -> list[str]:
    shape = _shape(model, facts)
    batch, physical = map(str, shape.batch_rows)
    options = {
        "--model": str(model),
        "--host": "127.0.0.1",
        "--port": str(port),
        "--parallel": str(facts.slots),
        "--ctx-size": str(facts.cells),
        "--batch-size": batch,
        "--ubatch-size": physical,
        "--threads": str(facts.threads),
        "--threads-batch": str(facts.threads),
        "--flash-attn": "on" if shape.flash_attention else "off",
        "--cache-ram": "0",
        "--log-verbosity": "0",
        "--fit": "off",
    }
    # The worker does not repack weights either, on CPUs with matrix tiles (docs/engine.md).
    flags = ["--no-repack", "--no-warmup", "--kv-unified" if facts.cache == "shared" else "--no-kv-unified"]
    return [str(server), *(word for pair in options.items() for word in pair), *flags]


def _xllamacpp(model: Path, facts: Facts, port: int) -> list[str]:
    shape = _shape(model, facts)
    batch, physical = shape.batch_rows
    flash = "on" if shape.flash_attention else "off"
    words = (facts.slots, facts.cells, batch, physical, facts.threads, facts.cache, flash)
    arguments = ["--serve", str(model), str(port), ",".join(map(str, words))]
    return [sys.executable, "-m", "bench.engine_peers", *arguments]


def _shape(model: Path, facts: Facts) -> ModelShape:
    """Return the shape of the worker's context, which says whether it uses flash attention."""
    layout = layout_of([read_local_header(model)])
    quantized = is_quantized(layout.weights_bytes, layout.parameters)
    sizes = Sizes(facts.slots, facts.cells, facts.n_ctx)
    return ModelShape(sizes, facts.prefill_chunk, facts.threads, "f16", gpu=False, quantized=quantized)


def _serve(model: str, port: str, shape: str) -> None:
    """Run xllamacpp's server until the process is killed."""
    import xllamacpp  # noqa: PLC0415 - it loads another build of llama.cpp, which must not share a process with ours

    slots, cells, batch, physical, threads, cache, flash = shape.split(",")
    params = xllamacpp.CommonParams()
    params.model.path, params.port = model, int(port)
    params.n_parallel, params.n_ctx = int(slots), int(cells)
    params.n_batch, params.n_ubatch = int(batch), int(physical)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    kinds = xllamacpp.llama_flash_attn_type
    params.flash_attn_type = (
        kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash == "on" else kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    params.kv_unified = cache == "shared"
    params.no_extra_bufts = True
    params.cache_ram_mib = 0
    params.warmup = params.fit_params = False
    params.no_perf = True
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, xllamacpp.get_system_info(), flush=True)
    while True:
        time.sleep(3600)


def _build(folder: Path) -> Path:
    """Build the server and link it with the libraries of the installed llama-cpp-python."""
    for name in ("cmake", "ninja"):
        if not Path(_tool(name)).exists():
            raise SystemExit(f"{name} is not installed; run `make .venv/stamps/bench` first")
    # The linker runs in another folder.
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    package = f"llama-cpp-python=={version('llama-cpp-python')}"
    # pip asks the source for its metadata, and installs its build backend in an environment of its own for that.
    download = ["-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python"]
    subprocess.run([sys.executable, *download, "-d", str(folder), package], check=True)
    with tarfile.open(next(folder.glob("llama_cpp_python-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    source = next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))
    made = folder / "made"
    options = [f"-DLLAMA_BUILD_{option}" for option in _OPTIONS]
    cmake = [_tool("cmake"), "-S", str(source), "-B", str(made), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
    cmake.append(f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}")
    subprocess.run([*cmake, *options, "-DLLAMA_OPENSSL=OFF"], check=True)
    listed = subprocess.run(
        [_tool("ninja"), "-C", str(made), "-t", "targets", "all"], capture_output=True, text=True, check=True
    )
    named = [line.split(":")[0] for line in listed.stdout.splitlines() if ".o:" in line]
    objects = [name for name in named if any(part in name for part in _PARTS)]
    subprocess.run([_tool("ninja"), "-C", str(made), *objects], check=True)
    return link(made, objects)


def _tool(name: str) -> str:
    """Return the path of a build tool of the bench group, which is installed beside Python."""
    return str(Path(sys.executable).with_name(name))


def link(made: Path, objects: list[str]) -> Path:
    """Link `llama-server` from these objects and the installed libraries, and return its path."""
    libraries = Path(llama_cpp.__file__).parent / "lib"
    server = made / "llama-server"
    link_flags = [f"-L{libraries}", "-lmtmd", "-lllama", "-lggml", "-lggml-cpu", "-lggml-base", "-lpthread"]
    rpath = [f"-Wl,-rpath,{libraries}"]
    subprocess.run(["c++", "-O3", "-o", str(server), *objects, *link_flags, *rpath], cwd=made, check=True)
    print(f"built {server}")
    return server


def main() -> None:
    """Build a server with `--build`, or run one with `--serve`."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--build", type=Path, help="folder in which to build llama-server")
    options.add_argument(
        "--serve", nargs=3, metavar=("MODEL", "PORT", "SHAPE"), help="run xllamacpp's server; used by bench.engine"
    )
    chosen = options.parse_args()
    if chosen.serve:
        _serve(*chosen.serve)
    elif chosen.build:
        _build(chosen.build)


if __name__ == "__main__":
    main()
