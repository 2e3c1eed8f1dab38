"""Faults, never refusals.

PenstockError
├── ConfigError            a setting or an argument of the command line is wrong: the start stops
│   └── SettingsConflict   the store holds another value of a system-wide setting
├── StoreUnavailable       the store did not answer in time, or cannot write
├── StoreUnfit             the store may lose jobs as it is set up (eviction, no append-only file)
├── ScriptError            a script's call does not fit its header, or its answer is not declared
├── EmbeddedStoreError     the embedded server could not be started or joined
└── ModelError             the model could not be found, read or loaded
"""


class PenstockError(Exception):
    """Base of all faults raised by Penstock itself."""


class ConfigError(PenstockError):
    """A setting is unknown, malformed or out of range; the message names and quotes it."""


class SettingsConflict(ConfigError):
    """Another process has written other values of the system-wide settings."""

    def __init__(self, differing: dict[str, tuple[str, str]]) -> None:
        self.differing = differing
        rows = ", ".join(f"{name} is {held!r} there and {ours!r} here" for name, (held, ours) in differing.items())
        super().__init__(f"the store holds other system-wide settings: {rows}; start with --take-over to replace them")


class StoreUnavailable(PenstockError):
    """The store did not answer in time, or refused to write."""


class StoreUnfit(PenstockError):
    """The store's own configuration could lose admitted jobs silently."""


class ScriptError(PenstockError):
    """A script was called against its header, or answered what its header does not declare."""


class EmbeddedStoreError(PenstockError):
    """The embedded store could not be started, joined or stopped."""


class ModelError(PenstockError):
    """A model could not be found, read or loaded; the message names it."""
