"""The backend on llama-cpp-python. The only package that imports llama_cpp."""
