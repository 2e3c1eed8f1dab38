"""Tests which tokens of an issuer are valid, with real keys and a real issuer."""

import base64
import hmac
import json
import time
from collections.abc import Iterator

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from shared.clock import ManualClock
from tests.support.issuer import AUDIENCE, Issuer, rsa_key
from web.sign_in.issuer_keys import IssuerKeys
from web.sign_in.tokens import MAX_TOKEN, TokenRules, TokenVerifier
from web.sign_in.users import LEEWAY_S, BadToken


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
def verifier(issuer: Issuer) -> TokenVerifier:
    issuer.rotate("first")
    return make_verifier(issuer)


def make_verifier(issuer: Issuer, *, groups_claim: str = "groups", name_claim: str = "email") -> TokenVerifier:
    rules = TokenRules(issuer.url, AUDIENCE, groups_claim, name_claim)
    return TokenVerifier(rules, IssuerKeys(issuer.url, ManualClock()), time.time)


def problem(verifier: TokenVerifier, token: str) -> str:
    """Return why the token is not valid; no message may contain the token."""
    with pytest.raises(BadToken) as raised:
        verifier.verify(token)
    message = str(raised.value)
    assert token not in message
    assert all(len(part) < 20 or part not in message for part in token.split("."))
    return message


def test_a_token_says_who_the_user_is_and_until_when(issuer, verifier):
    claims = verifier.verify(issuer.token(groups=["red", "blue", 7], exp=int(time.time()) + 60))
    assert (claims.name, claims.groups) == ("ada@example.org", {"red", "blue"})
    assert claims.expires_s == pytest.approx(time.time() + 60, abs=30)


def test_a_token_for_another_audience_or_of_another_issuer_is_not_valid(issuer, verifier):
    assert "aud='billing', not 'penstock'" in problem(verifier, issuer.token(aud="billing"))
    assert "aud=['a', 'b'], not 'penstock'" in problem(verifier, issuer.token(aud=["a", "b"]))
    assert "aud=None" in problem(verifier, issuer.token(aud=None))
    assert "aud=" in problem(verifier, issuer.token(aud={"penstock": 1}))
    assert "iss='http://127.0.0.1/'" in problem(verifier, issuer.token(iss="http://127.0.0.1/"))
    assert verifier.verify(issuer.token(aud=["other", AUDIENCE]))


def test_a_token_is_valid_between_its_two_times_give_or_take_the_leeway(issuer, verifier):
    now_s = int(time.time())
    assert verifier.verify(issuer.token(exp=now_s - LEEWAY_S + 20, nbf=now_s + LEEWAY_S - 20))
    assert "expired 1" in problem(verifier, issuer.token(exp=now_s - 100))
    assert "not valid before" in problem(verifier, issuer.token(nbf=now_s + 1_000))
    for wrong in ("tomorrow", True, None, float("inf"), float("nan"), 10**400, [1]):
        assert "exp=" in problem(verifier, issuer.token(exp=wrong))
    assert "nbf=" in problem(verifier, issuer.token(nbf="now"))


def test_the_public_key_is_no_secret_with_which_a_token_could_be_signed(issuer, verifier):
    claims = issuer.token().split(".")[1]
    for secret in (issuer.signer.as_pem(private=False), json.dumps(issuer.keys[0]).encode()):
        head = b'{"alg":"HS256","kid":"first"}'
        signed = f"{_encoded(head)}.{claims}"
        signature = _encoded(hmac.digest(secret, signed.encode(), "sha256"))
        assert "alg='HS256', which is not one of" in problem(verifier, f"{signed}.{signature}")


def test_a_token_without_a_signature_is_not_valid(issuer, verifier):
    head, claims, signature = issuer.token().split(".")
    nothing = b'{"alg":"none","kid":"first"}'
    assert "alg='none'" in problem(verifier, f"{_encoded(nothing)}.{claims}.")
    assert "signature of the token is not valid" in problem(verifier, f"{head}.{claims}.")
    assert "signature of the token is not valid" in problem(verifier, f"{head}.{claims}.{signature[:-8]}AAAAAAAA")


def test_a_token_that_names_a_key_of_the_issuer_and_is_signed_with_another_one_is_not_valid(issuer, verifier):
    forged = Issuer.token(_signed_by(issuer, rsa_key("first")))
    assert "signature of the token is not valid" in problem(verifier, forged)
    stranger = Issuer.token(_signed_by(issuer, rsa_key("stranger")))
    assert "kid='stranger'" in problem(verifier, stranger)


