"""OpenAI's request and response bodies as values. Pure, like `web.api`."""
