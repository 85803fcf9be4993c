"""What people write: cluster profiles, studies, software environments and templates, read and checked."""
