"""The routes of OpenAI's API for files and batches."""
