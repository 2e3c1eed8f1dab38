"""The OpenAPI document: what APIFlask cannot derive from the routes, and the texts and examples."""
