"""Time a step in which the device itself chooses the tokens, with a chain of llama.cpp's samplers for each sequence."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine_ceiling import Ceiling, lib
from shared.settings.settings import Settings

#: The samplers of a chain, by kind of sampling. The numbers are the defaults of PENSTOCK's requests.
CHAINS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "greedy": ((lib.llama_sampler_init_greedy,),),
    "default": (
        (lib.llama_sampler_init_top_k, 40),
        (lib.llama_sampler_init_top_p, 0.95, 1),
        (lib.llama_sampler_init_min_p, 0.05, 1),
        (lib.llama_sampler_init_temp, 0.8),
        (lib.llama_sampler_init_dist, 1),
    ),
}


class DeviceSamplers(Ceiling):
    """The ceiling's context, in which each sequence has a chain of samplers that run where the model computes.

    The time of a step includes reading its tokens and telling the samplers about them.
    """

    def __init__(self, settings: Settings, path: Path, kind: str) -> None:
        super().__init__(settings, path)
        self._chains = [_chain(kind) for _ in range(settings.max_batch_size)]
        if not all(lib.llama_set_sampler(self._ctx, slot, chain) for slot, chain in enumerate(self._chains)):
            raise RuntimeError(f"the device of {path.name} runs no {kind} samplers")

    def _decode(self) -> float:
        batch = self._batch
        rows = np.flatnonzero(batch._logits[: batch.n_tokens]).tolist()  # noqa: SLF001 - as in the ceiling
        slots = batch._seq[rows].tolist()  # noqa: SLF001 - as above
        took, began = super()._decode(), time.perf_counter()
        for slot, row in zip(slots, rows, strict=True):
            token = lib.llama_get_sampled_token_ith(self._ctx, row)
            if token < 0:
                raise RuntimeError(f"the device chose no token for row {row}")
            lib.llama_sampler_accept(self._chains[slot], token)
        return took + time.perf_counter() - began

    def close(self) -> None:
        """Free the model, its context and the samplers."""
        super().close()
        for chain in self._chains:
            lib.llama_sampler_free(chain)


def _chain(kind: str) -> Any:
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for init, *numbers in CHAINS[kind]:
        lib.llama_sampler_chain_add(chain, init(*numbers))
    return chain
