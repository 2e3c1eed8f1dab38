"""Puts the prefix of a cell before every key that a client sends, and takes it off the keys in replies.

A cell is a store's URL and a key prefix (PENSTOCK_KEY_PREFIX). All other code names keys as shared/store/keys.py does,
without a prefix. Each connection of a client packs its commands with the prefix of the client's cell, so no path around
it exists, and RQ and rq-dashboard, whose names of keys are fixed, need nothing of their own. One process may have
clients of several cells. A client without a prefix has none of this.

The keys that a script builds are not seen here: the loader writes the prefix into the script (shared/store/scripts.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis
from redis.connection import HiredisRespSerializer

from shared.store import keys

_Word = str | bytes | int | float
_Find = Callable[[Sequence[_Word]], Sequence[int]]


def _numbered(at: int, *more: int) -> _Find:
    """Return a function that finds the keys of a command whose argument `at` is their number; they follow it."""
    return lambda words: [*more, *range(at + 1, min(at + 1 + int(words[at]), len(words)))]


def _after_streams(words: Sequence[_Word]) -> Sequence[int]:
    """Find the keys of XREAD, which are the first half of the arguments after STREAMS."""
    start = next(i for i, word in enumerate(words) if _upper(word) == "STREAMS") + 1
    return range(start, start + (len(words) - start) // 2)


#: Where the keys of each command stand among its words.
_COMMANDS: tuple[tuple[str, _Find], ...] = (
    (
        (
            "ACL AUTH BGREWRITEAOF BGSAVE CLIENT CLUSTER COMMAND CONFIG DBSIZE DISCARD ECHO EXEC HELLO INFO "
            "LASTSAVE LATENCY MONITOR MULTI PING QUIT READONLY READWRITE REPLICAOF RESET ROLE SAVE SCRIPT SELECT "
            "SHUTDOWN SLOWLOG TIME UNWATCH WAIT WAITAOF"
        ),
        lambda _: (),
    ),
    (
        (
            "APPEND BITCOUNT DECR DECRBY DUMP EXPIRE EXPIREAT EXPIRETIME GET GETDEL GETEX GETRANGE GETSET HDEL "
            "HEXISTS HGET HGETALL HINCRBY HINCRBYFLOAT HKEYS HLEN HMGET HMSET HRANDFIELD HSCAN HSET HSETNX HSTRLEN "
            "HVALS INCR INCRBY INCRBYFLOAT KEYS LINDEX LINSERT LLEN LPOP LPOS LPUSH LPUSHX LRANGE LREM LSET LTRIM "
            "PERSIST PEXPIRE PEXPIREAT PEXPIRETIME PSETEX PTTL RESTORE RPOP RPUSH RPUSHX SADD SCARD SET SETEX SETNX "
            "SETRANGE SISMEMBER SMEMBERS SMISMEMBER SPOP SRANDMEMBER SREM SSCAN STRLEN TTL TYPE XACK XADD XCLAIM "
            "XDEL XLEN XPENDING XRANGE XREVRANGE XTRIM ZADD ZCARD ZCOUNT ZINCRBY ZLEXCOUNT ZMSCORE ZPOPMAX ZPOPMIN "
            "ZRANDMEMBER ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK "
            "ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYLEX ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE"
        ),
        lambda _: (1,),
    ),
    ("BLMOVE COPY LMOVE RENAME RENAMENX RPOPLPUSH ZRANGESTORE", lambda _: (1, 2)),
    (
        "DEL EXISTS MGET SDIFF SDIFFSTORE SINTER SINTERSTORE SUNION SUNIONSTORE TOUCH UNLINK WATCH",
        lambda words: range(1, len(words)),
    ),
    ("BLPOP BRPOP BZPOPMAX BZPOPMIN", lambda words: range(1, len(words) - 1)),
    ("MSET MSETNX", lambda words: range(1, len(words), 2)),
    ("MEMORY OBJECT XGROUP XINFO", lambda words: range(2, min(3, len(words)))),
    ("EVAL EVALSHA EVALSHA_RO EVAL_RO", _numbered(2)),
    ("ZDIFFSTORE ZINTERSTORE ZUNIONSTORE", _numbered(2, 1)),
    ("LMPOP SINTERCARD ZDIFF ZINTER ZINTERCARD ZMPOP ZUNION", _numbered(1)),
    ("BLMPOP BZMPOP", _numbered(2)),
    ("XREAD XREADGROUP", _after_streams),
)
#: The same by the name of the command.
KEYS_OF = {name: find for names, find in _COMMANDS for name in names.split()}
#: The keys of sets whose members are keys too. RQ reads and writes them.
_SETS_OF_KEYS = (keys.rq_queues(), keys.rq_workers(), keys.rq_workers_of.prefix)


class KeyPrefixer(HiredisRespSerializer):
    """Packs the commands of a connection with a prefix before each key."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._bytes = prefix.encode()
        #: All keys of the cell begin with one of these texts. A text in a set of names does not.
        self._keys = tuple(self._bytes + room for room in (b"penstock:", b"rq:"))

    def pack(self, *words: Any) -> Any:
        """Return the packed command. Raises redis.DataError for a command whose keys are not known."""
        return super().pack(*self.prefixed(words))  # type: ignore[arg-type]  # its type is that of all arguments

    def prefixed(self, words: Sequence[_Word]) -> Sequence[_Word]:
        """Return the words of a command with the prefix before each key that does not have it yet.

        Raises redis.DataError for a command whose keys are not known, which would reach other cells' keys.
        """
        name = words[0]
        find = KEYS_OF.get(name) if isinstance(name, str) else None
        if find is None:
            words = [*_upper(name).split(), *words[1:]]
            name = str(words[0])
            if name == "SCAN":
                return self._limited_scan(words)
            find = KEYS_OF.get(name)
            if find is None:
                raise redis.DataError(f"{name} is not a command that PENSTOCK_KEY_PREFIX={self.prefix!r} can limit")
        try:
            places = find(words)
        except (ValueError, IndexError, StopIteration):
            # The server says what is wrong with such a command, which it does not carry out.
            return words
        if not places:
            return words
        changed = list(words)
        for place in places:
            if place < len(changed):
                changed[place] = self._with_prefix(changed[place])
        if name in {"SADD", "SREM", "SISMEMBER"} and _text(words[1]).startswith(_SETS_OF_KEYS):
            changed[2:] = [self._with_prefix(member) for member in changed[2:]]
        return changed

    def without(self, key: Any) -> Any:
        """Return a key of a reply without the prefix; anything else unchanged."""
        return key[len(self._bytes) :] if isinstance(key, bytes) and key.startswith(self._keys) else key

    def _with_prefix(self, key: _Word) -> str | bytes:
        if isinstance(key, bytes):
            return key if key.startswith(self._bytes) else self._bytes + key
        key = str(key)
        return key if key.startswith(self.prefix) else self.prefix + key

    def _limited_scan(self, words: Sequence[_Word]) -> Sequence[_Word]:
        at = next((i for i, word in enumerate(words) if i > 1 and _upper(word) == "MATCH"), len(words))
        pattern = words[at + 1] if at + 1 < len(words) else "*"
        return [*words[:at], "MATCH", self._with_prefix(pattern), *words[at + 2 :]]


