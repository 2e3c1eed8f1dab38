"""Reads and writes routes and the terms of pools in the store.

Routes are JSON in one hash (keys.routes). A pool's terms are fields of its pool record (keys.books), which admission
reads anyway, and the set keys.pools names the models whose pools have terms. Both are configuration, not jobs' state.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import redis
from redis.client import Pipeline

from shared.accounts.admin_actions import Actor, add_record, local_actor
from shared.accounts.changed_accounts import AccountChange, AccountKind, note_change
from shared.errors import ConfigError
from shared.jobs.pool_terms import STORED, PoolTerms
from shared.jobs.route import Route, parse_route
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import readable, store_faults

#: The most routes. Each door process reads all of them once a second.
MAX_ROUTES = 256


@dataclass(frozen=True)
class StoredRoute:
    """A route, and the text under which the store keeps it."""

    route: Route
    text: str


@dataclass(frozen=True)
class PoolEntry:
    """The terms of one pool, as listed by `penstock pools ls`."""

    model: str
    terms: PoolTerms


class Routes:
    """All routes. Methods raise ConfigError for invalid values, and StoreUnavailable if the store does not answer."""

    def __init__(self, client: redis.Redis, actor: Actor | None = None) -> None:
        self._client = client
        #: The changes that these methods make are recorded as this actor's.
        self._actor = actor or local_actor()

    def read(self) -> tuple[dict[str, StoredRoute], tuple[str, ...]]:
        """Return the routes by name, and a sentence about each one that another program has spoiled."""
        with store_faults(self._client):
            kind = text(self._client.type(keys.routes()))
            stored: Any = self._client.hgetall(keys.routes()) if kind == "hash" else {}
        found, problems = {}, [] if kind in {"hash", "none"} else [f"{keys.routes()} is a {kind} and no hash"]
        for raw_name, raw in sorted(stored.items()):
            name = text(raw_name)
            try:
                found[name] = StoredRoute(parse_route(name, text(raw)), text(raw))
            except ConfigError as error:
                problems.append(f"route {name[:80]!r} cannot be used: {error}")
        return found, tuple(problems)

    def add(self, route: Route) -> None:
        """Add a route. Raises ConfigError if there is one with this name, or a model that is served has the name."""
        on = f"route {route.name}: {', '.join(step.pool for step in route.steps)}"

        def write(pipe: Pipeline) -> None:
            # Called again if somebody else changes a route before this one is written with its record.
            if pipe.zscore(keys.models(), route.name) is not None:
                raise ConfigError(f"route={route.name!r} is the name of a model that is or was served")
            count: Any = pipe.hlen(keys.routes())
            if count >= MAX_ROUTES:
                raise ConfigError(f"there are {count} routes, the most that are allowed")
            if pipe.hexists(keys.routes(), route.name):
                raise ConfigError(f"route={route.name!r} exists: remove it first with `penstock routes rm`")
            pipe.multi()
            pipe.hset(keys.routes(), route.name, route.dump())
            add_record(pipe, self._actor, "route.add", on)

        with store_faults(self._client):
            self._client.transaction(write, keys.routes())
        note_change(AccountChange(AccountKind.ROUTE, (route.name,), self._actor, "route.add", on))

    def remove(self, name: str) -> bool:
        """Remove a route, also one that is spoiled. Return whether it existed. Jobs that it has routed continue."""
        with store_faults(self._client), self._client.pipeline(transaction=True) as pipe:
            pipe.hdel(keys.routes(), name)
            add_record(pipe, self._actor, "route.rm", f"route {name}")
            existed = bool(pipe.execute()[0])
        note_change(AccountChange(AccountKind.ROUTE, (name,), self._actor, "route.rm", f"route {name}"))
        return existed


class Pools:
    """The terms of all pools. Methods raise ConfigError and StoreUnavailable as those of Routes do."""

    def __init__(self, client: redis.Redis, actor: Actor | None = None) -> None:
        self._client = client
        self._actor = actor or local_actor()

    def get(self, model: str) -> PoolTerms:
        """Return the terms of the pool of a model; a field that another program has spoiled counts as its default."""
        with store_faults(self._client):
            stored: Any = self._client.hmget(keys.books(keys.model_slug(model)), list(STORED.values()))
        return _terms(dict(zip(STORED, stored, strict=True)))

    def exists(self, model: str) -> bool:
        """Return whether the pool of the model was ever served, or has terms."""
        with store_faults(self._client), self._client.pipeline(transaction=False) as pipe:
            pipe.zscore(keys.models(), model)
            pipe.sismember(keys.pools(), model)
            served, named = pipe.execute()
        return served is not None or bool(named)

    def change(self, model: str, changes: Mapping[str, Any]) -> PoolTerms:
        """Set the fields in `changes` and return the resulting terms. They hold for requests from now on.

        Fields that another process sets at the same time stay.
        """
        replace(self.get(_check_model(model)), **changes)
        key, written = keys.books(keys.model_slug(model)), _stored(changes)
        on = f"pool {model}: {written or 'the defaults'}"
        with store_faults(self._client), self._client.pipeline(transaction=True) as pipe:
            unset = [STORED[name] for name in changes if STORED[name] not in written]
            if unset:
                pipe.hdel(key, *unset)
            if written:
                pipe.hset(key, mapping=written)  # type: ignore[arg-type]  # the library wants a wider type of key
            pipe.sadd(keys.pools(), model)
            add_record(pipe, self._actor, "pool.set", on)
            pipe.execute()
        note_change(AccountChange(AccountKind.POOL, (model,), self._actor, "pool.set", on))
        terms = self.get(model)
        if terms == PoolTerms():
            self._forget(model)
        return self.get(model)

    def names(self) -> list[str]:
        """Return the names of the models whose pools have terms, sorted."""
        with store_faults(self._client):
            named: Any = self._client.smembers(keys.pools())
        return sorted(text(raw) for raw in named)

    def texts(self, models: Iterable[str]) -> dict[str, dict[str, str] | None]:
        """Return the terms of pools as they are stored, spoiled ones included; None for a pool without terms.

        A pool is left out if another program has replaced its record by something else.
        """
        asked, fields = list(models), list(STORED.values())
        with store_faults(self._client), self._client.pipeline(transaction=False) as pipe:
            for model in asked:
                pipe.hmget(keys.books(keys.model_slug(model)), fields)
            answers = [readable(answer) for answer in pipe.execute(raise_on_error=False)]
        found = {}
        for model, answer in zip(asked, answers, strict=True):
            if answer is not None:
                texts = {field: text(value) for field, value in zip(fields, answer, strict=True) if value is not None}
                found[model] = texts or None
        return found

    def put_texts(self, model: str, texts: Mapping[str, str] | None) -> None:
        """Replace the terms of a pool by fields that `texts` has returned, or remove them. Records no action."""
        key = keys.books(keys.model_slug(_check_model(model)))
        with store_faults(self._client), self._client.pipeline(transaction=True) as pipe:
            pipe.hdel(key, *STORED.values())
            if texts:
                pipe.hset(key, mapping=dict[Any, Any](texts))
                pipe.sadd(keys.pools(), model)
            else:
                pipe.srem(keys.pools(), model)
            pipe.execute()

    def _forget(self, model: str) -> None:
        """Remove a pool without terms from those that have some, unless another process has set one just now."""
        with store_faults(self._client):
            self._client.srem(keys.pools(), model)
            if self.get(model) != PoolTerms():
                self._client.sadd(keys.pools(), model)

    def list(self) -> tuple[PoolEntry, ...]:
        """Return the terms of each pool that was ever served or has terms, sorted by the name of its model."""
        with store_faults(self._client):
            served: Any = self._client.zrange(keys.models(), 0, -1)
            named: Any = self._client.smembers(keys.pools())
        return tuple(PoolEntry(model, self.get(model)) for model in sorted({text(raw) for raw in (*served, *named)}))


def _check_model(model: str) -> str:
    if not 1 <= len(model) <= 200 or any(char.isspace() or char == "," for char in model):
        raise ConfigError(f"pool={model!r} is not a name: it needs 1 to 200 characters without commas and spaces")
    return model


def _stored(values: Mapping[str, Any]) -> dict[str, str]:
    named = {name: value for name, value in values.items() if value or (name == "day_cap_micro" and value is not None)}
    return {STORED[name]: str(int(value)) for name, value in named.items()}


def _terms(stored: Mapping[str, Any]) -> PoolTerms:
    """Return the terms. As in the scripts, a spoiled price counts as 0, and a spoiled cap allows nothing."""
    terms = PoolTerms(local=stored["local"] is not None and text(stored["local"]) == "1")
    for name in ("prompt_price_micro", "answer_price_micro", "day_cap_micro"):
        if stored[name] is not None:
            try:
                terms = replace(terms, **{name: int(text(stored[name]))})  # type: ignore[arg-type]  # PoolTerms checks it
            except (ValueError, ConfigError):
                terms = replace(terms, **{name: 0})  # type: ignore[arg-type]  # as above
    return terms
