"""Describes to the store a request that names a route, and to clients how their job was routed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RoutedRequest:
    """The properties of a request that depend on the pool of its route."""

    #: The name of the pool's model.
    model: str
    prompt_tokens: int
    max_tokens: int
    answer_bytes: int
    #: A RouteReason if the pool's engine cannot run the request, else "".
    cannot: str = ""
    #: The tokens of the prompt with fewer passages; 0 if it has no passages.
    fewer_tokens: int = 0


@dataclass(frozen=True)
class Routing:
    """A request's route: its name and stored text, and the request in the pool of each of its steps."""

    name: str
    text: str
    pools: tuple[RoutedRequest, ...]
    #: The values of `route.FEATURES` that the request uses.
    features: tuple[str, ...] = ()
    #: Whether the job moves to a later pool if its answer fails the check that the request names.
    escalates: bool = False


@dataclass(frozen=True)
class Routed:
    """How a job got into its pool: the pool's model, and the RouteReason why."""

    pool: str
    why: str
