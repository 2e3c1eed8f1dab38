"""Sign-in: finds out from a proxy's headers or an issuer's token who sent a request, and the roles of that user."""
