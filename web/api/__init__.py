"""Pure functions and values for the native HTTP API: request bodies, refusals and jobs as JSON, without the store."""
