"""When a job came into the engine, started and had its first token, and how long it was paused."""

from dataclasses import dataclass


@dataclass(slots=True)
class JobTimes:
    """The times of one job on the engine's clock, in seconds. All its candidates share them."""

    submitted_s: float
    started_s: float | None = None
    #: When the first token of any answer was sampled.
    first_token_s: float | None = None
    #: When the pause began that has not ended; None if the job is not paused.
    paused_at_s: float | None = None
    #: How long the pauses before and after the first token took together.
    paused_in_prefill_s: float = 0.0
    paused_in_decode_s: float = 0.0

    def start(self, now_s: float) -> None:
        self.started_s = now_s if self.started_s is None else self.started_s

    def note_token(self, now_s: float) -> None:
        self.first_token_s = now_s if self.first_token_s is None else self.first_token_s

    def pause(self, now_s: float) -> None:
        self.paused_at_s = now_s

    def resume(self, now_s: float) -> None:
        paused_s = 0.0 if self.paused_at_s is None else now_s - self.paused_at_s
        if self.first_token_s is None:
            self.paused_in_prefill_s += paused_s
        else:
            self.paused_in_decode_s += paused_s
        self.paused_at_s = None

    def durations_ms(self, now_s: float) -> tuple[int | None, int | None, int | None]:
        """Return how long prefill and decode took without pauses, and the time to the first token, up to `now_s`."""
        started, first = self.started_s, self.first_token_s
        prefill_ms = None if started is None else _ms((first or now_s) - started - self.paused_in_prefill_s)
        if first is None:
            return prefill_ms, None, None
        return prefill_ms, _ms(now_s - first - self.paused_in_decode_s), _ms(first - self.submitted_s)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
