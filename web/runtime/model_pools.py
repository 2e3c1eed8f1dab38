"""Which models are live, as the door knows it: one picture of the store, shared by all requests of this process.

A picture is at most a second old; what it does not hold is looked up anew before anybody is told so.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shared.clock import Clock
from shared.jobs import cost
from shared.jobs.model_name import served_names
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store.replies import Snapshot
from shared.store.store import Store
from web.http.api_errors import ApiError

#: How old a picture may be for a request whose model is in it, and for one whose model is not, in seconds.
#: The second bounds what requests for invented models cost the store.
MAX_AGE_S, MAX_AGE_MISSING_S = 1.0, 0.1


@dataclass(frozen=True)
class Model:
    """One served model; facts are what its workers publish of it."""

    name: str
    live: bool
    #: The sim engine counts words.
    words: bool = False
    tokens_per_byte: float = cost.TOKENS_PER_BYTE
    #: The longest job in tokens; None while no worker has told.
    n_ctx: int | None = None
    #: How its embeddings are pooled, and their numbers; "" for a model that continues text.
    pooling: str = ""
    width: int | None = None

    def estimate(self, payload: Mapping[str, object]) -> int:
        """Prompt tokens of a request, as far as the door can tell."""
        return cost.estimate(payload, words=self.words, tokens_per_byte=self.tokens_per_byte)


@dataclass(frozen=True)
class ModelDirectory:
    """The models of one snapshot: by served name, and by alias."""

    models: dict[str, Model]
    aliases: dict[str, str]

    def find(self, name: str) -> Model | None:
        """The model of this name or alias; live, or seen in the last hour."""
        return self.models.get(name) or self.models.get(self.aliases.get(name, ""))

    @property
    def live(self) -> list[str]:
        """Served names of live models."""
        return sorted(model.name for model in self.models.values() if model.live)


def read_directory(snapshot: Snapshot) -> ModelDirectory:
    """What a snapshot says of models. Where workers of one model differ, the longest context counts."""
    models = {name: Model(name, live=False) for name in snapshot.models}
    aliases: dict[str, str] = {}
    for worker in snapshot.workers:
        if not worker.live:
            continue
        known = models.get(worker.model)
        n_ctx = max(_number(worker.facts, "n_ctx") or 0, (known.n_ctx if known else None) or 0)
        models[worker.model] = Model(
            worker.model,
            live=True,
            words=worker.facts.get("engine") == "sim",
            tokens_per_byte=_number(worker.facts, "tokens_per_byte") or cost.TOKENS_PER_BYTE,
            n_ctx=int(n_ctx) or None,
            pooling=worker.facts.get("pooling", ""),
            width=int(_number(worker.facts, "width") or 0) or None,
        )
        for alias in worker.facts.get("aliases", "").split(","):
            aliases[alias.strip()] = worker.model
    aliases.pop("", None)
    return ModelDirectory(models, aliases)


def _number(facts: Mapping[str, str], name: str) -> float | None:
    try:
        number = float(facts[name])
    except (KeyError, ValueError):
        return None
    return number if 0 < number < 1e12 else None


class ModelPools:
    """The current picture. Any thread may ask; two that ask at once may both look, which does no harm."""

    def __init__(self, store: Store, settings: Settings, clock: Clock) -> None:
        self._store, self._clock = store, clock
        #: What this ingress offers when nobody names a model ("" for nothing), and its other names.
        self._ours, *self._own_aliases = served_names(settings)
        self._picture = ModelDirectory({}, {})
        self._taken_s = float("-inf")

    def picture(self, max_age_s: float = MAX_AGE_S) -> ModelDirectory:
        """A picture at most `max_age_s` old. Raises StoreUnavailable."""
        if self._clock.monotonic() - self._taken_s > max_age_s:
            self._picture = read_directory(self._store.snapshot(tenants=1))
            self._taken_s = self._clock.monotonic()
        return self._picture

    def offered(self, policy: TenantPolicy | None) -> list[str]:
        """Served names of live models and their aliases, as far as the tenant may use them."""
        picture = self.picture()
        aliases = {alias for alias, name in picture.aliases.items() if name in picture.live}
        if self._ours in picture.live:
            aliases.update(self._own_aliases)
        names = [*picture.live, *sorted(aliases - set(picture.live))]
        return [name for name in names if policy is None or policy.may_use(name)]

    def resolve(self, named: str | None, policy: TenantPolicy | None) -> Model:
        """The model that a request means; live or not, for the store refuses what nobody serves.

        Raises ApiError: no name and no default (400, with the list), or a name never seen in the last
        hour or not allowed to the tenant (404).
        """
        name = named or (policy and policy.default_model) or self._ours
        model = self._find(name) if name else self._only()
        if model is None and name and not named:
            # Configured and not started yet: the store's refusal says that nobody serves it.
            model = Model(name, live=False)
        if model is not None and (policy is None or policy.may_use(model.name) or policy.may_use(name or "")):
            return model
        message = f"model={(name or '')[:80]!r} is not served here; GET /v1/models lists what is"
        raise ApiError("model_not_found", message, param="model")

    def _find(self, name: str) -> Model | None:
        name = self._ours if name in self._own_aliases else name
        model = self.picture().find(name)
        return model if model and model.live else self.picture(MAX_AGE_MISSING_S).find(name)

    def _only(self) -> Model:
        picture = self.picture()
        if len(picture.live) != 1:
            picture = self.picture(MAX_AGE_MISSING_S)
        if len(picture.live) == 1:
            return picture.models[picture.live[0]]
        if picture.live:
            raise ApiError("model_required", f"name a model: one of {', '.join(picture.live)}", param="model")
        # Nothing is live: the store's refusal says so, under the name of what was served last, if anything was.
        return next(iter(picture.models.values()), Model("default", live=False))
