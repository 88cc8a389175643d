"""Parts of the files that are exported: read as text, never changed but for their numbers."""
