"""Sign-in at the routes: which user has sent the current request."""
