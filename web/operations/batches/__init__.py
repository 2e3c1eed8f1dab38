"""The operations on files and batches, and the duty that feeds the lines of batches to the queue."""
