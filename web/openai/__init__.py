"""The request and response bodies of OpenAI's API, as pure functions and values."""
