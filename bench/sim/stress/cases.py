"""The scenarios: who sends what to which workers, and what happens to the workers in the meantime.

No setting of Penstock and no bound of a rival was chosen on a scenario.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from bench.sim.asks import MODEL, SimJob
from bench.sim.clients import Client, Hammer, OneTry, OpenAIPackage
from bench.sim.machine import Machine
from bench.sim.shapes import CODE, CONVERSATION, CONVERSATION_2024, Percentiles, Shape
from bench.sim.simulation import Simulation
from bench.sim.stress.streams import Stream, zipf

#: The first part of each run, which is not judged.
WARM_UP_S = 35.0
#: The length of a run whose load does not change.
SECONDS = 90.0


@dataclass(frozen=True)
class Case:
    """One scenario."""

    name: str
    #: The special feature of the case, as the table shows it.
    what: str
    streams: tuple[Stream, ...]
    #: (load as a multiple of the capacity, seconds).
    phases: tuple[tuple[float, float], ...]
    #: The machines of each model's workers.
    pools: Mapping[str, tuple[Machine, ...]]
    #: For each model, a factor of the load; 1 if it is missing.
    loads: Mapping[str, float] = field(default_factory=dict)
    client: Client = field(default_factory=OneTry)
    #: Schedules what happens to the workers.
    events: Callable[[Simulation], None] | None = None
    #: Changes the jobs after they are drawn.
    change: Callable[[SimJob], None] | None = None

    @property
    def seconds(self) -> float:
        """The length of the run."""
        return sum(seconds for _, seconds in self.phases)


_FOUR = (Machine(),) * 4
#: Few tokens to read and many to write.
_WRITING = Shape(
    "writing",
    Percentiles(((0, 16), (0.5, 120), (0.9, 400), (0.99, 800), (1, 1000))),
    Percentiles(((0, 64), (0.5, 350), (0.9, 700), (0.99, 900), (1, 1000))),
    gap_cv=1.09,
)


def _steady(name: str, what: str, streams: list[Stream], load: float = 3.0, **more: object) -> Case:
    pools = more.pop("pools", {MODEL: _FOUR})
    return Case(name, what, tuple(streams), ((load, SECONDS),), pools, **more)  # type: ignore[arg-type]  # passed on


def _scaled(factor: float) -> Shape:
    """Return the lengths of the conversations, multiplied by `factor`."""
    prompt, answer = (
        Percentiles(tuple((share, max(1.0, factor * value)) for share, value in lengths.knots))
        for lengths in (CONVERSATION.prompt, CONVERSATION.answer)
        if isinstance(lengths, Percentiles)
    )
    return replace(CONVERSATION, name=f"conversation times {factor}", prompt=prompt, answer=answer)


def _three_shapes(i: int, stream: Stream) -> Stream:
    return replace(stream, shape=(CONVERSATION, replace(CODE, dispersion=()), _WRITING)[i % 3])


def _big_or_small(i: int, stream: Stream) -> Stream:
    return replace(stream, shape=_scaled((0.15, 1.5)[i % 2]))


def _long_tail(_: int, stream: Stream) -> Stream:
    shape = replace(CONVERSATION_2024, dispersion=())
    return replace(stream, shape=shape, max_tokens=4_096, longest=(7_000, 4_096))


def _long_limit(_: int, stream: Stream) -> Stream:
    return replace(stream, max_tokens=4_096)


def _grow(job: SimJob) -> None:
    """Make the answers of the second half of the judged time four times longer."""
    if job.at_ms >= 1_000 * (WARM_UP_S + SECONDS) / 2:
        job.answer = min(4 * job.answer, job.max_tokens)


def _undercount(job: SimJob) -> None:
    job.door_prompt = max(1, job.prompt // 4)


def _lose_half(simulation: Simulation) -> None:
    """Take every second worker away from the fifth second of the burst until five seconds before its end."""
    for worker in simulation.result.workers[::2]:
        simulation.at(65_000, simulation.lose, worker)
        simulation.at(85_000, simulation.bring_back, worker)


def _split_team() -> list[Stream]:
    """Return fifty tenants. The largest sends from 200 names."""
    first, *others = zipf(50, 5)
    keys = [replace(first, tenant=f"key{i:03d}", share=first.share / 200, group="team") for i in range(200)]
    return [*keys, *others]


def _models(names: str) -> list[Stream]:
    """Return fifty tenants and five light ones. All use each of these models."""
    return [replace(stream, model=name) for name in names for stream in zipf(50, 5)]


def _pools(**workers: int) -> dict[str, tuple[Machine, ...]]:
    return {name: (Machine(),) * count for name, count in workers.items()}


_ROOMY = (Machine(cells=32 * 8_192),) * 4
_SLOW = replace(Machine(), step_ms=12.0, row_ms=0.2, token_ms=0.16, cell_ms=4.8e-5)

CASES = {
    case.name: case
    for case in (
        _steady("usual-1.5x", "the tenants of E1 at 1.5 times the capacity", zipf(50, 5), 1.5),
        _steady("usual-3x", "the same at 3 times", zipf(50, 5)),
        _steady("usual-10x", "the same at 10 times", zipf(50, 5), 10.0),
        _steady("shapes", "a third each of the tenants chats, reads and writes", zipf(50, 5, change=_three_shapes)),
        _steady("big-small", "every second tenant's jobs are ten times larger", zipf(50, 5, change=_big_or_small)),
        _steady("tenants-3", "three tenants and a light one", zipf(3, 1)),
        _steady("tenants-400", "400 tenants and 20 light ones", zipf(400, 20)),
        _steady("team-200", "the largest tenant is a team that sends from 200 names", _split_team()),
        _steady(
            "answers-4x", "halfway, all answers become four times longer", zipf(50, 5, change=_long_limit),
            pools={MODEL: _ROOMY}, change=_grow,
        ),
        _steady(
            "heavy-tail", "answers as in Azure 2024, lognormal up to 4,096 tokens", zipf(50, 5, change=_long_tail),
            pools={MODEL: _ROOMY},
        ),
        _steady(
            "mixed-fleet", "two of the four workers are four times slower", zipf(50, 5),
            pools={MODEL: (Machine(), Machine(), _SLOW, _SLOW)},
        ),
        Case(
            "half-lost", "half of the workers are lost for 20 s of a burst of 5 times the capacity", tuple(zipf(50, 5)),
            ((0.7, 60.0), (5.0, 30.0), (0.7, 60.0)), {MODEL: _FOUR}, events=_lose_half,
        ),
        _steady(
            "two-models", "two models, at 3 and .8 times their capacity", _models("ab"), 1.0,
            pools=_pools(a=2, b=2), loads={"a": 3.0, "b": 0.8},
        ),
        _steady(
            "three-models", "three models, at 5, 1.5 and .6 times their capacity", _models("abc"), 1.0,
            pools=_pools(a=2, b=1, c=1), loads={"a": 5.0, "b": 1.5, "c": 0.6},
        ),
        _steady("undercounted", "the door counts a quarter of each prompt", zipf(50, 5), change=_undercount),
        _steady("hammer", "refused clients retry after 250 ms, up to 20 times", zipf(50, 5), 2.0, client=Hammer()),
        _steady(
            "obedient", "clients retry as the OpenAI package does and obey hints", zipf(50, 5), 1.5,
            client=OpenAIPackage(heeds=1.0),
        ),
    )
}  # fmt: skip
