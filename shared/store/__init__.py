"""The names of the store's keys, the loader of its Lua scripts, and the Python code that calls these scripts."""
