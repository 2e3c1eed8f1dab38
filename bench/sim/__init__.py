"""The overload simulator: it runs the real scripts in virtual time and models the workers step by step."""
