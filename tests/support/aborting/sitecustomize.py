"""Makes llama.cpp abort in the middle of a random step of a worker whose PYTHONPATH names this folder.

Steps abort while the file exists that TEST_ABORT_IF names.
"""

import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

#: A step with this many tokens aborts with this chance.
_MANY_TOKENS, _CHANCE = 8, 0.2


def _install(file: Path) -> None:
    from llama_cpp import _ggml, llama_cpp

    decode = llama_cpp.llama_decode
    chance = random.Random(str(file))

    def aborts(batch: Any) -> bool:
        return batch.n_tokens >= _MANY_TOKENS and file.exists() and chance.random() < _CHANCE

    def abort() -> None:
        error = 4
        _ggml.libggml.ggml_log_internal(error, b"CUDA error: an illegal instruction was encountered\n")
        _ggml.libggml.ggml_abort(b"ggml-cuda.cu", 103, b"CUDA error")

    def decode_or_abort(ctx: Any, batch: Any) -> int:
        if aborts(batch):
            threading.Thread(target=abort).start()
        return int(decode(ctx, batch))

    llama_cpp.llama_decode = decode_or_abort


if os.environ.get("TEST_ABORT_IF") and "workers" in sys.orig_argv:
    _install(Path(os.environ["TEST_ABORT_IF"]))
