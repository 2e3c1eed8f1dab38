"""Extrapolates to a million requests a second, from costs per job that bench/README.md reports. Nothing here is run.

For R jobs a second whose answers have n texts each:

    stores' cores = R · (2.1 ms + n · .02 ms)      doors' cores = R · (2.9 ms + n · .11 ms)
    cells         = stores' cores / .7             memory       = R · seconds kept · 2,830 bytes
"""

from dataclasses import dataclass

from shared.cells.directory import MAX_CELLS

#: The store's CPU time for an admission, a claim and an end, in ms ("The queue", without other work).
STORE_JOB_MS = 2.1
#: A door's CPU time for a whole job whose answer nobody follows, in ms ("The door", 8 tokens).
DOOR_JOB_MS = 2.9
#: The CPU time of the store and of the door for a text of a followed answer, in ms ("A fast upstream").
STORE_TEXT_MS, DOOR_TEXT_MS = 0.02, 0.11
#: The memory of an ended job, in bytes ("Memory of an ended job").
JOB_BYTES = 2_830
#: The part of one core that a store may use, because a store runs its scripts on one core: chosen, not measured.
BUSY = 0.7
RATES = (1_000, 10_000, 100_000, 1_000_000)
#: Texts of an answer of 4 s that is followed, with a text each 40 ms.
STREAMED_TEXTS = 100
#: How long results are kept, in s: the default of PENSTOCK_RESULT_TTL_S, and a minute.
KEPT_S = (3_600, 60)


@dataclass(frozen=True)
class Need:
    """The needs of a number of jobs a second."""

    rate_per_s: int
    texts: int

    @property
    def store_cores(self) -> float:
        """The cores of all stores."""
        return self.rate_per_s * (STORE_JOB_MS + self.texts * STORE_TEXT_MS) / 1_000

    @property
    def door_cores(self) -> float:
        """The cores of all doors."""
        return self.rate_per_s * (DOOR_JOB_MS + self.texts * DOOR_TEXT_MS) / 1_000

    @property
    def cells(self) -> int:
        """The cells, if each store uses BUSY of a core."""
        return -int(-self.store_cores // BUSY)

    @property
    def directories(self) -> int:
        """The directories, which list MAX_CELLS cells each: as many deployments, among which tenants are divided."""
        return -(-self.cells // MAX_CELLS)

    def memory_gb(self, kept_s: int) -> float:
        """The memory of ended jobs in all stores, in GB."""
        return self.rate_per_s * kept_s * JOB_BYTES / 1e9


def markdown() -> str:
    """Return the table."""
    hour, minute = KEPT_S
    kept = f"memory, kept {hour} s, GB | kept {minute} s, GB"
    lines = [
        f"| jobs a second | answers | stores' cores | cells | directories | doors' cores | {kept} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for rate in RATES:
        for texts, name in ((0, "plain"), (STREAMED_TEXTS, f"streamed, {STREAMED_TEXTS} texts")):
            need = Need(rate, texts)
            lines.append(
                f"| {rate:,} | {name} | {need.store_cores:,.0f} | {need.cells:,} | {need.directories:,} "
                f"| {need.door_cores:,.0f} | {need.memory_gb(hour):,.0f} | {need.memory_gb(minute):,.1f} |"
            )
    return "\n".join(lines)
