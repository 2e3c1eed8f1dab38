"""The exit codes of a worker process; docs/runbook.md explains each of them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Why a worker process ended. Code 1 is missing because Python uses it for an unhandled exception."""

    #: Drained: every running job has ended or was released.
    DRAINED = 0
    #: A setting is wrong; a message on stderr names it. Restarting does not help.
    CONFIG = 2
    #: The store is configured in a way that can silently lose jobs. Restarting does not help.
    STORE_UNFIT = 3
    #: The model or the device could not be loaded. Restarting may help if another process was using the device.
    MODEL = 4
    #: Jobs were running, but no token was computed for PENSTOCK_STALL_MS. Restart the worker.
    STALL = 5
    #: The engine's thread ended with an exception. Restart the worker.
    ENGINE = 6
    #: When the store came back after an outage, its system-wide settings differed from this worker's.
    CONFIG_LOST = 7
    #: A second signal arrived more than a second after the drain began. The jobs' leases expire, and other
    #: workers run the jobs.
    FORCED = 8
    #: Too many passes of a duty failed in a row. Restart the worker.
    DUTY = 9
