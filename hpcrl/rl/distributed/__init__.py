"""Several ranks that train one agent: their group, and how they average their gradients."""
