"""Job types, states, outcomes, costs and tenant policies as plain values; no module in this package uses the store."""
