"""The llama backend, built on llama-cpp-python. In the worker, only this package imports llama_cpp."""
