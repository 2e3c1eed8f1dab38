"""The model of llama-cpp-python with which the vectors and scores of an engine are compared."""

from pathlib import Path

import llama_cpp


def embedding_llama(path: Path, pooling_type: int) -> llama_cpp.Llama:
    """Return the model in a context of 64 tokens. It has one thread, because idle ones of several use their cores."""
    return llama_cpp.Llama(
        str(path),
        n_ctx=64,
        n_batch=64,
        n_threads=1,
        n_threads_batch=1,
        embedding=True,
        pooling_type=pooling_type,
        verbose=False,
    )
