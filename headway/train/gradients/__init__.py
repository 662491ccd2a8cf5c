"""Gradients: their exact mean over ranks, and the measurement of their noise."""