def prefixer_of(client: redis.Redis) -> KeyPrefixer | None:
    """Return what puts the prefix before the keys of a client; None if its cell has no prefix."""
    packer = client.connection_pool.connection_kwargs.get("command_packer")
    return packer if isinstance(packer, KeyPrefixer) else None


def prefix_of(client: redis.Redis) -> str:
    """Return the key prefix of a client's cell, or ""."""
    packer = client.connection_pool.connection_kwargs.get("command_packer")
    return packer.prefix if packer is not None else ""


def reply_callbacks(prefixer: KeyPrefixer, present: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return callbacks that take the prefix off the keys in replies, each after the present one of its command."""

    def keys_in(reply: Any) -> Any:
        return type(reply)(prefixer.without(key) for key in reply) if isinstance(reply, list | set) else reply

    def first(reply: Any) -> Any:
        return (prefixer.without(reply[0]), *reply[1:]) if reply else reply

    def page(reply: Any) -> Any:
        return reply[0], keys_in(reply[1])

    def after(name: str, strip: Callable[[Any], Any]) -> Callable[..., Any]:
        earlier = present.get(name)
        return lambda reply, **options: strip(reply if earlier is None else earlier(reply, **options))

    strips = {"SMEMBERS": keys_in, "KEYS": keys_in, "SCAN": page, "BLPOP": first, "BRPOP": first}
    return {name: after(name, strip) for name, strip in strips.items()}


def _upper(word: _Word) -> str:
    return _text(word).upper()


def _text(word: _Word) -> str:
    return word.decode(errors="replace") if isinstance(word, bytes) else str(word)
