"""Cache of the served models, the facts about them, and the routes, which all requests of this process share.

The cached ModelDirectory is at most one second old. If it does not contain the model that a request names, the door
reads the models from the store again before it answers that the model does not exist.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from shared.accounts.routes import Routes, StoredRoute
from shared.clock import Clock
from shared.jobs import cost
from shared.jobs.model_name import served_names
from shared.jobs.prompt_weights import PromptWeights, read_weights
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store.replies import PoolReason, PoolView, Snapshot
from shared.store.store import Store
from web.http.api_errors import ApiError
from web.runtime.shared_answer import SharedAnswer

#: The maximum age of the cached directory, in seconds: for a request whose model is live in the directory, and for any
#: other request. The second value limits how often requests for unknown models make the door read the store.
MAX_AGE_S, MAX_AGE_MISSING_S = 1.0, 0.1
#: The context that a worker reports if its engine bounds no job.
_UNLIMITED_CTX = 1 << 30
#: The number of workers whose facts one reading includes: at least one of each of the 64 models that were served last,
#: which are all that a snapshot has. `penstock doctor` says so if there are as many.
_WORKERS_READ = 64


@dataclass(frozen=True)
class Model:
    """One served model, with the facts that its workers publish about it."""

    name: str
    live: bool
    #: Whether a worker holds the model. Of a live model that is not loaded, a worker loads it for the jobs it gets.
    loaded: bool = True
    #: The model to which this adapter belongs; "" for other models.
    base: str = ""
    #: Whether the model counts each word as one token, as the `sim` backend does.
    counts_words: bool = False
    tokens_per_byte: float = cost.TOKENS_PER_BYTE
    tokens_per_attachment: float = cost.TOKENS_PER_ATTACHMENT
    #: The weights that a worker of the model has measured with the model's vocabulary; None if no worker has.
    prompt_weights: PromptWeights | None = None
    #: Whether all workers of the model pass requests of OpenAI's routes on whole, to an upstream. None if no worker's
    #: facts were read.
    forwards: bool | None = None
    #: Whether an upstream's worker of an earlier version serves the model: it asks for one answer to one text.
    gives_one_answer: bool = False
    #: Whether a worker of the model can call the tools of a request.
    calls_tools: bool = False
    #: How many tokens prompt and answer may have together; None if no live worker has published the number.
    n_ctx: int | None = None
    #: The same for clients: for an upstream, the value in its list of models. None if it is unknown.
    max_model_len: int | None = None
    #: How an embedding model combines the vectors of its tokens into one, or `rank` for a model that ranks documents;
    #: "" for a model that generates text.
    pooling: str = ""
    #: The number of dimensions of an embedding model's vectors; None for a model that generates text.
    dimensions: int | None = None

    @property
    def models(self) -> tuple["Model"]:
        """The only model, as a route has several."""
        return (self,)

    @property
    def purpose(self) -> Literal["embed", "generate", "rank"]:
        """The purpose of the model, which decides the routes that accept it."""
        if not self.pooling:
            return "generate"
        return "rank" if self.pooling == "rank" else "embed"

    def estimate(self, payload: Mapping[str, object]) -> int:
        """Estimate the number of prompt tokens of a request."""
        return cost.estimate(
            payload,
            words=self.counts_words,
            tokens_per_byte=self.tokens_per_byte,
            tokens_per_attachment=self.tokens_per_attachment,
            weights=self.prompt_weights,
        )

    def computed(self, payload: Mapping[str, object]) -> int:
        """Estimate the number of prompt tokens that the model computes: each input at most fills the context.

        Our engine refuses a longer one before it computes anything, or cuts it. An upstream may compute it.
        """
        tokens, inputs = self.estimate(payload), payload.get("input")
        if self.n_ctx is None or self.forwards:
            return tokens
        return min(tokens, self.n_ctx * max(1, len(inputs) if isinstance(inputs, list) else 1))


@dataclass(frozen=True)
class FoundRoute:
    """A route that a request names, with the models of its steps."""

    name: str
    text: str
    models: tuple[Model, ...]

    @property
    def forwards(self) -> bool:
        """Whether all pools of the route pass requests on to upstreams."""
        return all(model.forwards for model in self.models)

    @property
    def may_forward(self) -> bool:
        """Whether some pool of the route passes requests on to an upstream."""
        return any(model.forwards for model in self.models)


@dataclass(frozen=True)
class ModelDirectory:
    """The models in one snapshot by served name, for each alias the served name of its model, and the routes."""

    models: dict[str, Model]
    aliases: dict[str, str]
    routes: dict[str, StoredRoute] = field(default_factory=dict)
    #: The pools of the models that were served last, by served name, also those without live workers.
    pools: dict[str, PoolView] = field(default_factory=dict)

    def find(self, name: str) -> Model | None:
        """Return the model with this name or alias if it is live or was live in the last hour, otherwise None."""
        return self.models.get(name) or self.models.get(self.aliases.get(name, ""))

    def readiness_of(self, name: str) -> PoolView:
        """Return the pool of the model with this served name. One that the directory does not have has no workers."""
        return self.pools.get(name) or PoolView(name, 0, 0, PoolReason.NO_WORKER, 0, 0, 0, None)

    @cached_property
    def live(self) -> list[str]:
        """The served names of live models, sorted."""
        return sorted(model.name for model in self.models.values() if model.live)

    @cached_property
    def live_bases(self) -> list[str]:
        """The served names of live models without the adapters of other live ones, sorted."""
        return [name for name in self.live if self.models[name].base not in self.live]


def read_directory(snapshot: Snapshot) -> ModelDirectory:
    """Make a directory from a snapshot. If the workers of one model have different context sizes, use the largest."""
    models = {name: Model(name, live=name in snapshot.live_models) for name in snapshot.models}
    aliases: dict[str, str] = {}
    live = [worker for worker in snapshot.workers if worker.live]
    not_forwarding = {worker.model for worker in live if worker.facts.get("forwards") != "true"}
    loaded = {worker.model for worker in live if not worker.is_loadable}
    one_answer = {
        worker.model
        for worker in live
        if worker.facts.get("forwards") == "true" and worker.facts.get("forwards_several") != "true"
    }
    for worker in live:
        known = models.get(worker.model)
        n_ctx = max(_number(worker.facts, "n_ctx") or 0, (known.n_ctx if known else None) or 0)
        models[worker.model] = Model(
            worker.model,
            live=True,
            loaded=worker.model in loaded,
            base=worker.facts.get("base", ""),
            counts_words=worker.facts.get("counts_words") == "true",
            tokens_per_byte=_number(worker.facts, "tokens_per_byte") or cost.TOKENS_PER_BYTE,
            tokens_per_attachment=_number(worker.facts, "tokens_per_attachment") or cost.TOKENS_PER_ATTACHMENT,
            prompt_weights=read_weights(worker.facts.get("prompt_weights", ""))
            or (known.prompt_weights if known else None),
            forwards=worker.model not in not_forwarding,
            gives_one_answer=worker.model in one_answer,
            calls_tools=worker.facts.get("calls_tools") == "true" or (known is not None and known.calls_tools),
            n_ctx=int(n_ctx) or None,
            max_model_len=_longest(worker.facts, known),
            pooling=worker.facts.get("pooling", ""),
            dimensions=int(_number(worker.facts, "width") or 0) or None,
        )
        for alias in worker.facts.get("aliases", "").split(","):
            aliases[alias.strip()] = worker.model
    aliases.pop("", None)
    return ModelDirectory(models, aliases, pools=snapshot.pools)


def _longest(facts: Mapping[str, str], known: Model | None) -> int | None:
    """Return the longest job of a worker and of those that were read before it; None if all are unknown."""
    longest = min(_number(facts, "n_ctx") or _UNLIMITED_CTX, _number(facts, "upstream_max_model_len") or _UNLIMITED_CTX)
    own = int(longest) if longest < _UNLIMITED_CTX else 0
    return max(own, (known.max_model_len if known else None) or 0) or None


def _number(facts: Mapping[str, str], name: str) -> float | None:
    try:
        number = float(facts[name])
    except (KeyError, ValueError):
        return None
    return number if 0 < number < 1e12 else None


class ModelPools:
    """The cached directory. Its methods may be called from any thread; requests at the same time cause one reading."""

    def __init__(self, store: Store, settings: Settings, clock: Clock) -> None:
        self._store = store
        self._routes = Routes(store.client)
        #: The default model according to the door's settings ("" if they name none), and the aliases of this model.
        self._default_model, *self._default_aliases = served_names(settings)
        self._directory = SharedAnswer(self._read, clock, keeps_errors=False, computes_early=True)
        #: The models that were served by upstreams when they were last live. While an upstream is away, its model has
        #: no live worker, and the requests for it must be read as before.
        self._forwarding = {self._default_model} if settings.engine == "upstream" else set()

    def directory(self, max_age_s: float = MAX_AGE_S) -> ModelDirectory:
        """Return a directory that is at most `max_age_s` old. Raises StoreUnavailable."""
        return self._directory.get(max_age_s)

    def _read(self) -> ModelDirectory:
        directory = read_directory(self._store.snapshot(tenants=0, workers=_WORKERS_READ))
        for model in directory.models.values():
            if model.forwards is not None:
                (self._forwarding.add if model.forwards else self._forwarding.discard)(model.name)
        self._forwarding &= {self._default_model, *directory.models}
        remembered = {name: self._as_remembered(model) for name, model in directory.models.items()}
        return replace(directory, models=remembered, routes=self._routes.read()[0])

    def _as_remembered(self, model: Model) -> Model:
        return model if model.forwards is not None else replace(model, forwards=model.name in self._forwarding)

    def visible_names(self, policy: TenantPolicy | None) -> list[str]:
        """Return the served names and aliases of the live models that the tenant may use, and the routes to them."""
        directory = self.directory()
        aliases = {alias for alias, name in directory.aliases.items() if name in directory.live}
        if self._default_model in directory.live:
            aliases.update(self._default_aliases)
        live = set(directory.live)
        routes = [name for name, found in directory.routes.items() if any(s.pool in live for s in found.route.steps)]
        names = [*directory.live, *sorted({*aliases, *routes} - live)]
        return [name for name in names if policy is None or policy.may_use(name)]

    def pools_of(self, name: str) -> tuple[str, ...]:
        """Return the served names of the models that a model's name, an alias or a route stands for.

        Reads nothing beyond the directory, because anybody may ask. Raises ApiError (404) if nothing has the name.
        """
        directory, own_name = self.directory(), self._own_name(name)
        if name in directory.routes:
            return tuple(step.pool for step in directory.routes[name].route.steps)
        served = directory.aliases.get(own_name, own_name)
        if served in directory.pools or served in directory.models or (served and served == self._default_model):
            return (served,)
        raise _not_served(name)

    def max_model_len(self, name: str) -> int | None:
        """Return how many tokens a request to a model, an alias or a route may have at most; None if it is unknown."""
        return max((model.max_model_len or 0 for model in self._live_behind(name)), default=0) or None

    def is_loaded(self, name: str) -> bool:
        """Return whether a worker holds the model that a name, an alias or a route stands for."""
        return any(model.loaded for model in self._live_behind(name))

    def load_fails(self, name: str) -> bool:
        """Return whether no worker holds the model with this name or alias because loading it has failed."""
        directory = self.directory()
        model = None if name in directory.routes else directory.find(self._own_name(name))
        return model is not None and directory.readiness_of(model.name).reason is PoolReason.LOAD_FAILED

    def base_of(self, name: str) -> str | None:
        """Return the model to which the adapter with this name or alias belongs; None if it is no adapter."""
        directory = self.directory()
        model = None if name in directory.routes else directory.find(self._own_name(name))
        return None if model is None else model.base or None

    def _live_behind(self, name: str) -> list[Model]:
        """Return the live models that a name, an alias or a route stands for."""
        directory = self.directory()
        routed = directory.routes.get(name)
        pools = [step.pool for step in routed.route.steps] if routed else [self._own_name(name)]
        return [model for pool in pools if (model := directory.find(pool)) is not None and model.live]

    def resolve(self, requested: str | None, policy: TenantPolicy | None) -> Model:
        """Return the model for a request. If the model has no live worker, the store will refuse the job.

        Raises ApiError with status 400 and the names of the live models if several are live and neither the request
        nor a default names one. Raises ApiError with status 404 if the named model was not live in the last hour, or
        if the tenant may not use it.
        """
        name = requested or (policy and policy.default_model) or self._default_model
        model = self._find(name) if name else self._only_live_model()
        if model is None and name and not requested:
            # The default model has no worker yet. The store refuses the job with reason no_worker.
            model = self._as_remembered(Model(name, live=False))
        if model is not None and (policy is None or policy.may_use(model.name) or policy.may_use(name or "")):
            return model
        raise _not_served(name or "")

    def resolve_target(self, requested: str | None, policy: TenantPolicy | None) -> Model | FoundRoute:
        """Return the route or the model for a request. Raises ApiError as `resolve` does."""
        name = requested or (policy and policy.default_model) or self._default_model
        found = self._find_route(name) if name else None
        if found is None:
            return self.resolve(requested, policy)
        if policy is not None and not policy.may_use(name):
            raise _not_served(name)
        return found

    def refresh(self) -> None:
        """Read the directory again. Raises StoreUnavailable."""
        self.directory(0.0)

    def _find_route(self, name: str) -> FoundRoute | None:
        directory = self.directory()
        if name not in directory.routes and directory.find(name) is None:
            directory = self.directory(MAX_AGE_MISSING_S)
        stored = directory.routes.get(name)
        if stored is None:
            return None
        pools = [step.pool for step in stored.route.steps]
        models = (directory.find(pool) or self._as_remembered(Model(pool, live=False)) for pool in pools)
        return FoundRoute(name, stored.text, tuple(models))

    def _find(self, name: str) -> Model | None:
        name = self._own_name(name)
        model = self.directory().find(name)
        return model if model and model.live else self.directory(MAX_AGE_MISSING_S).find(name)

    def _own_name(self, name: str) -> str:
        return self._default_model if name in self._default_aliases else name

    def _only_live_model(self) -> Model:
        directory = self.directory()
        if len(directory.live_bases) != 1:
            directory = self.directory(MAX_AGE_MISSING_S)
        if len(directory.live_bases) == 1:
            return directory.models[directory.live_bases[0]]
        if directory.live:
            message = f"several models are live; set model to one of {', '.join(directory.live)}"
            raise ApiError("model_required", message, param="model")
        # No model is live, so the store refuses the job. The refusal names a recently served model if there is one.
        return next(iter(directory.models.values()), Model("default", live=False))


def _not_served(name: str) -> ApiError:
    message = f"model={name[:80]!r} is not served; GET /v1/models lists the models that are"
    return ApiError("model_not_found", message, param="model")
