"""The engines that PENSTOCK_ENGINE can name, and their needs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineKind:
    """One engine."""

    #: Whether a worker loads a model file, which PENSTOCK_MODEL names, and computes on a device of this machine.
    loads_model: bool
    #: The served name if PENSTOCK_MODEL_NAME is not set; "" for a name derived from PENSTOCK_MODEL.
    served_name: str = ""
    #: The extra of pyproject.toml that has what a worker with this engine needs.
    extra: str = "worker"
    #: The modules of the extra that such a worker needs; None for all of them.
    modules: tuple[str, ...] | None = None


#: The value of PENSTOCK_ENGINE → the needs of the engine.
ENGINES = {
    "llama": EngineKind(loads_model=True),
    "upstream": EngineKind(loads_model=False, extra="upstream"),
    "sim": EngineKind(loads_model=False, served_name="sim", modules=("numpy", "prometheus_client")),
}
