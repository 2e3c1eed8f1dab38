"""Jobs as values: states, outcomes, costs, and the policy of a tenant. Knows no store."""
