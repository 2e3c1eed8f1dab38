"""The clients of the store: their connections, the prefix of their keys, and the node of a cluster that they follow."""
