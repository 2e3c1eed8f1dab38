"""Checks of the chat templates of real models, which come with llama.cpp's source."""
