"""The terms of a pool: what an operator has said about it that its workers cannot say about themselves."""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from shared.errors import ConfigError

#: Amounts are integers in millionths of the operator's currency.
MICRO = 1_000_000
#: The highest price of 1,000 tokens, and the highest cap.
MAX_PRICE, MAX_CAP = 1_000 * MICRO, 10**15


def format_amount(micro: int) -> str:
    """Return an amount in millionths as a decimal number."""
    return f"{Decimal(micro) / MICRO:f}"


def parse_amount(name: str, text: str) -> int:
    """Return an amount in millionths. Raises ConfigError, whose message names the field and quotes the text."""
    try:
        amount = Decimal(text) * 1_000_000
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or amount != amount.to_integral_value() or not 0 <= amount <= 10**15:
        raise ConfigError(f"{name}={text!r} is not an amount from 0 to 1000000000 with at most six decimals")
    return int(amount)


@dataclass(frozen=True)
class PoolTerms:
    """The terms of one pool. By default, a pool is not local, and its jobs cost nothing."""

    #: Whether prompts that must not leave the operator's machines may be sent to this pool.
    local: bool = False
    #: The prices of 1,000 prompt tokens and of 1,000 answer tokens.
    prompt_price_micro: int = 0
    answer_price_micro: int = 0
    #: The most that the pool's jobs may cost in one day (UTC); None for no cap.
    day_cap_micro: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError if a value is invalid; the message names the field and quotes the value."""
        for name, value, high in (
            ("prompt_price_micro", self.prompt_price_micro, MAX_PRICE),
            ("answer_price_micro", self.answer_price_micro, MAX_PRICE),
            ("day_cap_micro", self.day_cap_micro or 0, MAX_CAP),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
                raise ConfigError(f"{name}={value!r} is not a number of millionths from 0 to {high}")


#: The fields of the pool record (keys.books) that hold the terms; shared/lua/lib/admission/facts.lua reads them.
STORED = {
    "local": "policy_local",
    "prompt_price_micro": "policy_prompt_price_micro",
    "answer_price_micro": "policy_answer_price_micro",
    "day_cap_micro": "policy_day_cap_micro",
}