def test_a_key_that_a_token_brings_along_does_not_count(issuer, verifier):
    own = rsa_key("first")
    forger = _signed_by(issuer, own)
    for name, value in {"jwk": own.as_dict(private=False), "jku": "http://127.0.0.1/keys"}.items():
        assert "signature of the token is not valid" in problem(verifier, Issuer.token(forger, header={name: value}))


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_a_key_is_used_for_what_the_issuer_says_and_if_it_is_strong_enough(issuer, verifier):
    issuer.keys = [issuer.signer.as_dict(private=False) | {"alg": "PS256"}]
    assert "for which the issuer's key is not meant" in problem(verifier, issuer.token())
    issuer.keys = [issuer.signer.as_dict(private=False) | {"use": "enc"}]
    assert "does not publish" in problem(make_verifier(issuer), issuer.token())
    issuer.signer = rsa_key("weak", bits=1_024)
    issuer.keys = [issuer.signer.as_dict(private=False)]
    assert "does not have 2048 to 8192 bits" in problem(make_verifier(issuer), issuer.token())


@pytest.mark.parametrize(
    ("algorithm", "odd"),
    [
        ("RS256", {"n": "AA"}),
        ("RS256", {"n": 7}),
        ("RS256", {"e": "AQ"}),
        ("RS256", {"n": None}),
        ("RS256", {"kty": "EC"}),
        ("RS256", {"kty": ["RSA"]}),
        ("RS256", {"crv": "P-256"}),
        ("RS256", {"key_ops": "verify"}),
        ("RS256", {"key_ops": ["encrypt"]}),
        ("Ed25519", {"kty": "OKP", "crv": "X25519", "x": "A" * 43}),
        ("Ed25519", {"kty": "OKP", "crv": "Ed25519", "x": "AA"}),
        ("ES256", {"kty": "EC", "crv": "secp256k9", "x": "AA", "y": "AA"}),
        ("ES256", {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}),
        ("ES256", {"kty": "EC", "crv": "P-384", "x": "AA", "y": "AA"}),
    ],
)
def test_a_key_that_cannot_be_read_makes_its_tokens_not_valid(issuer, verifier, algorithm, odd):
    _, claims, signature = issuer.token().split(".")
    head = json.dumps({"alg": algorithm, "kid": "first"}).encode()
    issuer.keys = [issuer.signer.as_dict(private=False) | odd]
    problem(verifier, f"{_encoded(head)}.{claims}.{signature}")


def test_a_shared_secret_that_an_issuer_publishes_is_no_key(issuer):
    issuer.signer = OctKey.generate_key(256, {"kid": "secret", "use": "sig"})
    issuer.keys = [issuer.signer.as_dict(private=True)]
    assert "alg='HS256'" in problem(make_verifier(issuer), issuer.token())


def test_elliptic_keys_work_and_a_token_without_a_key_id_is_checked_with_the_only_key(issuer):
    issuer.signer = ECKey.generate_key("P-256", {"kid": "curve", "use": "sig"})
    issuer.keys = [issuer.signer.as_dict(private=False)]
    verifier = make_verifier(issuer)
    assert verifier.verify(issuer.token()).name == "ada@example.org"
    assert verifier.verify(issuer.token(header={"kid": None})).name == "ada@example.org"
    issuer.keys = [*issuer.keys, rsa_key("another").as_dict(private=False)]
    assert "kid=None" in problem(make_verifier(issuer), issuer.token(header={"kid": None}))


@pytest.mark.parametrize(
    "token",
    [
        "a.b.c",
        "..",
        "e30.e30.e30",
        "W10.e30.e30",
        "bnVsbA.e30.",
        "eyJhbGciOlsiUlMyNTYiXX0.e30.e30",
        "x" * (MAX_TOKEN + 1),
    ],
)
def test_a_text_that_is_no_token_is_not_valid(issuer, verifier, token):
    with pytest.raises(BadToken):
        verifier.verify(token)


def test_the_groups_are_in_the_named_claim_which_may_be_inside_another_one_or_have_dots_in_its_name(issuer, verifier):
    nested = make_verifier(issuer, groups_claim="realm_access.roles")
    assert nested.verify(issuer.token(realm_access={"roles": ["ops"]})).groups == {"ops"}
    url = "https://example.org/groups"
    assert make_verifier(issuer, groups_claim=url).verify(issuer.token(**{url: "ops"})).groups == {"ops"}
    for odd in ("", None, 7, {"ops": 1}, [["ops"]]):
        assert "ops" not in verifier.verify(issuer.token(groups=odd)).groups


def test_an_address_that_the_issuer_has_not_verified_is_no_name(issuer, verifier):
    # Some issuers write the words true and false as texts.
    for said in (False, "false"):
        assert verifier.verify(issuer.token(email="root@example.org", email_verified=said)).name == "42"
    assert verifier.verify(issuer.token(email="root@example.org", email_verified="true")).name == "root@example.org"
    assert verifier.verify(issuer.token(email=None)).name == "42"
    assert "names no user" in problem(verifier, issuer.token(email=None, sub=None))
    assert "names no user" in problem(verifier, issuer.token(email="a\nb", sub=None))


def _encoded(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def _signed_by(issuer: Issuer, signer: RSAKey) -> Issuer:
    """Return an impostor of the issuer, which signs with its own key and has no server."""
    impostor = object.__new__(Issuer)
    impostor.port, impostor.signer = issuer.port, signer
    return impostor
