"""The document /openapi.json: the models of bodies and answers, and its texts."""
