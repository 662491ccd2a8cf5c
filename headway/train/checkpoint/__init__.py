"""Checkpoints: their contents, their layout in storage, and the times at which they are saved."""
