"""The LoRA adapters of a model: checks their files, loads them, and sets the one that a call is computed with."""

import ctypes
from collections.abc import Sequence
from typing import Any

from shared.errors import ModelError
from shared.jobs.adapter_list import Adapter
from workers.engine.backend import DecodeFailed
from workers.engine.llama.load import Libraries


class Adapters:
    """The adapters of one model, which frees them when it is freed. Used by the engine's thread only."""

    def __init__(self, lib: Any, loaded: dict[str, tuple[Any, float]]) -> None:
        """`loaded` has each adapter's handle and scale by its name."""
        self._lib, self._loaded = lib, loaded
        #: Slot → the adapter of its sequence.
        self._by_slot: dict[int, str] = {}
        #: The adapter that the context has now; "" for none.
        self._current = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._loaded)

    def open_slot(self, slot: int, adapter: str) -> None:
        """Note the adapter of a slot's sequence. Raises ValueError if the model has none of this name."""
        if adapter and adapter not in self._loaded:
            raise ValueError(f"no adapter {adapter!r} is loaded")
        self._by_slot[slot] = adapter

    def close_slot(self, slot: int) -> None:
        self._by_slot.pop(slot, None)

    def set_for(self, ctx: int, slots: Sequence[int]) -> None:
        """Give the context the adapter of these slots' sequences. Raises DecodeFailed if it is not one for all."""
        wanted = {self._by_slot.get(slot, "") for slot in slots}
        if len(wanted) > 1:
            raise DecodeFailed(f"a call has rows of the adapters {sorted(wanted)}, and can have one")
        (name,) = wanted
        if name == self._current:
            return
        handles, scales = None, None
        if name:
            handle, scale = self._loaded[name]
            handles, scales = (ctypes.POINTER(ctypes.c_void_p) * 1)(handle), (ctypes.c_float * 1)(scale)
        if self._lib.llama_set_adapters_lora(ctx, handles, 1 if name else 0, scales) != 0:
            raise DecodeFailed(f"llama.cpp does not set the adapter {name!r}")
        self._current = name


def load_adapters(libs: Libraries, model: int, adapters: Sequence[Adapter], *, embeds: bool) -> Adapters:
    """Load the adapters, whose files were checked. Raises ModelError, whose message names the setting and the adapter.

    The caller frees the model, and them with it.
    """
    if embeds and adapters:
        raise ModelError(f"{adapters[0]}: the model makes embeddings, and adapters are for those that generate text")
    loaded = dict[str, tuple[Any, float]]()
    for adapter in adapters:
        libs.log.forget_complaints()
        handle = libs.lib.llama_adapter_lora_init(model, str(adapter.path).encode())
        if not handle:
            raise ModelError(f"{adapter} could not be loaded: {libs.log.errors() or 'llama.cpp gives no reason'}")
        loaded[adapter.name] = handle, adapter.scale
    return Adapters(libs.lib, loaded)
