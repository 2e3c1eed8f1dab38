"""Files of clients, and batches of requests whose lines are in such files, as the store keeps them."""
