"""Sign-in of users at an identity provider: its keys, the tokens and the headers of a proxy."""
