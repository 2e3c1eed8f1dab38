"""One file an experiment: the runs it needs, and what they must show. E1 to E8 of docs/overload.md."""
