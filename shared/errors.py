"""Exceptions that Penstock raises for faults; a refused job is a return value (`Refused`), not an exception.

PenstockError
├── ConfigError            a setting or a command-line argument is wrong; the process does not start
│   ├── SettingsConflict   this process's system-wide settings differ from those in the store
│   └── SchemaConflict     the store has a format that this version of Penstock cannot use
├── StoreUnavailable       the store did not answer in time, or could not write
│   ├── FilesUnavailable   the folder with the contents of files cannot be used
│   └── Unconfirmed        too few replicas confirmed a job that the primary has admitted
├── StoreUnfit             the store's configuration could lose jobs (eviction, no append-only file)
├── ScriptError            a script call does not match its header, or the script returned an undeclared answer
├── EmbeddedStoreError     the embedded store could not be started, taken over or stopped
└── ModelError             the model could not be found, read or loaded
"""

from shared.store_fault import StoreFault


class PenstockError(Exception):
    """Base class of all exceptions that Penstock itself raises."""


class ConfigError(PenstockError):
    """A setting is unknown, malformed or out of range; the message names the setting and quotes its value."""


class SettingsConflict(ConfigError):
    """The system-wide settings that another process wrote to the store differ from the settings of this process."""

    def __init__(self, differing: dict[str, tuple[str, str]]) -> None:
        self.differing = differing
        differences = ", ".join(
            f"{name} is {stored!r} in the store and {own!r} here" for name, (stored, own) in differing.items()
        )
        super().__init__(f"system-wide settings differ: {differences}; start with --take-over to replace the store's")


class SchemaConflict(ConfigError):
    """The store has a format that this version cannot use; the message names both formats and says what to do."""


class StoreUnavailable(PenstockError):
    """The store did not answer in time, or could not write, because of `fault`."""

    def __init__(self, message: str, fault: StoreFault = StoreFault.OTHER) -> None:
        self.fault = fault
        super().__init__(message)


class FilesUnavailable(StoreUnavailable):
    """The folder with the contents of files cannot be used, because its disk `is_full` or for another reason."""

    def __init__(self, message: str, *, is_full: bool = False) -> None:
        self.is_full = is_full
        super().__init__(message)


class Unconfirmed(StoreUnavailable):
    """Too few replicas confirmed the job `job_id`, which the primary has admitted."""

    def __init__(self, message: str, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(message, StoreFault.TOO_FEW_REPLICAS)


class StoreUnfit(PenstockError):
    """The store's own configuration could silently lose admitted jobs."""


class ScriptError(PenstockError):
    """A script was called with arguments that do not match its header, or returned an answer it does not declare."""


class EmbeddedStoreError(PenstockError):
    """The embedded store could not be started, taken over or stopped."""


class ModelError(PenstockError):
    """A model could not be found, read or loaded; the message names it."""
