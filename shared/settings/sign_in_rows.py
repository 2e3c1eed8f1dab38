"""The settings of sign-in: the proxies that name users, the issuer of tokens, and the roles of groups."""

from shared.settings.setting import Setting, text_row

ROWS: tuple[Setting, ...] = (
    text_row(
        "sign_in_proxies",
        "",
        "addresses or networks, comma-separated",
        "proxies whose X-Forwarded-User, -Email and -Groups name the user (`unix`: on a Unix socket); unset: none",
    ),
    text_row(
        "sign_in_roles",
        "",
        "GROUP=ROLE, comma-separated",
        "ROLE is operator, tenant:NAME or group:NAME; the GROUP `*` is every user whom a proxy names; unset: no roles",
    ),
    text_row(
        "oidc_issuer",
        "",
        "an https URL",
        "the OpenID Connect issuer whose tokens (JWTs) are accepted as bearer tokens; unset: none",
        pattern=r"(https?://[!-~]+)?",
    ),
    text_row("oidc_audience", "", "a name", "the audience that a token must have; required if an issuer is set"),
    text_row(
        "oidc_groups_claim",
        "groups",
        "a claim",
        "the claim that holds a user's groups; dots lead into objects, as in realm_access.roles",
    ),
    text_row(
        "oidc_name_claim", "email", "a claim", "the claim that holds a user's name for the audit log; otherwise `sub`"
    ),
)
