"""OpenAI's vector stores: the collections of tenants, whose files are loaded after the request."""
