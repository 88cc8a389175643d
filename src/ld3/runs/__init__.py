"""Long work: everything that touches disk and processes."""
