"""Verifies the tokens of an issuer: JWTs that are signed with one of its public keys, for this audience, and in time.

Only this module imports joserfc, and only a door with PENSTOCK_OIDC_ISSUER imports this module: the cryptography below
it takes 10 MB in each process. A signature takes about 0.15 ms of processor time to verify.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from web.http.api_errors import quoted
from web.sign_in.issuer_keys import IssuerKeys, Jwk
from web.sign_in.users import LEEWAY_S, MAX_NAME, BadToken

#: The algorithms that are accepted, by the type of the key. None of them uses a shared secret, so a public key is never
#: taken for one.
_ALGORITHMS: dict[str, frozenset[str]] = {
    "RSA": frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "EC": frozenset({"ES256", "ES384", "ES512"}),
    "OKP": frozenset({"Ed25519"}),
}
#: The curve that a key must have for an algorithm.
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "Ed25519": "Ed25519"}
_ACCEPTED = frozenset().union(*_ALGORITHMS.values())
#: The bits that an RSA key may have: fewer are too weak, and more take the door too long.
_RSA_BITS = range(2_048, 8_193)
#: The longest token, in characters. A user of 200 groups has one of about 10,000.
MAX_TOKEN = 16_384
#: Times in tokens are below this one, in seconds since the epoch: the year 33658.
_LATEST_S = 1e12
_KEY_TYPES: dict[str, Any] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}


@dataclass(frozen=True)
class Claims:
    """The claims of a valid token about its user."""

    name: str
    groups: frozenset[str]
    #: In seconds since the epoch.
    expires_s: float


@dataclass(frozen=True)
class TokenRules:
    """The claims that a token must have, and those that name the user."""

    issuer: str
    audience: str
    groups_claim: str
    name_claim: str


class TokenVerifier:
    """Verifies tokens. The keys are looked up for each token, so that a key that was withdrawn stops working."""

    def __init__(self, rules: TokenRules, keys: IssuerKeys, now_s: Callable[[], float]) -> None:
        """`now_s` returns the time in seconds since the epoch."""
        self._rules, self._keys, self._now_s = rules, keys, now_s
        self._registry = jws.JWSRegistry(algorithms=sorted(_ACCEPTED), strict_check_header=False)
        self._registry.max_header_length = 2_048

    def verify(self, token: str) -> Claims:
        """Return the claims of the token. Raises BadToken, and KeysUnavailable if no keys of the issuer are known."""
        if len(token) > MAX_TOKEN:
            raise BadToken(f"the token is longer than {MAX_TOKEN} characters")
        claims = self._signed_claims(token)
        self._check(claims)
        name = _text(claims.get(self._rules.name_claim))
        # Users choose the e-mail addresses that their issuer has not verified.
        if self._rules.name_claim == "email" and claims.get("email_verified") in (False, "false"):
            name = ""
        name = name or _text(claims.get("sub"))
        if not name or not name.isprintable():
            raise BadToken(f"the token names no user: neither {self._rules.name_claim!r} nor 'sub' is a name")
        return Claims(name[:MAX_NAME], self._groups(claims), float(claims["exp"]))

    def _signed_claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token whose signature is that of one of the issuer's keys. Raises BadToken."""
        try:
            header = jws.extract_compact(token.encode(), registry=self._registry).headers()
        except (JoseError, ValueError, TypeError, AttributeError, RecursionError):
            raise BadToken("the token is not a JWT") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in _ACCEPTED:
            accepted = ", ".join(sorted(_ACCEPTED))
            raise BadToken(f"the token is signed with alg={quoted(algorithm)}, which is not one of {accepted}")
        if kid is not None and not isinstance(kid, str):
            raise BadToken(f"the token names its key as kid={quoted(kid)}, which is not a text")
        published = self._keys.find(kid)
        if published is None:
            raise BadToken(f"the token is signed with a key, kid={quoted(kid)}, that the issuer does not publish")
        key = _import(published, algorithm)
        try:
            claims: dict[str, Any] = jwt.decode(token, key, algorithms=[algorithm], registry=self._registry).claims
        except (JoseError, ValueError, TypeError, RecursionError):
            raise BadToken("the signature of the token is not valid") from None
        return claims

    def _check(self, claims: dict[str, Any]) -> None:
        rules, now_s = self._rules, self._now_s()
        if claims.get("iss") != rules.issuer:
            raise BadToken(f"the token is of the issuer iss={quoted(claims.get('iss'))}, not {rules.issuer!r}")
        audiences = claims.get("aud")
        listed = audiences if isinstance(audiences, list) else [audiences]
        if rules.audience not in listed:
            raise BadToken(f"the token is for the audience aud={quoted(audiences)}, not {rules.audience!r}")
        expires_s, begins_s = claims.get("exp"), claims.get("nbf", 0)
        if not _is_time(expires_s):
            raise BadToken(f"the token has exp={quoted(expires_s)}, which is not a time")
        if not _is_time(begins_s):
            raise BadToken(f"the token has nbf={quoted(begins_s)}, which is not a time")
        if now_s >= expires_s + LEEWAY_S:
            raise BadToken(f"the token expired {now_s - expires_s:.0f} s ago")
        if now_s < begins_s - LEEWAY_S:
            raise BadToken(f"the token is not valid before {begins_s - now_s:.0f} s from now")

    def _groups(self, claims: dict[str, Any]) -> frozenset[str]:
        """Return the groups in the claim, which is a text or a list of texts; other values are not groups."""
        found: Any = claims.get(self._rules.groups_claim)
        if found is None:
            found = claims
            for part in self._rules.groups_claim.split("."):
                found = found.get(part) if isinstance(found, dict) else None
        listed = found if isinstance(found, list) else [found]
        return frozenset(one for one in listed if isinstance(one, str))


def _import(published: Jwk, algorithm: str) -> Any:
    """Return the issuer's key, which must suit the algorithm. Raises BadToken."""
    kind, curve = published.get("kty"), published.get("crv")
    is_meant = published.get("alg", algorithm) == algorithm and curve == _CURVES.get(algorithm)
    if not isinstance(kind, str) or algorithm not in _ALGORITHMS.get(kind, ()) or not is_meant:
        raise BadToken(f"the token is signed with alg={quoted(algorithm)}, for which the issuer's key is not meant")
    try:
        key = _KEY_TYPES[kind].import_key(published)
    except (JoseError, ValueError, TypeError, LookupError):
        raise BadToken("the issuer's key with which the token is signed cannot be read") from None
    if isinstance(key, RSAKey) and key.raw_value.key_size not in _RSA_BITS:
        bits = f"{_RSA_BITS.start} to {_RSA_BITS.stop - 1} bits"
        raise BadToken(f"the issuer's key with which the token is signed does not have {bits}")
    return key


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LATEST_S


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""
