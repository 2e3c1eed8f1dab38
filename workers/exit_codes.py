"""Why a worker process ended, as its exit code: one name each, shown in docs/runbook.md."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a process supervisor sees. 1 stays Python's own, for what nobody foresaw."""

    #: Drained: what ran has ended or was given back.
    DRAINED = 0
    #: A setting is wrong; a sentence on stderr says which. Starting again does not help.
    CONFIG = 2
    #: The store could lose jobs silently as it is set up. Starting again does not help.
    STORE_UNFIT = 3
    #: The model or the device could not be loaded. Starting again may help when the device was taken.
    MODEL = 4
    #: Jobs ran and no token came for PENSTOCK_STALL_MS. Start again.
    STALL = 5
    #: The engine's thread ended by a fault. Start again.
    ENGINE = 6
    #: The store came back with other system-wide settings than this worker runs with.
    CONFIG_LOST = 7
    #: Another signal, a second or more into the drain: leases lapse, others take over.
    FORCED = 8
    #: A duty's thread ended by a fault that no retry mends. Start again.
    DUTY = 9
