"""Who may use Penstock: tenants and their policies, and API keys."""
