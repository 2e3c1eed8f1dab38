"""HTTP routes: each route parses the request, calls one operation and converts the result to a response."""
