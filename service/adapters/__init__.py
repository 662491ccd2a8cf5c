"""One file, or folder, per technology. Nothing here knows the API or the loops."""
