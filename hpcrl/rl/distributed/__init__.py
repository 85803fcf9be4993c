"""Several ranks that train one agent: who they are, and how they average their gradients."""
