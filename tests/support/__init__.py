"""What several tests share: builders, the reference model, processes."""
