"""Runs llama.cpp's server from the package xllamacpp with llama-server's options, in a process of its own.

The package has another build of llama.cpp than the worker, so the two must not be loaded into one process.
"""

import argparse
import signal
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until the process is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", choices=["127.0.0.1"])
    for name in ("port", "parallel", "ctx-size", "threads", "cache-ram"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--chat-template", default="")
    parser.add_argument("--fit", choices=["on", "off"], default="on")
    for name in ("no-kv-unified", "no-warmup", "no-repack", "embeddings"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args(arguments)

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port = options.model, options.port
    params.n_parallel, params.n_ctx, params.cache_ram_mib = options.parallel, options.ctx_size, options.cache_ram
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.fit_params = options.fit == "on"
    params.kv_unified, params.warmup = not options.no_kv_unified, not options.no_warmup
    params.no_extra_bufts, params.embedding = options.no_repack, options.embeddings
    params.chat_template = options.chat_template
    params.use_jinja = params.endpoint_slots = True
    server = xllamacpp.Server(params)
    print(server.listening_address, xllamacpp.get_system_info(), flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
