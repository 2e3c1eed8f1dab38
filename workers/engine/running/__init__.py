"""The jobs in the engine, each with the sequences of its answers, and the slots that their candidates borrow."""
